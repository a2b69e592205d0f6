//! The configurations of the networks, and what the daemons say.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use ferrule_kernel::file;
use ferrule_kit::cluster::{STATE, STATUS_FILE};
use serde_json::{Value, json};

use super::collect::{File, Found, unread};
use super::mask::names::Class;
use crate::doctor::networks;

/// Files in which daemons say how they are.
const STATUS_FILES: [(&str, &str); 1] = [("node/status.json", STATUS_FILE)];
/// Where `ferrule-node` answers by default.
const NODE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9477);
const LIMIT: Duration = Duration::from_secs(2);
/// The most bytes of an answer.
const LONGEST: u64 = 1 << 20;

/// The members whose texts are shown: those of CNI, of the reference's plugins and of ours. All others may have secrets.
const SHOWN: &[&str] = &[
    "address",
    "addresses",
    "backend",
    "bandwidth",
    "bridge",
    "capabilities",
    "cidr",
    "cniVersion",
    "cniVersions",
    "dataDir",
    "device",
    "dns",
    "domain",
    "dst",
    "egressBurst",
    "egressRate",
    "end",
    "firewallBackend",
    "firewallZone",
    "gateway",
    "gw",
    "hostInterface",
    "ifname",
    "ingressBurst",
    "ingressRate",
    "ingressPolicy",
    "iptablesAdminChainName",
    "ipam",
    "ipMasqBackend",
    "kernelpath",
    "linkInContainer",
    "mac",
    "master",
    "mode",
    "mtu",
    "name",
    "nameservers",
    "node",
    "options",
    "pciBusID",
    "plugins",
    "portMappings",
    "range",
    "rangeStart",
    "rangeEnd",
    "ranges",
    "routes",
    "runtimeDeviceId",
    "scope",
    "search",
    "subnet",
    "subnetFile",
    "sysctl",
    "table",
    "type",
    "vlanTrunk",
    "vrfname",
];
/// What stands in the place of a text that may be a secret.
const LEFT_OUT: &str = "(left out)";

/// The networks as libcni reads them.
pub(super) fn networks(folder: &Path) -> Found {
    let (networks, findings) = networks::read(folder);
    let mut found = Found::default();
    let documents: Vec<Value> = networks
        .iter()
        .map(|network| {
            found.names.push((Class::Network, network.name.clone()));
            let plugins: Vec<Value> = network.plugins.iter().map(|plugin| shown(plugin, true)).collect();
            json!({"file": network.file.display().to_string(), "name": network.name, "cniVersion": network.version, "plugins": plugins})
        })
        .collect();
    found.failures =
        findings.iter().map(|finding| format!("{}: {}", finding.subject, finding.problem)).collect();
    found.files.push(File::json("conflists.json", documents.into()));
    found
}

/// A part of a configuration without texts that may be secrets. The values of `sysctl` have names of their own.
fn shown(value: &Value, is_shown: bool) -> Value {
    match value {
        Value::Object(members) => {
            let member = |(key, value): (&String, &Value)| {
                let is_shown = is_shown && (SHOWN.contains(&key.as_str()) || is_sysctl(key));
                (key.clone(), shown(value, is_shown))
            };
            Value::Object(members.iter().map(member).collect())
        }
        Value::Array(values) => values.iter().map(|value| shown(value, is_shown)).collect(),
        Value::String(_) if !is_shown => LEFT_OUT.into(),
        other => other.clone(),
    }
}

fn is_sysctl(key: &str) -> bool {
    key.starts_with("net.") || key.starts_with("net/")
}

/// The status file of `ferrule-node`, or null.
pub(super) fn status() -> Value {
    let bytes = file::read(&Path::new(STATE).join(STATUS_FILE)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// What `ferrule-node` has written, and what it answers.
pub(super) fn daemons() -> Found {
    let mut found = Found::default();
    for (name, status) in STATUS_FILES {
        let path = Path::new(STATE).join(status);
        let read = file::read(&path).map_err(|error| error.to_string());
        let document =
            read.and_then(|bytes| serde_json::from_slice::<Value>(&bytes).map_err(|error| error.to_string()));
        let document = document.unwrap_or_else(|why| unread(format!("{}: {why}", path.display())));
        found.files.push(File::json(name, document));
    }
    for path in ["readyz", "metrics"] {
        let answer = get(NODE, path).unwrap_or_else(|error| format!("http://{NODE}/{path}: {error}\n"));
        found.files.push(File::text(format!("node/{path}.txt"), answer));
    }
    found
}

fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&address, LIMIT)?;
    stream.set_read_timeout(Some(LIMIT))?;
    stream.set_write_timeout(Some(LIMIT))?;
    write!(stream, "GET /{path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(String::from_utf8_lossy(&answer).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_texts_are_left_out() {
        let plugin = json!({"type": "bridge", "mtu": 1400, "isGateway": true, "etcd_key": "S1", "args": {"cni": {"x": "S2"}},
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.1.0.0/16"}]], "odd": ["S3", 4]},
            "sysctl": {"net.core.somaxconn": "500", "S4": "S5"}, "odd": {"name": "S6"}});
        let shown = shown(&plugin, true);
        let text = shown.to_string();
        for secret in ["S1", "S2", "S3", "S5", "S6"] {
            assert!(!text.contains(secret), "{secret}: {text}");
        }
        assert_eq!(
            (&shown["ipam"]["ranges"][0][0]["subnet"], &shown["mtu"]),
            (&json!("10.1.0.0/16"), &json!(1400))
        );
        assert_eq!(shown["sysctl"]["net.core.somaxconn"], "500");
    }
}
