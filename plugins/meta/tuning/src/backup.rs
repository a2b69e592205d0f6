//! The backup file: the former attributes of the link, which DEL restores.
//!
//! `<dataDir>/<container ID>_<ifname>.json` has the reference's keys `mac`, `promisc`, `mtu`, `allmulti` and
//! `txQLen`, so each implementation restores what the other one changed. Three more keys, which the reference ignores,
//! name the network for GC and have the MTU of the host's end and the offload features.

use std::path::{Path, PathBuf};

use cni_common::plugin::Attachment;
use cni_common::spec::{CniError, Json, ValidAttachment};
use ferrule_kit::state_file::{self, StateFile};
use serde::{Deserialize, Serialize};

use crate::attributes::Attributes;
use crate::offload::Switches;

/// What DEL restores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Backup {
    /// The former attributes of the container's link.
    pub link: Attributes,
    /// The former MTU of the host's end.
    pub host_mtu: Option<u32>,
    /// The former offload features of the container's link, by the kernel's names.
    pub offload: Switches,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    #[serde(skip_serializing_if = "String::is_empty")]
    mac: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    promisc: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mtu: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allmulti: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    tx_q_len: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    host_mtu: Option<u32>,
    #[serde(skip_serializing_if = "Switches::is_empty")]
    offload: Switches,
    network: String,
}

/// The keys of [`Wire`]; the reference writes the first five.
const KEYS: [&str; 8] = ["mac", "promisc", "mtu", "allmulti", "txQLen", "hostMtu", "offload", "network"];

impl Wire {
    fn new(network: &str, backup: &Backup) -> Wire {
        let Backup { link, host_mtu, offload } = backup;
        Wire {
            mac: link.mac.map_or(String::new(), |mac| mac.to_string()),
            promisc: link.promiscuous,
            mtu: link.mtu,
            allmulti: link.all_multicast,
            tx_q_len: link.tx_queue_len,
            host_mtu: *host_mtu,
            offload: offload.clone(),
            network: network.to_owned(),
        }
    }

    /// As [`Wire::read`]. Also `None` if the content has other keys than a backup of ours or of the reference, or none of them.
    fn of_tuning(bytes: &[u8]) -> Option<Wire> {
        let object: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(bytes).ok()?;
        let is_known = |key: &String| KEYS.contains(&key.as_str());
        (!object.is_empty() && object.keys().all(is_known)).then(|| Wire::read(bytes)).flatten()
    }

    /// `None` if the file's content is not a backup.
    fn read(bytes: &[u8]) -> Option<Wire> {
        Json::parse(bytes).ok()?.decode().ok()
    }

    fn backup(&self) -> Backup {
        let link = Attributes {
            mac: self.mac.parse().ok(),
            promiscuous: self.promisc,
            mtu: self.mtu,
            all_multicast: self.allmulti,
            tx_queue_len: self.tx_q_len,
        };
        Backup { link, host_mtu: self.host_mtu, offload: self.offload.clone() }
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

/// The backup file of an attachment.
pub struct BackupFile<'a> {
    network: &'a str,
    file: StateFile,
}

impl<'a> BackupFile<'a> {
    /// The file, which need not exist.
    pub fn new(data_dir: &Path, attachment: &Attachment<'a>) -> Self {
        let stem = stem(attachment.container_id, attachment.ifname);
        let network = attachment.network;
        BackupFile { network, file: StateFile::new(data_dir, &stem, network) }
    }

    /// The backup. `None` if there is no file, or if its content is not a backup.
    ///
    /// # Errors
    /// Code 5 if the file cannot be read.
    pub fn read(&self) -> Result<Option<Backup>, CniError> {
        Ok(self.file.read()?.and_then(|bytes| Wire::read(&bytes)).map(|wire| wire.backup()))
    }

    /// Adds the values to the file. Keeps the values that it has already: an earlier ADD or an earlier tuning
    /// plugin of the chain has saved them before it changed anything. Returns the former content.
    ///
    /// # Errors
    /// Code 5 if the file cannot be written.
    pub fn save(&self, backup: &Backup) -> Result<Option<Vec<u8>>, CniError> {
        let former = self.file.read()?;
        let first = former.as_deref().and_then(Wire::read).map(|wire| wire.backup()).unwrap_or_default();
        let mut offload = backup.offload.clone();
        offload.extend(first.offload);
        let merged = Backup {
            link: first.link.or(&backup.link),
            host_mtu: first.host_mtu.or(backup.host_mtu),
            offload,
        };
        let bytes = Wire::new(self.network, &merged).to_bytes();
        if former.as_ref() != Some(&bytes) {
            self.file.write(&bytes)?;
        }
        Ok(former)
    }

    /// Puts the former content back after a failed ADD.
    pub fn undo(&self, former: Option<Vec<u8>>) {
        let undone = former.map_or_else(|| self.remove(), |bytes| self.file.write(&bytes));
        if let Err(error) = undone {
            eprintln!("tuning: after a failed ADD: {error}");
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

/// The file name of an attachment's backup without its extension.
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

/// Lists the backup files of all networks. A missing folder has none, and files with other content are not ours.
pub fn list(data_dir: &Path) -> Vec<Listed> {
    let read = |(path, bytes): (PathBuf, Vec<u8>)| {
        // A container ID may contain underscores too, but interface names rarely do.
        let (container_id, ifname) = path.file_stem()?.to_str()?.rsplit_once('_')?;
        let (container_id, ifname) = (container_id.to_owned(), ifname.to_owned());
        let network = Some(Wire::of_tuning(&bytes)?.network).filter(|network| !network.is_empty());
        Some(Listed { path, container_id, ifname, network })
    };
    state_file::listed(data_dir).filter_map(read).collect()
}

/// Removes the files of the network's attachments that are not valid. Files of the reference do not name their network,
/// so those stay.
///
/// # Errors
/// All files that could not be read or removed; every one is tried.
pub fn collect(data_dir: &Path, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    let valid = Attachment::keys(network, valid, |one| stem(one.container_id, one.ifname));
    let is_own = |bytes: &[u8]| Ok(Wire::read(bytes).is_some_and(|wire| wire.network == network));
    state_file::collect(data_dir, network, |own| valid.contains(own), is_own)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use ferrule_kit::state_file::draft_extension;

    use super::*;

    const ONE: Attachment<'_> = Attachment { network: "net", container_id: "one", ifname: "eth0" };

    fn all() -> Backup {
        let link = Attributes {
            mac: "f6:37:6d:41:b9:2f".parse().ok(),
            promiscuous: Some(false),
            mtu: Some(1500),
            all_multicast: Some(false),
            tx_queue_len: Some(1000),
        };
        Backup { link, host_mtu: Some(1500), ..Backup::default() }
    }

    #[test]
    fn content_begins_with_the_references() {
        let text = String::from_utf8(Wire::new("net", &all()).to_bytes()).unwrap();
        let reference = "{\n \"mac\": \"f6:37:6d:41:b9:2f\",\n \"promisc\": false,\n \"mtu\": 1500,\n \
                         \"allmulti\": false,\n \"txQLen\": 1000";
        assert_eq!(text, format!("{reference},\n \"hostMtu\": 1500,\n \"network\": \"net\"\n}}"));
        assert_eq!(Wire::read(text.as_bytes()).unwrap().backup(), all());
        let theirs = Wire::read(format!("{reference}\n}}").as_bytes()).unwrap().backup();
        assert_eq!(theirs, Backup { host_mtu: None, ..all() });
    }

    #[test]
    fn the_first_values_stay() {
        let dir = tempfile::tempdir().unwrap();
        let file = BackupFile::new(&dir.path().join("a/b"), &ONE);
        assert_eq!(file.read().unwrap(), None);
        let mtu = |mtu| Backup { link: Attributes { mtu, ..Attributes::default() }, ..Backup::default() };
        assert_eq!(file.save(&mtu(Some(1500))).unwrap(), None);
        let second = Attributes { mtu: Some(1400), tx_queue_len: Some(7), ..Attributes::default() };
        let offload = |on| Switches::from([("rx-gro".to_owned(), on)]);
        let one = Backup { link: second.clone(), host_mtu: Some(9000), offload: offload(true) };
        let former = file.save(&one).unwrap();
        file.save(&Backup { offload: offload(false), ..one.clone() }).unwrap();
        let merged = Attributes { mtu: Some(1500), tx_queue_len: Some(7), ..Attributes::default() };
        assert_eq!(file.read().unwrap(), Some(Backup { link: merged, ..one }));
        file.undo(former);
        assert_eq!(file.read().unwrap(), Some(mtu(Some(1500))));
        file.undo(None);
        assert_eq!(fs::read_dir(dir.path().join("a/b")).unwrap().count(), 0);
    }

    #[test]
    fn a_broken_file_counts_as_absent() {
        let dir = tempfile::tempdir().unwrap();
        let file = BackupFile::new(dir.path(), &ONE);
        for broken in ["", "{", "[]", "{\"mtu\":\"x\"}"] {
            fs::write(dir.path().join("one_eth0.json"), broken).unwrap();
            assert_eq!(file.read().unwrap(), None, "{broken}");
        }
        file.save(&all()).unwrap();
        assert_eq!(file.read().unwrap(), Some(all()));
    }

    #[test]
    fn gc_removes_the_networks_files_without_a_valid_attachment() {
        let dir = tempfile::tempdir().unwrap();
        for (network, container_id) in [("net", "one"), ("net", "two"), ("other", "three")] {
            let attachment = Attachment { network, container_id, ifname: "eth0" };
            BackupFile::new(dir.path(), &attachment).save(&all()).unwrap();
            let draft = format!("{container_id}_eth0.json{}", draft_extension(network));
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
        let [two, three] = ["net", "other"].map(draft_extension);
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
