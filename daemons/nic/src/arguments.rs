//! The command line. The comments are the texts of `--help` and of the man page.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use ferrule_daemon::node_name;
use ferrule_kubelet::claims::{ATTACHED, DATA, Folder};

/// What the user asks for.
#[derive(Debug, Parser)]
#[command(name = "ferrule-nic", version = VERSION, args_override_self = true, before_help = concat!("ferrule-nic v", env!("CARGO_PKG_VERSION")))]
#[command(about = "A device plugin and DRA driver: advertises the node's network devices", long_about = None)]
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

/// What to do instead of being the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Print what would be advertised, and why
    Devices {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
    /// Print the claims that are prepared for pods
    Claims {
        /// Print one JSON document
        #[arg(long)]
        json: bool,
    },
}

/// The paths of the daemon.
#[derive(Args, Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The configuration: YAML or JSON
    #[arg(long, global = true, value_name = "FILE", default_value = "/etc/ferrule/nic.yaml")]
    pub config: PathBuf,
    /// The kubelet's folder of device plugins
    #[arg(
        long = "device-plugin-dir",
        global = true,
        value_name = "DIR",
        default_value = "/var/lib/kubelet/device-plugins"
    )]
    pub device_plugins: PathBuf,
    /// The kubelet's --root-dir, for PodResources
    #[arg(long = "kubelet-dir", global = true, value_name = "DIR", default_value = "/var/lib/kubelet")]
    pub kubelet: PathBuf,
    /// The tree of sysfs
    #[arg(long, global = true, value_name = "DIR", default_value = "/sys")]
    pub sysfs: PathBuf,
    /// The state file: the devices, for the next process
    #[arg(long, global = true, value_name = "FILE", default_value = "/run/ferrule/nic.json")]
    pub state: PathBuf,
    /// For DRA: the name of this node [default: NODE_NAME of the environment, then the host name]
    #[arg(long, global = true, value_name = "NAME")]
    pub node_name: Option<String>,
    /// For DRA: how to reach the API server [default: the pod's ServiceAccount]
    #[arg(long, global = true, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// For DRA: the folder of the claims' records and of what the plugin claims has made of them
    #[arg(long, global = true, value_name = "DIR", default_value = DATA)]
    pub data_dir: PathBuf,
}

impl Options {
    /// The records of claims.
    pub fn records(&self) -> Folder {
        Folder::in_data(&self.data_dir)
    }

    /// The attached files.
    pub fn attached(&self) -> PathBuf {
        self.data_dir.join(ATTACHED)
    }

    /// The node's name, as the API server knows it.
    pub fn node_name(&self) -> String {
        node_name(self.node_name.as_deref()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    fn parse(text: &str) -> Result<Arguments, clap::Error> {
        Arguments::try_parse_from(["ferrule-nic"].into_iter().chain(text.split_whitespace()))
    }

    #[test]
    fn commands_and_options() {
        Arguments::command().debug_assert();
        for text in [
            "devices --json --config=/c",
            "--config /c devices --json",
            "--config /b devices --json --config /c",
        ] {
            let Arguments { command, options, .. } = parse(text).unwrap();
            assert_eq!((command, options.config), (Some(Command::Devices { json: true }), "/c".into()));
        }
        assert_eq!(parse("").unwrap().command, None);
        for text in ["--json", "x", "--config"] {
            assert!(parse(text).is_err(), "{text}");
        }
    }
}
