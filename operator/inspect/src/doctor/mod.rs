//! `ferrule doctor`: what this node lacks for its networks, each finding with its remedy, and the subjects that are in order.
//!
//! [`networks`] reads the configurations. [`plugins`] asks each plugin by STATUS whether it can serve its network: so the plugins
//! themselves judge kernel, tools and folders, and the remedy is that of the plugin's error. [`blocks`], [`claims`], [`cluster`], [`firewalls`],
//! [`left_overs`], [`policy`], [`ports`], [`subnets`] and [`sysctls`] look at what no plugin knows. Nothing is changed, except that the kernel may load modules.

pub mod blocks;
pub mod claims;
pub mod cluster;
pub mod firewalls;
pub mod left_overs;
mod libcni;
pub mod modes;
pub mod networks;
pub mod plugins;
pub mod policy;
pub mod ports;
pub mod subnets;
pub mod sysctls;

use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_common::spec::{CniError, REMEDY};
use ferrule_kit::cluster::STATE;
use ferrule_policy_kit::isolated;
use serde::Serialize;
use serde_json::{Value, json};

use crate::cache::Cache;
use crate::model::{SCHEMA, Sockets, name};
use crate::node::NOT_WHOLE;
use crate::sight::Sight;
use crate::table::wrapped;

/// The runtimes' cache of results.
const RESULTS: &str = "/var/lib/cni/results";
/// What helps against a view that is not whole.
const WHOLE: &str =
    "run ferrule as root in the node's network, PID and mount namespaces, or with its / as --root";

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Pods fail to start, or the node is not safe.
    Error,
    /// Traffic may be lost.
    Warning,
}

/// Something that is wrong with the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// How much it matters.
    pub severity: Severity,
    /// A network with its file, or a path, or a sysctl.
    pub subject: String,
    /// The cause.
    pub problem: String,
    /// What to do: a command, or a sentence.
    pub remedy: String,
}

impl Finding {
    fn error(subject: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        let (subject, problem, remedy) = (subject.into(), problem.into(), remedy.into());
        Finding { severity: Severity::Error, subject, problem, remedy }
    }

    /// An error with the remedy that its text ends with, as that of an error document does.
    fn of_text(subject: impl Into<String>, text: &str, otherwise: impl Into<String>) -> Self {
        match text.rsplit_once(REMEDY) {
            Some((problem, remedy)) => Finding::error(subject, problem.trim_end_matches("; "), remedy),
            None => Finding::error(subject, text, otherwise),
        }
    }

    fn warning(subject: impl Into<String>, problem: impl Into<String>, remedy: impl Into<String>) -> Self {
        Finding { severity: Severity::Warning, ..Finding::error(subject, problem, remedy) }
    }
}

/// Where to look.
#[derive(Clone, Debug)]
pub struct Places {
    /// The folder of the network configurations.
    pub conf_dir: PathBuf,
    /// The folders of the plugins, as in CNI_PATH.
    pub path: Vec<PathBuf>,
    /// How long one plugin may take.
    pub limit: Duration,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
}

/// Something that the doctor has looked at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// A network with its file, or a word such as `files`.
    pub name: String,
    /// The state, without findings.
    pub seen: String,
    /// The findings.
    pub findings: Vec<Finding>,
}

impl Subject {
    fn new(name: impl Into<String>, seen: impl Into<String>, findings: Vec<Finding>) -> Self {
        Subject { name: name.into(), seen: seen.into(), findings }
    }

    /// A subject that is judged by facts, which may be unreadable.
    fn of<T>(name: &str, facts: Result<T, CniError>, judge: impl FnOnce(T) -> Subject) -> Self {
        facts.map_or_else(|error| Subject::unseen(name, &error), judge)
    }

    /// A subject whose facts cannot be read.
    fn unseen(name: &str, error: &CniError) -> Self {
        Subject::new(name, "", vec![Finding::error(name, format!("cannot be looked at: {error}"), WHOLE)])
    }

    /// `ok`, or the worst severity of its findings.
    pub fn outcome(&self) -> String {
        let worst = self.findings.iter().map(|finding| finding.severity).min();
        worst.map_or_else(|| "ok".to_owned(), |severity| name(&severity))
    }
}

/// Examines the node. `ours` are the plugins that Ferrule has.
///
/// # Errors
/// The kernel gives no socket.
pub fn examine(places: &Places, ours: &[&str]) -> Result<Vec<Subject>, CniError> {
    let mut sockets = Sockets::open()?;
    let sight = Sight::of_all(places.init, [places.conf_dir.as_path()].into_iter());
    let cache = Cache::read(Path::new(RESULTS), &sight);
    let partial = sight.partial.map(|why| Finding::error("view", format!("{NOT_WHOLE}: {why}"), WHOLE));
    let (networks, unusable) = networks::read(&places.conf_dir);
    let found = format!("{} in {}", networks.len(), places.conf_dir.display());
    let mut subjects = vec![
        Subject::new("view", "the node as its first process sees it", partial.into_iter().collect()),
        Subject::new("networks", found, unusable),
        modes::judge(&places.path, &places.conf_dir),
        plugins::judge_versions(&plugins::installed(places, ours)),
    ];
    subjects.extend(plugins::judge(&networks, places, ours));
    let firewalls = firewalls::Facts::read(&mut sockets.netfilter);
    subjects.push(Subject::of("firewalls", firewalls, |facts| firewalls::judge(&networks, &facts)));
    subjects.extend(cluster::judge(&places.conf_dir, Path::new(STATE)));
    subjects.extend(policy::judge(&networks, Path::new(isolated::PATH)));
    match ports::Facts::read(&mut sockets.netfilter) {
        Ok(facts) => subjects.extend(facts.judge()),
        Err(error) => subjects.push(Subject::unseen(ports::SUBJECT, &error)),
    }
    let of_host = subnets::of_host(&mut sockets.route);
    subjects.push(Subject::of("subnets", of_host, |of_host| subnets::judge(&networks, &of_host)));
    let sysctls = sysctls::Facts::read();
    subjects.push(Subject::of("sysctls", sysctls, |facts| sysctls::judge(&networks, &facts)));
    subjects.push(claims::judge(&networks));
    subjects.extend(blocks::judge(&networks));
    subjects.push(left_overs::judge(&places.conf_dir, &cache, &mut sockets));
    Ok(subjects)
}

/// All findings, errors first.
pub fn findings(subjects: &[Subject]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> = subjects.iter().flat_map(|subject| &subject.findings).collect();
    findings.sort();
    findings
}

/// All subjects and findings as JSON, or as text: a line for each subject or each of its findings, and the number of these.
/// Without a width, lines are not wrapped.
pub fn report(subjects: &[Subject], as_json: bool, width: Option<usize>) -> String {
    let findings = findings(subjects);
    if as_json {
        let looked_at = subjects.iter().map(
            |subject| json!({"subject": subject.name, "outcome": subject.outcome(), "seen": subject.seen}),
        );
        let looked_at: Vec<Value> = looked_at.collect();
        return json!({"schema": SCHEMA, "findings": findings, "lookedAt": looked_at, "failures": []})
            .to_string();
    }
    let mut text = String::new();
    for subject in subjects {
        if subject.findings.is_empty() {
            text += &wrapped(&format!("ok: {}: {}", subject.name, subject.seen), 0, width);
        }
        for Finding { severity, subject, problem, remedy } in &subject.findings {
            text += &wrapped(&format!("{}: {subject}: {problem}", name(severity)), 0, width);
            text += &wrapped(&format!("remedy: {remedy}"), 4, width);
        }
    }
    let [errors, warnings] = [Severity::Error, Severity::Warning].map(|severity| {
        let count = findings.iter().filter(|finding| finding.severity == severity).count();
        format!("{count} {}{}", name(&severity), if count == 1 { "" } else { "s" })
    });
    format!("{text}{errors}, {warnings}\n")
}
