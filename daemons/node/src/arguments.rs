//! The command line. The comments are the texts of `--help` and of the man page.

mod import;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::{Args, Parser, Subcommand, ValueEnum};
use ferrule_blocks::wire;
use ferrule_kernel::ip::IpFamily;
use ferrule_kit::cluster;
use ferrule_kit::origin::{ORIGINS, Origin, named};
use ipnetwork::IpNetwork;

pub use self::import::Import;

#[derive(Debug, Parser)]
#[command(name = "ferrule-node", version = VERSION, args_override_self = true, before_help = concat!("ferrule-node v", env!("CARGO_PKG_VERSION")))]
#[command(about = "The network of a Kubernetes cluster: the node's conflist, and the ways to the pods of the other nodes", long_about = None)]
pub struct Arguments {
    /// `None` to be the daemon.
    #[command(subcommand)]
    pub command: Option<Command>,
    #[command(flatten)]
    #[allow(missing_docs)]
    pub options: Options,
    /// Write the man pages and completions of a release into a folder
    #[arg(long, hide = true)]
    pub generate: Option<PathBuf>,
}

const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// The hidden command that [`crate::housekeeping::become_child`] carries out.
pub const CHILD: &str = "child";
/// The hidden command of [`crate::proof::serve`].
pub const ENDPOINT: &str = "endpoint";

/// The commands; without one the program is the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Print the nodes that the daemon knows, and whether they answer
    Status {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
        /// Send no echo requests
        #[arg(long)]
        no_probe: bool,
    },
    /// Remove all that the daemon made: routes, devices, table, conflist, state
    Cleanup {
        /// Remove instead what another network has left and no pod uses: flannel, kindnet, kube-router or calico
        #[arg(long, value_name = "NAME", value_parser = origin)]
        left_overs: Option<&'static Origin>,
        /// Only say what would be removed
        #[arg(long, requires = "left_overs")]
        dry_run: bool,
    },
    /// Claim blocks of addresses for the plugin shared. This runs beside the daemon, or without it
    Blocks(Blocks),
    /// Claim the blocks in which whereabouts has addresses, so that the plugin shared never gives them
    Import(Import),
    /// Make or remove the health endpoint
    #[command(name = ENDPOINT, hide = true)]
    Endpoint,
    /// Become another program, which ends with the process PARENT
    #[command(name = CHILD, hide = true)]
    Child {
        /// Its ID
        parent: i32,
        /// The program
        program: OsString,
        /// Its arguments
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<OsString>,
    },
}

fn origin(name: &str) -> Result<&'static Origin, String> {
    let known = || ORIGINS.iter().map(|origin| origin.name).collect::<Vec<_>>().join(", ");
    named(name).ok_or_else(|| format!("known are {}", known()))
}

/// How packets get to the pods of another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Mode {
    /// A route to a node on the same link, VXLAN to a node behind a gateway
    Auto,
    /// Routes only; a node behind a gateway is refused
    Routes,
    /// VXLAN to all nodes
    Vxlan,
    /// WireGuard to all nodes: encrypted
    Wireguard,
}

/// The plugin of the built-in conflist that makes the pod's interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Main {
    /// ptp; bridge while bridged pods run on this node
    Auto,
    /// All pods of the node on one bridge
    Bridge,
    /// A pair of links for each pod
    Ptp,
}

/// The families in which packets that leave the cluster get the node's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Families {
    /// IPv4 and IPv6
    Both,
    /// IPv4 alone
    Ipv4,
    /// IPv6 alone
    Ipv6,
    /// Neither
    None,
}

impl Families {
    /// Whether the family is one of them.
    pub fn has(self, family: IpFamily) -> bool {
        matches!(
            (self, family),
            (Families::Both, _) | (Families::Ipv4, IpFamily::V4) | (Families::Ipv6, IpFamily::V6)
        )
    }
}

/// Whether something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    /// Yes
    On,
    /// No
    Off,
}

/// The modes of NetworkPolicies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Policies {
    /// They are enforced
    On,
    /// Nothing is denied, and what would be denied is counted
    Dry,
    /// Nothing
    Off,
}

/// The options of `blocks`.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// The folder of the ledgers, which the plugin reads
    #[arg(long, value_name = "DIR", default_value = wire::FOLDER)]
    pub ledgers: PathBuf,
    /// The socket on which the plugin asks for blocks
    #[arg(long, value_name = "FILE", default_value = wire::SOCKET)]
    pub socket: PathBuf,
    /// Where this command's /metrics, /healthz and /readyz are
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9478")]
    pub metrics: SocketAddr,
    /// How often the ledgers are compared with the API server's objects
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub compare_every: u64,
    /// How long a block that is not needed has to be empty before it is given back
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub keep_empty: u64,
    /// As --keep-empty, while no more blocks are free than nodes want
    #[arg(long, hide = true, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub keep_scarce: u64,
    /// How long the Node of a machine that is off must have the taint out-of-service before others get its blocks
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub quarantine: u64,
}

/// The options of the daemon; `status` and `cleanup` use some of them.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The name of this node [default: NODE_NAME of the environment, then the host name]
    #[arg(long, global = true, value_name = "NAME")]
    pub node_name: Option<String>,
    /// How to reach the API server [default: the pod's ServiceAccount]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// API servers instead of the one of the kubeconfig or of the pod; the next one if one fails
    #[arg(long, global = true, value_name = "URL", value_delimiter = ',')]
    pub api_server: Vec<String>,
    /// How packets get to the pods of other nodes
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub mode: Mode,
    /// The conflist that the daemon writes
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/cni/net.d/10-ferrule.conflist")]
    pub conflist: PathBuf,
    /// A conflist in which the daemon sets ipam.ranges, ipMasq and mtu [default: built in]
    #[arg(long, global = true, value_name = "FILE")]
    pub template: Option<PathBuf>,
    /// The built-in conflist's plugin for the pod's interface
    #[arg(long, global = true, value_enum, default_value = "auto")]
    pub main: Main,
    /// The built-in conflist has one plugin, chain, which runs the others in one process; off: a list
    #[arg(long, global = true, value_enum, default_value = "on")]
    pub chain: Switch,
    /// The MTU of the pods [default: that of the uplink, less what VXLAN or WireGuard takes]
    #[arg(long, global = true, value_name = "BYTES", value_parser = clap::value_parser!(u32).range(1280..=65535))]
    pub mtu: Option<u32>,
    /// The families in which packets that leave the cluster get the node's address
    #[arg(long, global = true, value_enum, default_value = "both")]
    pub masquerade: Families,
    /// Networks outside of the cluster that see the pods' addresses
    #[arg(long, global = true, value_name = "CIDR", value_delimiter = ',')]
    pub masquerade_exclude: Vec<IpNetwork>,
    /// Further networks of the cluster
    #[arg(long, global = true, value_name = "CIDR", value_delimiter = ',')]
    pub cluster_cidr: Vec<IpNetwork>,
    /// The Services' networks: a podCIDR that overlaps is refused
    #[arg(long, global = true, value_name = "CIDR", value_delimiter = ',')]
    pub service_cidr: Vec<IpNetwork>,
    /// Drop what a pod sends with a source that is not its own; needs a link for each pod, as ptp makes it
    #[arg(long, global = true, value_enum, default_value = "off")]
    pub source_guard: Switch,
    /// Sources that every pod of the cluster may have besides
    #[arg(long, global = true, value_name = "CIDR", value_delimiter = ',')]
    pub source_guard_allow: Vec<IpNetwork>,
    /// Enforce NetworkPolicies: the conflist isolates new pods, and the daemon decides what passes. Includes the source guard. `dry` denies
    /// nothing, and counts what would be denied
    #[arg(long, global = true, value_enum, default_value = "off")]
    pub policy: Policies,
    /// Log what policies deny: the first packet of a flow, of each pod two a second at most
    #[arg(long, global = true, value_enum, default_value = "off")]
    pub policy_log: Switch,
    /// The UDP port of VXLAN
    #[arg(long, global = true, value_name = "PORT", default_value_t = 4789, value_parser = clap::value_parser!(u16).range(1..))]
    pub vxlan_port: u16,
    /// The network identifier (VNI) of VXLAN
    #[arg(long, global = true, value_name = "ID", default_value_t = 7471, value_parser = clap::value_parser!(u32).range(1..1 << 24))]
    pub vxlan_id: u32,
    /// The UDP port of WireGuard
    #[arg(long, global = true, value_name = "PORT", default_value_t = 51871, value_parser = clap::value_parser!(u16).range(1..))]
    pub wireguard_port: u16,
    /// The file of this node's WireGuard key; the daemon makes it
    #[arg(long, global = true, value_name = "FILE", default_value = "/var/lib/ferrule/wireguard.key")]
    pub wireguard_key: PathBuf,
    /// Whether a health endpoint in a pod's place proves that pods can talk. It takes two addresses of each podCIDR
    #[arg(long, global = true, value_enum, default_value = "on")]
    pub health: Switch,
    /// The folder of the plugins that attach the health endpoint [default: that of --ferrule, then /opt/cni/bin]
    #[arg(long, global = true, value_name = "DIR")]
    pub plugins: Option<PathBuf>,
    /// Where /metrics, /healthz and /readyz are
    #[arg(long, global = true, value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9477")]
    pub listen: SocketAddr,
    /// The folder of status.json
    #[arg(long, global = true, value_name = "DIR", default_value = cluster::STATE)]
    pub state: PathBuf,
    /// The nodes of the API server's last answer, for a start while it is away
    #[arg(long, global = true, value_name = "FILE", default_value = "/var/lib/ferrule/node/plan")]
    pub plan_file: PathBuf,
    /// The file of the machine's identifier: the plan file of another machine does not count
    #[arg(long, global = true, hide = true, value_name = "FILE", default_value = "/etc/machine-id")]
    pub machine_id: PathBuf,
    /// How often `ferrule gc` runs; 0 for never
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 3600, value_parser = clap::value_parser!(u64).range(..=31_536_000))]
    pub gc_every: u64,
    /// Do not run `ferrule repair`
    #[arg(long, global = true)]
    pub no_repair: bool,
    /// The program `ferrule` for gc and repair [default: beside ferrule-node, then /opt/cni/bin/ferrule]
    #[arg(long, global = true, value_name = "FILE")]
    pub ferrule: Option<PathBuf>,
    /// The node's root file system, for gc, repair, the health endpoint and the machine ID in a container
    #[arg(long, global = true, value_name = "DIR")]
    pub root: Option<PathBuf>,
    /// A watch that says nothing for so long is opened anew
    #[arg(long, global = true, hide = true, value_name = "SECONDS", default_value_t = 150, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub watch_idle: u64,
    /// The longest pause between two attempts to reach an API server
    #[arg(long, global = true, hide = true, value_name = "SECONDS", default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub longest_pause: u64,
    /// How long a node may be away while it restarts, and a fifth of the time in which it counts as new
    #[arg(long, global = true, hide = true, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86400))]
    pub patience: u64,
}

impl Options {
    /// The node's file with this path, as the daemon sees it.
    pub fn seen(&self, path: &Path) -> PathBuf {
        match &self.root {
            Some(root) => root.join(path.strip_prefix("/").unwrap_or(path)),
            None => path.to_owned(),
        }
    }

    /// Whether pods may send with their own sources only.
    pub fn guards_sources(&self) -> bool {
        // Policies judge by addresses.
        self.source_guard == Switch::On || self.policy == Policies::On
    }

    /// Checks the networks.
    ///
    /// # Errors
    /// A network has host bits, or covers every address.
    pub fn check(&self) -> Result<()> {
        let lists = [
            ("--masquerade-exclude", &self.masquerade_exclude),
            ("--cluster-cidr", &self.cluster_cidr),
            ("--service-cidr", &self.service_cidr),
            ("--source-guard-allow", &self.source_guard_allow),
        ];
        for (option, network) in
            lists.into_iter().flat_map(|(option, list)| list.iter().map(move |n| (option, n)))
        {
            if network.network() != network.ip() {
                bail!(
                    "{option} {network}: it has host bits; did you mean {}/{}?",
                    network.network(),
                    network.prefix()
                );
            }
            if network.prefix() == 0 {
                bail!("{option} {network}: it covers every address");
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(text: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["ferrule-node"].into_iter().chain(text.split_whitespace()))
    }

    #[test]
    fn commands_and_options() {
        Arguments::command().debug_assert();
        let Arguments { command, options, .. } =
            parse("status --json --cluster-cidr 10.0.0.0/8,fd00::/8 --mode vxlan").unwrap();
        assert_eq!(command, Some(Command::Status { json: true, no_probe: false }));
        assert_eq!((options.mode, options.cluster_cidr.len()), (Mode::Vxlan, 2));
        assert_eq!(parse("").unwrap().command, None);
        assert!(matches!(
            parse("cleanup --left-overs flannel --dry-run").unwrap().command,
            Some(Command::Cleanup { left_overs: Some(origin), dry_run: true }) if origin.name == "flannel"
        ));
        for text in [
            "cleanup --dry-run",
            "cleanup --left-overs cilium",
            "--json",
            "x",
            "--mode bgp",
            "--mtu 100",
            "--vxlan-id 16777216",
            "--cluster-cidr x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_nodes_files_are_below_its_root() {
        for (text, seen) in [("", "/etc/machine-id"), ("--root=/proc/1/root", "/proc/1/root/etc/machine-id")]
        {
            let options = parse(text).unwrap().options;
            assert_eq!(options.seen(&options.machine_id), Path::new(seen));
        }
    }

    #[test]
    fn policies_need_the_source_guard() {
        for (text, guards) in [
            ("", false),
            ("--policy on", true),
            ("--policy on --source-guard off", true),
            ("--source-guard on", true),
        ] {
            assert_eq!(parse(text).unwrap().options.guards_sources(), guards, "{text}");
        }
    }

    #[test]
    fn invalid_networks_are_refused() {
        for (text, said) in [
            ("--cluster-cidr 10.0.0.1/8", "--cluster-cidr 10.0.0.1/8: it has host bits"),
            ("--masquerade-exclude ::/0", "it covers every address"),
        ] {
            let error = parse(text).unwrap().options.check().unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
        parse("--service-cidr 10.96.0.0/12").unwrap().options.check().unwrap();
    }
}
