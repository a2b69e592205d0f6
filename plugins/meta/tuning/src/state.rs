//! The state file: the former attributes of the link, which DEL restores.
//!
//! `<dataDir>/<container ID>_<ifname>.json` has the reference's keys `mac`, `promisc`, `mtu`, `allmulti` and
//! `txQLen`, so each implementation restores what the other one changed. Four more keys, which the reference ignores,
//! name the network for GC and have the MTU of the host's end, the offload features, and the sysctls that the kernel shows in another
//! form than the configuration. Other sysctls need no file.

use std::path::{Path, PathBuf};

use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::{CniError, Json, ValidAttachment};
use ferrule_kit::state_file::{self, JSON, StateFile};
use serde::{Deserialize, Serialize};

use crate::attributes::{self, Attributes};
use crate::offload::Switches;
use crate::sysctl::Kept;

/// What DEL restores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Former {
    /// The former attributes of the container's link.
    #[serde(flatten, skip_deserializing)]
    pub link: Attributes,
    /// The former MTU of the host's end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host_mtu: Option<u32>,
    /// The former offload features of the container's link, by the kernel's names.
    #[serde(skip_serializing_if = "Switches::is_empty")]
    pub offload: Switches,
    /// What CHECK accepts beside the configured values of sysctls.
    #[serde(skip_serializing_if = "Kept::is_empty")]
    pub sysctl: Kept,
    /// The network; empty in a file of the reference.
    pub network: String,
}

impl Former {
    /// `None` if the file's content is not a state.
    fn read(bytes: &[u8]) -> Option<Former> {
        let json = Json::parse(bytes).ok()?;
        let former: Former = json.decode().ok()?;
        Some(Former { link: Attributes::read(&json).ok()?, ..former })
    }

    /// As [`Former::read`]. Also `None` if the content has no key of a state of ours or of the reference, or another key.
    fn of_tuning(bytes: &[u8]) -> Option<Former> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).ok()?;
        let is_known = |key: &String| {
            attributes::is_key(key) || ["hostMtu", "offload", "sysctl", "network"].contains(&key.as_str())
        };
        (!object.is_empty() && object.keys().all(is_known)).then(|| Former::read(bytes)).flatten()
    }

    /// The reference's form: indented by one space, without a newline at the end.
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let formatter = serde_json::ser::PrettyFormatter::with_indent(b" ");
        // Cannot fail: the keys are texts, and a Vec takes all bytes.
        let _ = self.serialize(&mut serde_json::Serializer::with_formatter(&mut bytes, formatter));
        bytes
    }
}

/// The state file of an attachment.
pub struct State<'a> {
    network: &'a str,
    file: StateFile,
}

impl<'a> State<'a> {
    /// The file, which need not exist.
    pub fn new(data_dir: &Path, attachment: &Attachment<'a>) -> Self {
        let stem = stem(attachment.container_id, attachment.ifname);
        let network = attachment.network;
        State { network, file: StateFile::new(data_dir, &stem, JSON, network) }
    }

    /// The former values. `None` if there is no file, or if its content is not a state.
    ///
    /// # Errors
    /// Code 5 if the file cannot be read.
    pub fn read(&self) -> Result<Option<Former>, CniError> {
        Ok(self.file.read()?.and_then(|bytes| Former::read(&bytes)))
    }

    /// Adds the values to the file. Keeps the values that it has already: an earlier ADD or an earlier tuning
    /// plugin of the chain has saved them before it changed anything. Only of a sysctl the new form counts. Returns the former content.
    ///
    /// # Errors
    /// Code 5 if the file cannot be written.
    pub fn save(&self, values: Former) -> Result<Option<Vec<u8>>, CniError> {
        let content = self.file.read()?;
        let first = content.as_deref().and_then(Former::read).unwrap_or_default();
        let mut offload = values.offload;
        offload.extend(first.offload);
        let mut sysctl = first.sysctl;
        sysctl.extend(values.sysctl);
        let merged = Former {
            link: first.link.or(&values.link),
            host_mtu: first.host_mtu.or(values.host_mtu),
            offload,
            sysctl,
            network: self.network.to_owned(),
        };
        let bytes = merged.to_bytes();
        if content.as_ref() != Some(&bytes) {
            self.file.write(&bytes)?;
        }
        Ok(content)
    }

    /// Puts the former content back after a failed ADD.
    pub fn undo(&self, former: Option<Vec<u8>>) {
        let undone = former.map_or_else(|| self.remove(), |bytes| self.file.write(&bytes));
        if let Err(error) = undone {
            remark!("tuning: after a failed ADD: {error}");
        }
    }

    /// Removes the file, if it exists, and what a killed ADD has left of it.
    ///
    /// # Errors
    /// Code 5 if one cannot be removed.
    pub fn remove(&self) -> Result<(), CniError> {
        self.file.remove()
    }
}

/// The file name of an attachment's state without its extension.
fn stem(container_id: &str, ifname: &str) -> String {
    format!("{container_id}_{ifname}")
}

/// A file in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub path: PathBuf,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
    /// The network; `None` in a file of the reference.
    pub network: Option<String>,
}

/// Lists the state files of all networks. A missing folder has none, and files with other content are not ours.
pub fn list(data_dir: &Path) -> Vec<Listed> {
    let read = |(path, bytes): (PathBuf, Vec<u8>)| {
        // A container ID may contain underscores too, but interface names rarely do.
        let (container_id, ifname) = path.file_stem()?.to_str()?.rsplit_once('_')?;
        let (container_id, ifname) = (container_id.to_owned(), ifname.to_owned());
        let network = Some(Former::of_tuning(&bytes)?.network).filter(|network| !network.is_empty());
        Some(Listed { path, container_id, ifname, network })
    };
    state_file::list(data_dir, JSON).filter_map(read).collect()
}

/// Removes the files of the network's attachments that are not valid. Files of the reference do not name their network,
/// so those stay.
///
/// # Errors
/// All files that could not be read or removed; every one is tried.
pub fn collect(data_dir: &Path, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let valid = Attachment::keys(network, valid, |one| stem(one.container_id, one.ifname));
    let is_own = |bytes: &[u8]| Ok(Former::read(bytes).is_some_and(|former| former.network == network));
    state_file::collect(data_dir, network, |own| valid.contains(own), is_own)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ferrule_kit::state_file::pending_extension;

    use super::*;
    use crate::sysctl::Rewritten;

    const ONE: Attachment<'_> = Attachment { network: "net", container_id: "one", ifname: "eth0" };

    const REFERENCE: &str = "{\n \"mac\": \"f6:37:6d:41:b9:2f\",\n \"promisc\": false,\n \"mtu\": 1500,\n \
                             \"allmulti\": false,\n \"txQLen\": 1000";

    fn all() -> Former {
        let theirs = Former::read(format!("{REFERENCE}\n}}").as_bytes()).unwrap();
        Former { host_mtu: Some(1500), network: "net".to_owned(), ..theirs }
    }

    fn link(keys: &str) -> Attributes {
        Former::read(keys.as_bytes()).unwrap().link
    }

    #[test]
    fn content_begins_with_the_references() {
        let text = String::from_utf8(all().to_bytes()).unwrap();
        assert_eq!(text, format!("{REFERENCE},\n \"hostMtu\": 1500,\n \"network\": \"net\"\n}}"));
        assert_eq!(Former::read(text.as_bytes()), Some(all()));
    }

    #[test]
    fn the_first_values_stay() {
        let dir = tempfile::tempdir().unwrap();
        let file = State::new(&dir.path().join("a/b"), &ONE);
        assert_eq!(file.read().unwrap(), None);
        let network = "net".to_owned();
        let first = Former { link: link("{\"mtu\":1500}"), network, ..Former::default() };
        assert_eq!(file.save(first.clone()).unwrap(), None);
        let offload = |on| Switches::from([("rx-gro".to_owned(), on)]);
        let second = link("{\"mtu\":1400,\"txQLen\":7}");
        let one = Former { link: second, host_mtu: Some(9000), offload: offload(true), ..first.clone() };
        let former = file.save(one.clone()).unwrap();
        file.save(Former { offload: offload(false), ..one.clone() }).unwrap();
        let merged = link("{\"mtu\":1500,\"txQLen\":7}");
        assert_eq!(file.read().unwrap(), Some(Former { link: merged, ..one.clone() }));
        let rewritten = |read: &str| Rewritten { written: "02".to_owned(), read: read.to_owned() };
        let kept = |read| Kept::from([("net/x".to_owned(), rewritten(read))]);
        file.save(Former { sysctl: kept("2"), ..one.clone() }).unwrap();
        file.save(Former { sysctl: kept("3"), ..one.clone() }).unwrap();
        file.save(one).unwrap();
        assert_eq!(file.read().unwrap().map(|former| former.sysctl), Some(kept("3")));
        assert_eq!(list(&dir.path().join("a/b")).len(), 1);
        file.undo(former);
        assert_eq!(file.read().unwrap(), Some(first));
        file.undo(None);
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 0);
    }

    #[test]
    fn a_broken_file_counts_as_absent() {
        let dir = tempfile::tempdir().unwrap();
        let file = State::new(dir.path(), &ONE);
        for broken in ["", "{", "[]", "{\"mtu\":\"x\"}"] {
            fs::write(dir.path().join("one_eth0.json"), broken).unwrap();
            assert_eq!(file.read().unwrap(), None, "{broken}");
        }
        file.save(all()).unwrap();
        assert_eq!(file.read().unwrap(), Some(all()));
    }

    #[test]
    fn gc_removes_the_networks_files_without_a_valid_attachment() {
        let dir = tempfile::tempdir().unwrap();
        for (network, container_id) in [("net", "one"), ("net", "two"), ("other", "three")] {
            let attachment = Attachment { network, container_id, ifname: "eth0" };
            State::new(dir.path(), &attachment).save(all()).unwrap();
            let draft = format!("{container_id}_eth0.json{}", pending_extension(network));
            fs::write(dir.path().join(draft), "").unwrap();
        }
        fs::write(dir.path().join("go_eth0.json"), "{\n \"mtu\": 1500\n}").unwrap();
        for foreign in ["{}", "{\n \"mtu\": 1500,\n \"cluster\": 1\n}", "[1]", ""] {
            fs::write(dir.path().join("my_settings.json"), foreign).unwrap();
            assert!(list(dir.path()).iter().all(|file| file.container_id != "my"), "{foreign}");
        }
        fs::remove_file(dir.path().join("my_settings.json")).unwrap();
        let mut listed: Vec<_> =
            list(dir.path()).into_iter().map(|f| (f.container_id, f.ifname, f.network)).collect();
        listed.sort();
        let listed: Vec<_> =
            listed.iter().map(|(id, ifname, net)| (&**id, &**ifname, net.as_deref())).collect();
        let [one, two] = ["one", "two"].map(|id| (id, "eth0", Some("net")));
        assert_eq!(listed, [("go", "eth0", None), one, ("three", "eth0", Some("other")), two]);
        let valid = [ValidAttachment { container_id: "two".to_owned(), ifname: "eth0".to_owned() }];
        collect(dir.path(), "net", &valid).unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        let [two, three] = ["net", "other"].map(pending_extension);
        let expected = [
            "go_eth0.json".to_owned(),
            "three_eth0.json".to_owned(),
            format!("three_eth0.json{three}"),
            "two_eth0.json".to_owned(),
            format!("two_eth0.json{two}"),
        ];
        assert_eq!(left, expected);
        collect(&dir.path().join("missing"), "net", &[]).unwrap();
    }
}
