//! The command `cnirun`: calls the plugins of one network for one network namespace.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context as _, bail};
use clap::{Args, Parser, Subcommand};
use cni_runner::{Attachment, Network, Runtime, ValidAttachment};
use serde_json::{Map, Value};
use sha2::{Digest as _, Sha512};

/// Run the CNI plugins of a network the way a container runtime does.
///
/// The network is looked up by name in the folder NETCONFPATH, its plugins in the folders of CNI_PATH. ADD
/// prints the final result as JSON; the other verbs print nothing. An error is printed to standard error,
/// with exit status 1.
#[derive(Parser)]
#[command(name = "cnirun", version)]
struct Cli {
    #[command(flatten)]
    places: Places,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Args)]
struct Places {
    /// Folder with network configurations (*.conflist, *.conf, *.json)
    #[arg(long, env = "NETCONFPATH", default_value = "/etc/cni/net.d", value_name = "DIR", global = true)]
    netconf_path: PathBuf,
    /// Folders with plugins, separated by colons
    #[arg(long, env = "CNI_PATH", default_value = "/opt/cni/bin", value_name = "DIRS", global = true)]
    cni_path: String,
    /// Folder for the cached results, from ADD to DEL
    #[arg(long, default_value = "/var/lib/cni", value_name = "DIR", global = true)]
    cache_dir: PathBuf,
}

#[derive(Subcommand)]
enum Verb {
    /// Attach the namespace to the network and print the result
    Add(Target),
    /// Check that the attachment is as ADD left it
    Check(Target),
    /// Detach the namespace from the network
    Del(Target),
    /// Remove the state of attachments that are not valid
    #[command(
        long_about = "Remove the state of attachments that are not valid: first DEL for each cached attachment of \
                      the network that is not valid, then, from CNI 1.1.0 on, GC on each plugin. Without --valid and \
                      --none-valid every cached attachment is deleted and the plugins get no list, as with cnitool."
    )]
    Gc {
        /// Name of the network
        network: String,
        /// Ignored; accepted for scripts written for cnitool
        netns: Option<PathBuf>,
        /// An attachment that is still in use; may be repeated
        #[arg(long, value_name = "CONTAINERID/IFNAME", value_parser = parse_valid)]
        valid: Vec<ValidAttachment>,
        /// Tell the plugins that no attachment is in use
        #[arg(long, conflicts_with = "valid")]
        none_valid: bool,
    },
    /// Ask the plugins whether they could serve an ADD
    Status {
        /// Name of the network
        network: String,
        /// Ignored; accepted for scripts written for cnitool
        netns: Option<PathBuf>,
    },
}

#[derive(Args)]
struct Target {
    /// Name of the network
    network: String,
    /// Path of the network namespace
    netns: PathBuf,
    /// Name of the interface in the namespace
    #[arg(short = 'i', long, env = "CNI_IFNAME", default_value = "eth0")]
    ifname: String,
    /// Container ID; by default a hash of the namespace's path, as with cnitool
    #[arg(long, value_name = "ID")]
    container_id: Option<String>,
    /// Arguments for the plugins
    #[arg(long = "args", env = "CNI_ARGS", default_value = "", value_name = "KEY=VALUE;...")]
    cni_args: String,
    /// Capability values as a JSON object
    #[arg(long, env = "CAP_ARGS", default_value = "", value_name = "JSON")]
    cap_args: String,
}

impl Target {
    fn attachment(&self) -> anyhow::Result<Attachment> {
        let netns = std::path::absolute(&self.netns).context("make the namespace's path absolute")?;
        let netns = netns.to_str().context("the namespace's path is not UTF-8")?;
        let has_two_sides =
            |pair: &str| pair.split_once('=').is_some_and(|(k, v)| !k.is_empty() && !v.is_empty());
        if !self.cni_args.is_empty() && !self.cni_args.split(';').all(has_two_sides) {
            bail!("CNI_ARGS is not a list KEY=VALUE;...: {:?}", self.cni_args);
        }
        let capabilities: Map<String, Value> = match self.cap_args.as_str() {
            "" => Map::new(),
            text => serde_json::from_str(text).context("CAP_ARGS is not a JSON object")?,
        };
        let container_id = self.container_id.clone().unwrap_or_else(|| container_id_for(netns));
        let mut attachment = Attachment::new(container_id, netns, &self.ifname).with_args(&self.cni_args);
        attachment.capabilities = capabilities;
        Ok(attachment)
    }
}

fn container_id_for(netns: &str) -> String {
    let digest = Sha512::digest(netns.as_bytes());
    let hex: String = digest.iter().take(10).map(|byte| format!("{byte:02x}")).collect();
    format!("cnitool-{hex}")
}

fn parse_valid(text: &str) -> Result<ValidAttachment, String> {
    let (id, ifname) = text.split_once('/').ok_or("expected CONTAINERID/IFNAME")?;
    Ok(ValidAttachment::new(id, ifname))
}

fn run(cli: &Cli) -> anyhow::Result<()> {
    let path = cli.places.cni_path.split(':').filter(|dir| !dir.is_empty());
    let runtime = Runtime::new(path, &cli.places.cache_dir);
    let load = |name: &str| Network::load(&cli.places.netconf_path, name);
    match &cli.verb {
        Verb::Add(target) => {
            let result = runtime.add(&load(&target.network)?, &target.attachment()?)?;
            println!("{}", serde_json::to_string_pretty(&result)?);
        }
        Verb::Check(target) => runtime.check(&load(&target.network)?, &target.attachment()?)?,
        Verb::Del(target) => runtime.del(&load(&target.network)?, &target.attachment()?)?,
        Verb::Gc { network, valid, none_valid, .. } => {
            let has_list = *none_valid || !valid.is_empty();
            runtime.gc(&load(network)?, has_list.then_some(valid.as_slice()))?;
        }
        Verb::Status { network, .. } => runtime.status(&load(network)?)?,
    }
    Ok(())
}

fn main() -> ExitCode {
    match run(&Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_container_id_is_the_same_as_cnitools() {
        // Computed with `printf /var/run/netns/testing | sha512sum`.
        assert_eq!(super::container_id_for("/var/run/netns/testing"), "cnitool-77383ca0a0715733ca6f");
    }
}
