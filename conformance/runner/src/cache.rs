//! The cache of ADD results for CHECK, DEL and GC: one file per attachment, with the paths and the format of
//! libcni.

use std::fs;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{Attachment, Network};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;

const KIND: &str = "cniCacheV1";

/// The cache in a folder; libcni's default is `/var/lib/cni`.
#[derive(Debug, Clone)]
pub struct Cache {
    results: PathBuf,
}

/// One cached attachment.
#[derive(Debug, Clone, PartialEq)]
pub struct CachedAttachment {
    /// The network's name.
    pub network: String,
    /// The attachment that ADD was called for.
    pub attachment: Attachment,
    /// The final result of the chain.
    pub result: Option<Value>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Entry {
    kind: String,
    container_id: String,
    #[serde(default)]
    config: String,
    if_name: String,
    network_name: String,
    #[serde(default, skip_serializing_if = "String::is_empty")]
    netns: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    cni_args: Vec<[String; 2]>,
    #[serde(default, skip_serializing_if = "Map::is_empty")]
    capability_args: Map<String, Value>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    result: Option<Value>,
}

impl Cache {
    /// The cache below a folder, which is created on the first write.
    pub fn new(dir: impl AsRef<Path>) -> Cache {
        Cache { results: dir.as_ref().join("results") }
    }

    /// The path of an attachment's file.
    pub fn file(&self, network: &str, attachment: &Attachment) -> PathBuf {
        self.results.join(format!("{network}-{}-{}", attachment.container_id, attachment.ifname))
    }

    pub(super) fn store(
        &self,
        network: &Network,
        attachment: &Attachment,
        result: &Value,
    ) -> anyhow::Result<()> {
        let entry = Entry {
            kind: KIND.to_owned(),
            container_id: attachment.container_id.clone(),
            config: BASE64_STANDARD.encode(&network.source),
            if_name: attachment.ifname.clone(),
            network_name: network.name.clone(),
            netns: attachment.netns.clone(),
            cni_args: attachment.arg_pairs(),
            capability_args: attachment.capabilities.clone(),
            result: Some(result.clone()),
        };
        let path = self.file(&network.name, attachment);
        let write = || -> anyhow::Result<()> {
            fs::create_dir_all(&self.results)?;
            let mut file =
                fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&path)?;
            Ok(file.write_all(&serde_json::to_vec(&entry)?)?)
        };
        write().with_context(|| format!("cache the result in {}", path.display()))
    }

    /// The result of an earlier ADD; `None` if the file does not exist or cannot be parsed.
    pub fn result(&self, network: &str, attachment: &Attachment) -> Option<Value> {
        read(&self.file(network, attachment))?.result
    }

    pub(super) fn remove(&self, network: &str, attachment: &Attachment) -> anyhow::Result<()> {
        let path = self.file(network, attachment);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(error).with_context(|| format!("remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// All attachments of a network, sorted by file name. Files that cannot be parsed are skipped.
    pub fn attachments(&self, network: &str) -> anyhow::Result<Vec<CachedAttachment>> {
        let entries = match fs::read_dir(&self.results) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            entries => entries.with_context(|| format!("list {}", self.results.display()))?,
        };
        let mut files: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
        files.sort();
        let cached = files.iter().filter_map(|file| read(file));
        Ok(cached.filter(|cached| cached.network == network).collect())
    }
}

fn read(file: &Path) -> Option<CachedAttachment> {
    let entry: Entry = serde_json::from_slice(&fs::read(file).ok()?).ok()?;
    if entry.kind != KIND {
        return None;
    }
    let args: Vec<_> = entry.cni_args.iter().map(|pair| pair.join("=")).collect();
    Some(CachedAttachment {
        network: entry.network_name,
        attachment: Attachment {
            container_id: entry.container_id,
            netns: entry.netns,
            ifname: entry.if_name,
            args: args.join(";"),
            capabilities: entry.capability_args,
        },
        result: entry.result,
    })
}
