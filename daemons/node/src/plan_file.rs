//! The nodes as the API server listed them last, in a file that survives a reboot: the ways and the conflist come back while the
//! API server is away. The file counts on the machine and for the node that wrote it.

use std::fs;
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::time::SystemTime;

use anyhow::{Context as _, Result, bail, ensure};
use ferrule_kernel::file;
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::cluster::{Node, Peers};
use crate::wireguard;

mod keeper;

pub use keeper::Keeper;

/// The first word of the file, which marks it as ours, and its version. Time and checksum follow, then a line of JSON.
const MARK: &str = "ferrule-node-plan 1";
/// Identifiers of the machine: a cloned disk may bring the first one along, and some machines lack the second one.
const PRODUCT: &str = "/sys/class/dmi/id/product_uuid";

/// Whose file it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of this node.
    pub node: String,
    /// A hash of the machine's identifiers.
    machine: String,
}

impl Identity {
    /// The hash of the machine's identifiers.
    pub fn into_machine(self) -> String {
        self.machine
    }

    /// `None` if the machine has no identifier.
    pub fn find(node: &str, machine_id: &Path) -> Option<Identity> {
        let texts = [machine_id, Path::new(PRODUCT)].map(|path| {
            let text = file::read_named_text(path).unwrap_or_default();
            // systemd's word for a machine that has not started yet.
            text.trim().strip_prefix("uninitialized").map_or(text.trim(), |_| "").to_owned()
        });
        let machine = Identity::hash(texts.each_ref().map(String::as_str));
        texts.iter().any(|text| !text.is_empty()).then(|| Identity { node: node.to_owned(), machine })
    }

    /// The hash of a machine's identifiers: machine-id and product.
    pub fn hash(texts: [&str; 2]) -> String {
        let mut hash = Sha256::new();
        for text in texts {
            hash.update(text);
            hash.update([0]);
        }
        hex(&hash.finalize())
    }
}

/// What the file says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remembered {
    /// When the file was written, RFC 3339.
    pub time: String,
    /// The UID of this node's object.
    pub uid: String,
    pub peers: Peers,
    /// A hash of all that but the time.
    sum: String,
}

/// The line of JSON. Its nodes have the form of the API server's list, and are checked alike.
#[derive(Deserialize)]
struct Content {
    node: String,
    machine: String,
    uid: String,
    items: Vec<Node>,
}

/// Reads the file. `None` if there is none.
///
/// # Errors
/// It is damaged, belongs to another user, node or machine, or cannot be read.
pub fn read(path: &Path, identity: &Identity) -> Result<Option<Remembered>> {
    let mut text = String::new();
    match file::open_own(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        file => file?.take(file::LIMIT).read_to_string(&mut text)?,
    };
    parse(&text, identity).map(Some)
}

fn parse(text: &str, identity: &Identity) -> Result<Remembered> {
    let head = || -> Option<(&str, &str, &str)> {
        let (head, json) = text.strip_prefix(MARK)?.split_once('\n')?;
        let (time, sum) = head.trim_start().split_once(' ')?;
        Some((time, sum, json.strip_suffix('\n')?))
    };
    let (time, found, json) = head().context("it is no plan of this version, or is damaged")?;
    let sum = hex(&Sha256::digest(json));
    ensure!(found == checksum(time, &sum), "it is damaged: the checksum is wrong");
    let content: Content = serde_json::from_str(json).context("it is damaged")?;
    if content.node != identity.node {
        bail!("it is that of node {}", content.node);
    }
    ensure!(content.machine == identity.machine, "it is that of another machine");
    let peers = content.items.into_iter().filter_map(Node::check).collect();
    Ok(Remembered { time: time.to_owned(), uid: content.uid, peers, sum })
}

/// The line of JSON, and its hash. `None` if these nodes lack this one.
fn content(identity: &Identity, peers: &Peers) -> Option<(String, String)> {
    let me = peers.get(&identity.node)?;
    let items: Vec<Item<'_>> = peers
        .iter()
        .map(|(name, peer)| Item {
            metadata: Metadata {
                name,
                created: &peer.created,
                annotations: peer.key.map(|key| Key { key: wireguard::key_text(&key) }),
            },
            spec: Spec { networks: peer.networks.iter().map(ToString::to_string).collect() },
            status: Status {
                addresses: peer
                    .addresses
                    .iter()
                    .flatten()
                    .map(|address| Address { kind: "InternalIP", address: address.to_string() })
                    .collect(),
            },
        })
        .collect();
    let Identity { node, machine } = identity;
    let whole = Whole { node, machine, uid: &me.uid, items };
    let json = serde_json::to_string(&whole).ok()?;
    let sum = hex(&Sha256::digest(&json));
    Some((json, sum))
}

#[derive(Serialize)]
struct Whole<'a> {
    node: &'a str,
    machine: &'a str,
    uid: &'a str,
    items: Vec<Item<'a>>,
}

#[derive(Serialize)]
struct Item<'a> {
    metadata: Metadata<'a>,
    spec: Spec,
    status: Status,
}

#[derive(Serialize)]
struct Metadata<'a> {
    name: &'a str,
    #[serde(rename = "creationTimestamp", skip_serializing_if = "str::is_empty")]
    created: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    annotations: Option<Key>,
}

#[derive(Serialize)]
struct Key {
    #[serde(rename = "ferrule.dev/wireguard-key")]
    key: String,
}

#[derive(Serialize)]
struct Spec {
    #[serde(rename = "podCIDRs")]
    networks: Vec<String>,
}

#[derive(Serialize)]
struct Status {
    addresses: Vec<Address>,
}

#[derive(Serialize)]
struct Address {
    #[serde(rename = "type")]
    kind: &'static str,
    address: String,
}

/// Writes the file. Replaces only a file of ours, also a damaged one.
fn write(path: &Path, json: &str, sum: &str) -> Result<()> {
    let is_foreign = match file::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error.into()),
        Ok(_) => !is_ours(path)?,
    };
    ensure!(!is_foreign, "it is not ours. Remove it, or choose another --plan-file");
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    folder.map_or(Ok(()), fs::create_dir_all)?;
    let time = humantime::format_rfc3339_seconds(SystemTime::now()).to_string();
    let text = format!("{MARK} {time} {}\n{json}\n", checksum(&time, sum));
    Ok(file::replace_durably(path, &pending(path), 0o600, text.as_bytes())?)
}

/// Whether the file has our mark. A file system may leave an empty one, or zeros, after a loss of power.
fn is_ours(path: &Path) -> Result<bool> {
    let mut start = [0; MARK.len()];
    let mut file = file::open(path)?;
    let mut len = 0;
    while len < start.len() {
        match file.read(&mut start[len..])? {
            0 => break,
            read => len += read,
        }
    }
    let word = MARK.as_bytes().split(|byte| *byte == b' ').next().unwrap_or_default();
    Ok(start.starts_with(word) || start[..len].iter().all(|byte| *byte == 0))
}

/// Removes the file if it is ours. Returns whether it was there.
///
/// # Errors
/// It cannot be read or removed.
pub fn remove(path: &Path) -> Result<bool> {
    let _ = fs::remove_file(pending(path));
    match file::open(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(false),
        Ok(_) if is_ours(path)? => fs::remove_file(path)?,
        _ => return Ok(false),
    }
    // The folder of the default path is ours alone.
    let _ = path.parent().map(fs::remove_dir);
    Ok(true)
}

fn pending(path: &Path) -> std::path::PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn checksum(time: &str, sum: &str) -> String {
    hex(&Sha256::digest(format!("{time} {sum}")))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests;
