//! The command line.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ferrule_kit::pod_resources::KUBELET;
use lexopt::Arg::{Long, Short, Value};
use lexopt::ValueExt as _;

use crate::daemon::Options;
use crate::serve::Way;

/// The text of `--help`.
pub const USAGE: &str = concat!(
    "ferrule-nic v",
    env!("CARGO_PKG_VERSION"),
    ", a device plugin: advertises the node's network devices to the kubelet

  ferrule-nic [OPTIONS]            run
  ferrule-nic devices [--json]     print what would be advertised, and why

  --config FILE             YAML or JSON (default /etc/ferrule/nic.yaml)
  --device-plugin-dir DIR   default /var/lib/kubelet/device-plugins
  --kubelet-dir DIR         the kubelet's --root-dir (default /var/lib/kubelet)
  --registration WAY        kubelet: call Register (default);
                            watcher: wait in KUBELET_DIR/plugins_registry
  --state FILE              devices in pods (default /run/ferrule/nic.json)
  --sysfs DIR               default /sys
  -h, --help                print this
"
);

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    /// Be the daemon.
    Run,
    /// List the devices.
    Devices {
        /// As JSON.
        json: bool,
    },
    /// Print [`USAGE`].
    Help,
}

/// Reads the arguments after the program's name. An error is for the user.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<(Command, Options), String> {
    let mut options = Options {
        config: "/etc/ferrule/nic.yaml".into(),
        device_plugins: Path::new(KUBELET).join("device-plugins"),
        kubelet: KUBELET.into(),
        way: Way::Kubelet,
        sysfs: "/sys".into(),
        record: "/run/ferrule/nic.json".into(),
    };
    let mut command = Command::Run;
    let mut parser = lexopt::Parser::from_args(arguments);
    let text = |error: lexopt::Error| error.to_string();
    while let Some(argument) = parser.next().map_err(text)? {
        let path = |parser: &mut lexopt::Parser| parser.value().map(PathBuf::from).map_err(text);
        match argument {
            Long("config") => options.config = path(&mut parser)?,
            Long("device-plugin-dir") => options.device_plugins = path(&mut parser)?,
            Long("kubelet-dir") => options.kubelet = path(&mut parser)?,
            Long("sysfs") => options.sysfs = path(&mut parser)?,
            Long("state") => options.record = path(&mut parser)?,
            Long("registration") => {
                options.way = match parser.value().and_then(|value| value.string()).map_err(text)?.as_str() {
                    "kubelet" => Way::Kubelet,
                    "watcher" => Way::Watcher,
                    other => return Err(format!("--registration is {other:?}, not kubelet or watcher")),
                }
            }
            Long("json") if matches!(command, Command::Devices { .. }) => {
                command = Command::Devices { json: true }
            }
            Value(word) if word == "devices" && command == Command::Run => {
                command = Command::Devices { json: false }
            }
            Short('h') | Long("help") => return Ok((Command::Help, options)),
            other => return Err(other.unexpected().to_string()),
        }
    }
    Ok((command, options))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Result<(Command, Options), String> {
        parse(text.split_whitespace().map(OsString::from))
    }

    #[test]
    fn commands_and_options() {
        let (command, options) = words("devices --json --config=/c --registration watcher").unwrap();
        assert_eq!(command, Command::Devices { json: true });
        assert_eq!((options.config, options.way), ("/c".into(), Way::Watcher));
        assert_eq!(words("").unwrap().0, Command::Run);
        assert_eq!(words("devices -h").unwrap().0, Command::Help);
        for (text, part) in [
            ("--json", "--json"),
            ("--registration x", "not kubelet or watcher"),
            ("x", "x"),
            ("--config", "config"),
        ] {
            let error = words(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
