//! `ferrule doctor`: what this node lacks for its networks, each finding with its remedy, and the subjects that are in order.
//!
//! [`networks`] reads the configurations, [`programs`] the plugins. [`chains`] joins both, and asks each plugin by STATUS
//! whether it can serve its network: so the plugins themselves judge kernel, tools and folders, and the remedy is that of the
//! plugin's error. [`firewalls`], [`subnets`]
//! and [`sysctls`] look at what no plugin knows. Nothing is changed, except that the kernel may load modules.

pub mod chains;
pub mod firewalls;
pub mod modes;
pub mod networks;
pub mod programs;
pub mod subnets;
pub mod sysctls;

use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use cni_common::spec::{CniError, REMEDY};

use crate::model::Sockets;
use crate::node::NOT_WHOLE;
use crate::sight::Sight;
use crate::table::wrapped;

/// What helps against a view that is not whole.
const WHOLE: &str =
    "run ferrule as root in the node's network, PID and mount namespaces, or with its / as --root";

/// How much a finding matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// Pods fail to start, or the node is not safe.
    Error,
    /// Traffic may be lost.
    Warning,
}

impl Severity {
    /// Its name in texts and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Severity::Error => "error",
            Severity::Warning => "warning",
        }
    }
}

/// Something that is wrong with the node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        Finding {
            severity: Severity::Error,
            subject: subject.into(),
            problem: problem.into(),
            remedy: remedy.into(),
        }
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

    /// A subject that could not be looked at.
    fn unread(name: &str, error: &CniError) -> Self {
        Subject::new(name, "", vec![Finding::error(name, format!("cannot be looked at: {error}"), WHOLE)])
    }

    /// `ok`, or the worst severity of its findings.
    pub fn outcome(&self) -> &'static str {
        self.findings.iter().map(|finding| finding.severity).min().map_or("ok", Severity::as_str)
    }
}

/// Examines the node. `plugins` are the plugins that Ferrule has.
///
/// # Errors
/// The kernel gives no socket.
pub fn examine(places: &Places, plugins: &[&str]) -> Result<Vec<Subject>, CniError> {
    let mut sockets = Sockets::open()?;
    let sight = Sight::of_all(places.init, [places.conf_dir.as_path()].into_iter());
    let partial = sight.partial.map(|why| Finding::error("view", format!("{NOT_WHOLE}: {why}"), WHOLE));
    let (networks, unusable) = networks::read(&places.conf_dir);
    let found = format!("{} in {}", networks.len(), places.conf_dir.display());
    let mut subjects = vec![
        Subject::new("view", "the node as its first process sees it", partial.into_iter().collect()),
        Subject::new("networks", found, unusable),
        modes::judge(&places.path, &places.conf_dir),
        programs::judge_versions(&programs::installed(places, plugins)),
    ];
    subjects.extend(chains::judge(&networks, places, plugins));
    subjects.push(match firewalls::Facts::read(&mut sockets.netfilter) {
        Ok(facts) => firewalls::judge(&networks, &facts),
        Err(error) => Subject::unread("firewalls", &error),
    });
    subjects.push(match subnets::of_host(&mut sockets.route) {
        Ok(of_host) => subnets::judge(&networks, &of_host),
        Err(error) => Subject::unread("subnets", &error),
    });
    subjects.push(match sysctls::Facts::read() {
        Ok(facts) => sysctls::judge(&networks, &facts),
        Err(error) => Subject::unread("sysctls", &error),
    });
    Ok(subjects)
}

/// All findings, errors first.
pub fn findings(subjects: &[Subject]) -> Vec<&Finding> {
    let mut findings: Vec<&Finding> = subjects.iter().flat_map(|subject| &subject.findings).collect();
    findings.sort();
    findings
}

/// A line for each subject or each of its findings, and the number of these. Without a width, lines are not wrapped.
pub fn text(subjects: &[Subject], width: Option<usize>) -> String {
    let mut text = String::new();
    for subject in subjects {
        if subject.findings.is_empty() {
            text += &wrapped(&format!("ok: {}: {}", subject.name, subject.seen), 0, width);
        }
        for Finding { severity, subject, problem, remedy } in &subject.findings {
            text += &wrapped(&format!("{}: {subject}: {problem}", severity.as_str()), 0, width);
            text += &wrapped(&format!("remedy: {remedy}"), 4, width);
        }
    }
    let count = |severity: Severity| {
        let count = findings(subjects).iter().filter(|finding| finding.severity == severity).count();
        format!("{count} {}{}", severity.as_str(), if count == 1 { "" } else { "s" })
    };
    let _ = writeln!(text, "{}, {}", count(Severity::Error), count(Severity::Warning));
    text
}
