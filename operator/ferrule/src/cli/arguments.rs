//! The command line. The comments are the texts of `--help` and of the man pages.

mod calls;
mod chain;
pub(super) mod policy;
pub(super) mod support;

use std::path::PathBuf;

use clap::builder::{ArgPredicate, ValueParser};
use clap::{ArgGroup, Args, Parser, value_parser};
use clap_complete::Shell;
use ferrule_bandwidth::rates::Rate;
use ferrule_inspect::view::Query;
use ferrule_install::options::{Install, Restore, Status};

pub(super) use self::calls::{Log, Metrics};
pub(super) use self::chain::Chain;

/// Installs the Ferrule CNI plugins where container runtimes look for them
///
/// It is safe on a running node: a runtime always finds the complete old program or the complete new one.
///
/// Under the name of a plugin, or with CNI_COMMAND set, this program is a CNI plugin.
#[derive(Debug, Parser)]
#[command(name = "ferrule", version = concat!("v", env!("CARGO_PKG_VERSION")), args_override_self = true)]
pub(super) enum Command {
    /// Install this program under the name of every plugin
    ///
    /// Also installs it as `ferrule`, as links of one file. First runs every new plugin with the command VERSION. If a step
    /// fails, restores the files that it has already replaced.
    ///
    /// BIN_DIR/.ferrule has the replaced files, and a manifest in plain text. If an installation was interrupted, run the
    /// command again: it first restores the files that the interrupted one replaced.
    ///
    /// Exit status: 0 done, or nothing to do; 1 failed, no file has changed; 2 wrong usage.
    Install(Install),
    /// Restore the files that the last installation replaced
    ///
    /// These may be an earlier Ferrule.
    #[command(after_long_help = RESTORE)]
    Rollback(Restore),
    /// Restore the files from before the first installation
    ///
    /// Removes files that did not exist then, and deletes the manifest.
    #[command(after_long_help = RESTORE)]
    Uninstall(Restore),
    /// Print the installed plugins
    ///
    /// One line for each plugin:
    ///   STATE     installed       the file is ours
    ///             changed         another process has changed our file
    ///             missing         our file was removed
    ///             not executable  our file, without that permission
    ///             foreign         a file of another program
    ///             absent          no file
    ///   VERSION   what Ferrule has installed
    ///   BEFORE    what uninstall restores: a file, a link, or none
    ///   ROLLBACK  what rollback restores: a version, a file, a link, or none
    ///
    /// Exit status: 0 all installed files are ours; 1 failed; 2 wrong usage; 3 a file has
    /// changed or is missing, or an installation was interrupted; 4 Ferrule is not installed.
    #[command(verbatim_doc_comment)]
    Status(Status),
    /// Show whose every address, host port, rule and link of the node is
    ///
    /// Shows what the CNI plugins have created on this node, Ferrule's and the reference's, and for whom.
    /// IN/OUT are the limits in bit/s, to and from the container. STATE is alive, dead, or unknown if there is neither a sign
    /// of life nor a proof of death. Tables fit the terminal; NO_COLOR switches colours off.
    ///
    /// Exit status: 0 done; 1 failed, or something could not be read; 2 wrong usage; 3 why found nothing.
    Inspect(Inspect),
    /// Remove what containers that no longer exist have left
    ///
    /// Removes exactly what `ferrule inspect leaks` lists: each object by its plugin's own code and under its lock. Before each
    /// removal it makes sure again that the container is dead. If something cannot be read, or if this process does not see
    /// the node as the node's first process does, it removes nothing.
    ///
    /// Exit status: 0 done, or nothing to do; 1 failed, or something could not be read; 2 wrong usage.
    Gc(Gc),
    /// Make again what running containers have lost of their network
    ///
    /// Makes again what CHECK refuses, after a flush of the ruleset for example: host ports, masquerading, firewall entries, limits,
    /// addresses and ports of bridges, routes. Leaves everything else as it is. Repairs a container only if a process is in its
    /// network namespace and no plugin runs for it, so that the runtime is neither starting nor ending it. If this process does not
    /// see the node as the node's first process does, it repairs nothing.
    ///
    /// Exit status: 0 all attachments are sound or repaired, or not to be checked; 1 something could not be repaired or read; 2
    /// wrong usage.
    Repair(Repair),
    /// Check the network of every running container
    ///
    /// Calls the plugins with the command CHECK for every attachment in the runtime's cache whose network namespace exists, one
    /// for each CPU at once, and prints their errors.
    ///
    /// Exit status: 0 all attachments are sound, or not to be checked; 1 a check failed, or a cached result or the namespaces
    /// of the node could not be read; 2 wrong usage.
    Check(Check),
    /// Change the limits of a running container
    ///
    /// The container keeps them until it ends, or until `none` restores the limits of its configuration. CHECK of the plugin
    /// bandwidth knows them. A direction without a limit gets one.
    ///
    /// Exit status: 0 done; 1 failed; 2 wrong usage.
    Shape(Shape),
    /// Find what this node lacks for its networks, with the remedies
    ///
    /// Looks for what keeps pods from starting, or loses their traffic, and prints the remedy for each finding: networks that no
    /// installed plugin can serve, plugins of mixed versions, missing kernel modules, tools and daemons, wrong file modes,
    /// overlapping subnets, firewalls that drop packets of pods, sysctls. It asks each plugin by VERSION and STATUS, and changes
    /// nothing. Each sound subject gets a line with "ok".
    ///
    /// Exit status: 0 no errors; 1 there are errors, or the node could not be examined; 2 wrong usage.
    Doctor(Doctor),
    /// Test the node's network with two pods of its own
    ///
    /// Attaches two pods to the network as the runtime would, sends packets between them, the node and a namespace that stands for the
    /// world outside, and detaches them: pod to pod, node to pod, forwarding, masquerade, host port, limit, MTU without fragmentation,
    /// IPv6, and a resolver if --dns names one. No other packet leaves the node; if ferrule-node knows health endpoints of other nodes,
    /// a pod connects to them. One line for each test, with the reason and the remedy of a failure. A test that was killed is undone by
    /// the next one, and by gc.
    ///
    /// Exit status: 0 no test failed; 1 a test failed, or there is nothing to test; 2 wrong usage.
    Test(support::Test),
    /// Pack what is needed to find a fault into one archive
    ///
    /// Versions, kernel, settings, what doctor, inspect and check say, the log of the last hour, rules, links and routes of the
    /// node and its pods, configurations, and the daemons' status. Names of pods, namespaces, containers, networks and nodes, and
    /// addresses are masked: equal ones have equal masks, and subnets stay subnets. Secrets never enter. Nothing is changed. It
    /// takes less than 10 seconds. What cannot be read is a line in README.txt of the archive. docs/report.md says how to read it.
    ///
    /// Exit status: 0 the archive is written; 1 failed; 2 wrong usage.
    Report(support::Report),
    /// Print the last, slowest and failed calls of the plugins, if they are logged
    ///
    /// Prints the calls in the log and in its old file: by default the last 20.
    ///
    /// The log is off by default. To switch it on, write one of these lines to
    /// /etc/cni/ferrule.conf, or the value to CNI_FERRULE_LOG in the runtime's environment:
    ///
    ///   log = file SIZE       /var/log/ferrule.log; at SIZE it becomes ferrule.log.1
    ///   log = /PATH SIZE      another file (SIZE: number of bytes, or with k, M, G; without it 10M)
    ///   log = journald
    ///   log = syslog
    ///
    /// Exit status: 0 done; 1 failed, or there is no log; 2 wrong usage.
    #[command(verbatim_doc_comment)]
    Log(Log),
    /// Count these calls for Prometheus
    ///
    /// By plugin, verb and outcome, with a histogram of how long they took, as text for Prometheus.
    ///
    /// Exit status: 0 done; 1 failed; 2 wrong usage.
    Metrics(Metrics),
    /// Turn a list of plugins into one plugin `chain`, or back
    ///
    /// Prints the conflist in the other form. Pods that were attached in one form are checked, repaired and removed in the other. Keys
    /// are sorted.
    ///
    /// Exit status: 0 done; 1 failed, or this is no list of plugins; 2 wrong usage.
    Chain(Chain),
    /// Answer questions about network policies
    #[command(subcommand)]
    Policy(policy::Policy),
    /// List the plugins in this program, with their CNI versions
    Plugins,
    /// Print the version and the SHA-256 of this program, as in BIN_DIR/.ferrule/manifest
    Version,
    /// Print the completions of a shell, such as for /etc/bash_completion.d/ferrule
    Completions {
        #[allow(missing_docs)]
        shell: Shell,
    },
    /// Write the man pages and completions of a release into a folder
    #[command(hide = true)]
    Generate {
        #[allow(missing_docs)]
        dir: PathBuf,
    },
}

const RESTORE: &str = "\
Host ports move before any file changes, and again afterwards, for pods that started in the meantime. They work all the \
time, even if a step fails: each portmap removes the host ports that it received, and Ferrule's also removes the reference's.

When another program becomes host-local, the index of Ferrule's host-local is removed from its folders. Reservations stay.

Exit status: 0 done, or nothing to do; 1 failed, no file has changed; 2 wrong usage; 3 done, except for files that have \
changed since the installation, or for host ports that had to stay in Ferrule's table.";

/// Where the node is, for a process in a container.
#[derive(Args, Debug)]
pub(super) struct Node {
    /// Work with DIR as the root folder: in a container, the node's
    #[arg(long, value_name = "DIR")]
    pub(super) root: Option<PathBuf>,
    /// The first process of a node that is a container itself [default: 1]
    // The node's root folder has the node's /proc.
    #[arg(long, value_name = "PID", value_parser = positive(), default_value_if("root", ArgPredicate::IsPresent, "1"))]
    pub(super) init: Option<u32>,
}

/// A folder of the runtime.
#[derive(Args, Debug)]
pub(super) struct Cache {
    /// The runtime's cache of results
    #[arg(long = "cache-dir", value_name = "DIR", default_value = "/var/lib/cni")]
    pub(super) dir: PathBuf,
}

/// Where plugins are.
#[derive(Args, Debug)]
pub(super) struct Programs {
    /// The folder of the plugins; may be repeated
    #[arg(long, value_name = "DIR", default_value = "/opt/cni/bin")]
    pub(super) bin_dir: Vec<PathBuf>,
}

/// Where plugins are, and how long they may take.
#[derive(Args, Debug)]
pub(super) struct Plugins {
    #[command(flatten)]
    pub(super) programs: Programs,
    /// How long a plugin may take; it is then stopped. Plugins wait for locks, at most 10 seconds
    #[arg(long, value_name = "SECONDS", default_value = "30", value_parser = positive())]
    pub(super) timeout: u32,
}

#[derive(Args, Debug)]
pub(super) struct Inspect {
    #[command(flatten)]
    pub(super) query: Query,
    /// Print one JSON document
    #[arg(long)]
    pub(super) json: bool,
    /// Print again and again, by default every 2 seconds
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, require_equals = true, default_missing_value = "2",
        value_parser = positive())]
    pub(super) watch: Option<u32>,
    #[command(flatten)]
    pub(super) state: State,
}

/// Where the state of the node's containers is.
#[derive(Args, Debug)]
pub(super) struct State {
    #[command(flatten)]
    pub(super) cache: Cache,
    /// One more folder of host-local; may be repeated
    #[arg(long = "data-dir", value_name = "DIR")]
    pub(super) data_dirs: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) node: Node,
}

/// Whether to change the node.
#[derive(Args, Debug)]
#[command(group = ArgGroup::new("mode").args(["dry_run", "yes"]).required(true))]
pub(super) struct Mode {
    /// Print what would change, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,
    /// Change it
    #[arg(long)]
    pub(super) yes: bool,
}

#[derive(Args, Debug)]
pub(super) struct Gc {
    #[command(flatten)]
    pub(super) mode: Mode,
    /// Again every SECONDS, until a signal
    #[arg(long, value_name = "SECONDS", value_parser = positive(), conflicts_with = "dry_run")]
    pub(super) every: Option<u32>,
    #[command(flatten)]
    pub(super) state: State,
}

#[derive(Args, Debug)]
pub(super) struct Repair {
    #[command(flatten)]
    pub(super) mode: Mode,
    /// Only this container: its ID or the beginning of it, or its pod as NAMESPACE/NAME or NAME
    #[arg(long, value_name = "WHO")]
    pub(super) container: Option<String>,
    /// Repair again whenever the kernel reports damage, until a signal. Prints a line for each repair
    #[arg(long, conflicts_with_all = ["dry_run", "container", "json"])]
    pub(super) watch: bool,
    /// With --watch: also every SECONDS, because iptables-legacy and most sysctls send no messages
    #[arg(long, value_name = "SECONDS", default_value = "300", value_parser = positive(), requires = "watch")]
    pub(super) every: u32,
    /// With --watch: look at the containers at most N times a minute. Further damage waits
    #[arg(long, value_name = "N", default_value = "10", value_parser = positive(), requires = "watch")]
    pub(super) per_minute: u32,
    #[command(flatten)]
    pub(super) programs: Programs,
    /// Print one JSON document
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) cache: Cache,
    #[command(flatten)]
    pub(super) node: Node,
}

#[derive(Args, Debug)]
pub(super) struct Check {
    #[command(flatten)]
    pub(super) plugins: Plugins,
    /// Also the attachments of lo, which containerd makes
    #[arg(long)]
    pub(super) all: bool,
    /// Print one JSON document
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) cache: Cache,
    #[command(flatten)]
    pub(super) node: Node,
}

#[derive(Args, Debug)]
#[command(group = ArgGroup::new("direction").args(["ingress", "egress"]).required(true).multiple(true))]
pub(super) struct Shape {
    /// Its ID or the beginning of it, or its pod as NAMESPACE/NAME or NAME
    pub(super) container: String,
    /// The limit of traffic to it, in bit/s: a number, or with k, M, G, T, Ki, Mi, Gi; or none
    #[arg(long, value_name = "RATE")]
    pub(super) ingress: Option<Rate>,
    /// The limit of traffic from it
    #[arg(long, value_name = "RATE")]
    pub(super) egress: Option<Rate>,
    /// The interface, if it has several
    #[arg(long)]
    pub(super) ifname: Option<String>,
    #[command(flatten)]
    pub(super) cache: Cache,
    #[command(flatten)]
    pub(super) node: Node,
}

#[derive(Args, Debug)]
pub(super) struct Doctor {
    /// The network configurations
    #[arg(long, value_name = "DIR", default_value = "/etc/cni/net.d")]
    pub(super) conf_dir: PathBuf,
    #[command(flatten)]
    pub(super) plugins: Plugins,
    /// Print one JSON document
    #[arg(long)]
    pub(super) json: bool,
    #[command(flatten)]
    pub(super) node: Node,
}

/// A number above 0.
fn positive() -> ValueParser {
    value_parser!(u32).range(1..).into()
}

#[cfg(test)]
mod tests;
