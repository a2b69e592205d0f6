//! `ferrule doctor`: what this node lacks for its networks, each finding with its remedy.
//!
//! [`networks`] reads the configurations, [`programs`] the plugins. [`chains`] joins both, and asks each plugin by STATUS
//! whether it can serve its network: so the plugins themselves judge kernel, tools and folders. [`firewalls`], [`subnets`]
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

use cni_common::spec::CniError;

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

/// Examines the node. `plugins` are the plugins that Ferrule has. Errors come first.
///
/// # Errors
/// The kernel gives no socket, or does not list addresses or chains.
pub fn examine(places: &Places, plugins: &[&str]) -> Result<Vec<Finding>, CniError> {
    let mut sockets = Sockets::open()?;
    let (networks, mut findings) = networks::read(&places.conf_dir);
    let sight = Sight::of_all(places.init, [places.conf_dir.as_path()].into_iter());
    findings.extend(sight.partial.map(|why| Finding::error("view", format!("{NOT_WHOLE}: {why}"), WHOLE)));
    findings.extend(modes::judge(&places.path, &places.conf_dir));
    findings.extend(programs::judge_versions(&programs::installed(places, plugins)));
    findings.extend(chains::judge(&networks, places, plugins));
    findings.extend(firewalls::judge(&networks, &firewalls::Facts::read(&mut sockets.netfilter)?));
    findings.extend(subnets::judge(&networks, &subnets::of_host(&mut sockets.route)?));
    findings.extend(sysctls::judge(&networks, &sysctls::Facts::read()));
    findings.sort();
    Ok(findings)
}

/// The findings as text, and their number. Without a width, lines are not wrapped.
pub fn text(findings: &[Finding], width: Option<usize>) -> String {
    let mut text = String::new();
    for Finding { severity, subject, problem, remedy } in findings {
        text += &wrapped(&format!("{}: {subject}: {problem}", severity.as_str()), 0, width);
        text += &wrapped(&format!("remedy: {remedy}"), 4, width);
    }
    let count = |severity: Severity| {
        let count = findings.iter().filter(|finding| finding.severity == severity).count();
        format!("{count} {}{}", severity.as_str(), if count == 1 { "" } else { "s" })
    };
    let _ = writeln!(text, "{}, {}", count(Severity::Error), count(Severity::Warning));
    text
}
