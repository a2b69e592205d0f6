//! The state file: the delegate's configuration of ADD, which DEL needs. `<dataDir>/<container ID>`, as the reference writes it, with
//! one more key for the interface, which plugins ignore. So each understands the other's.
//!
//! The name has neither network nor interface, so attachments of one container share the file: the last ADD counts. The content
//! says which one that is.

use std::iter;
use std::path::{Path, PathBuf};

use cni_common::plugin::Attachment;
use cni_common::remark;
use cni_common::spec::{CniError, Failures, ValidAttachment};
use ferrule_kit::state_file::{self, StateFile};
use serde_json::Value;

use crate::config::Object;

/// The reference's names have no extension.
const EXTENSION: &str = "";

/// The key for CNI_IFNAME; a file of the reference has none.
const IFNAME: &str = "ferrule.dev/ifname";

/// What a state file has.
#[derive(Clone, Debug, PartialEq)]
pub enum Saved {
    /// There is no file, or its content is not a delegate's configuration.
    Nothing,
    /// The delegate's configuration for this attachment.
    Own(Object),
    /// A file of another attachment of the container.
    OfAnother,
}

/// The state file of a container.
pub struct State<'a> {
    network: &'a str,
    ifname: &'a str,
    file: StateFile,
}

impl<'a> State<'a> {
    /// The file, which need not exist.
    pub fn new(data_dir: &str, attachment: &Attachment<'a>) -> Self {
        let Attachment { network, container_id, ifname } = *attachment;
        State { network, ifname, file: StateFile::new(Path::new(data_dir), container_id, EXTENSION, network) }
    }

    /// The content.
    ///
    /// # Errors
    /// Code 5 if the file cannot be read.
    pub fn read(&self) -> Result<Saved, CniError> {
        let Some(mut config) = self.file.read()?.and_then(|bytes| parse(&bytes)) else {
            return Ok(Saved::Nothing);
        };
        let is_of_interface = config.remove(IFNAME).is_none_or(|ifname| ifname == self.ifname);
        let is_own = is_of_interface && config["name"] == self.network;
        Ok(if is_own { Saved::Own(config) } else { Saved::OfAnother })
    }

    /// Writes the delegate's configuration. Returns the former content.
    ///
    /// # Errors
    /// Code 5 if the file cannot be read or written.
    pub fn save(&self, mut config: Object) -> Result<Option<Vec<u8>>, CniError> {
        let former = self.file.read()?;
        config.insert(IFNAME.to_owned(), self.ifname.into());
        self.file.write(Value::Object(config).to_string().as_bytes()).map(|()| former)
    }

    /// Puts the former content back after a failed ADD.
    pub fn undo(&self, former: Option<Vec<u8>>) {
        let undone = former.map_or_else(|| self.remove(), |bytes| self.file.write(&bytes));
        if let Err(error) = undone {
            remark!("flannel: after a failed ADD: {error}");
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

/// The delegate's configuration, if the bytes are one.
pub fn parse(bytes: &[u8]) -> Option<Object> {
    let config: Object = serde_json::from_slice(bytes).ok()?;
    let is_text = |key: &str| config.get(key).is_some_and(Value::is_string);
    (is_text("name") && is_text("type")).then_some(config)
}

/// A file in the folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its path.
    pub path: PathBuf,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// The network.
    pub network: String,
    /// CNI_IFNAME; `None` in a file of the reference.
    pub ifname: Option<String>,
    /// The plugin that has made the attachment.
    pub delegate: String,
}

/// Lists the state files of all networks. A missing folder has none, and files with other content are not ours.
pub fn list(data_dir: &Path) -> Vec<Listed> {
    let read = |(path, bytes): (PathBuf, Vec<u8>)| {
        let config = parse(&bytes)?;
        let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
        let (network, delegate, ifname) = (text("name")?, text("type")?, text(IFNAME));
        let container_id = path.file_name()?.to_str()?.to_owned();
        let is_pending = container_id.ends_with(&state_file::pending_extension(&network));
        (!is_pending).then_some(Listed { path, container_id, network, ifname, delegate })
    };
    state_file::list(data_dir, EXTENSION).filter_map(read).collect()
}

/// Removes the files of the network's attachments that are not valid, and what killed ADDs have left.
///
/// # Errors
/// All files that could not be removed; every one is tried.
pub fn collect(data_dir: &Path, network: &str, valid: &[ValidAttachment]) -> Result<(), CniError> {
    state_file::can_list(data_dir)?;
    let is_valid = |container: &str, ifname: Option<&String>| {
        valid.iter().any(|one| one.container_id == container && ifname.is_none_or(|name| *name == one.ifname))
    };
    let mut lost = list(data_dir);
    lost.retain(|file| file.network == network && !is_valid(&file.container_id, file.ifname.as_ref()));
    let mut pending = state_file::list_pending(data_dir, EXTENSION, iter::once(network));
    pending.retain(|(_, container, _)| !is_valid(container, None));
    let mut failures = Failures::default();
    for path in lost.into_iter().map(|file| file.path).chain(pending.into_iter().map(|(path, ..)| path)) {
        failures.keep(state_file::remove(&path));
    }
    failures.into_result()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const OWN: &str = r#"{"name":"net","type":"bridge"}"#;

    #[test]
    fn the_content_names_the_network() {
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("a/b");
        let data_dir = folder.to_str().unwrap();
        let of = |network, ifname| State::new(data_dir, &Attachment { network, container_id: "c1", ifname });
        let (state, own) = (of("net", "eth0"), parse(OWN.as_bytes()).unwrap());
        assert_eq!((state.read(), state.save(own.clone())), (Ok(Saved::Nothing), Ok(None)));
        assert_eq!(state.read(), Ok(Saved::Own(own.clone())));
        assert_eq!(
            (of("other", "eth0").read(), of("net", "eth1").read()),
            (Ok(Saved::OfAnother), Ok(Saved::OfAnother))
        );
        state.undo(Some(OWN.as_bytes().to_vec()));
        assert_eq!(
            (state.read(), of("net", "eth1").read()),
            (Ok(Saved::Own(own.clone())), Ok(Saved::Own(own)))
        );
        state.undo(Some(b"{}".to_vec()));
        assert_eq!(state.read(), Ok(Saved::Nothing));
        state.undo(None);
        assert!(!folder.join("c1").exists());
    }

    #[test]
    fn files_of_dead_containers() {
        let dir = tempfile::tempdir().unwrap();
        let pending = format!("c4{}", state_file::pending_extension("net"));
        for (name, text) in [
            ("c1", OWN),
            ("c2", OWN),
            ("c3", r#"{"name":"other","type":"ptp"}"#),
            ("text", "nonsense"),
            ("c5", r#"{"name":"net","type":"ptp","ferrule.dev/ifname":"eth0"}"#),
            ("c6", r#"{"name":"net","type":"ptp","ferrule.dev/ifname":"eth1"}"#),
            (&pending, OWN),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        let listed = || {
            let mut all: Vec<String> = list(dir.path()).into_iter().map(|one| one.container_id).collect();
            all.sort();
            all
        };
        assert_eq!(listed(), ["c1", "c2", "c3", "c5", "c6"]);
        let valid = ["c1", "c5", "c6"];
        let valid =
            valid.map(|id| ValidAttachment { container_id: id.to_owned(), ifname: "eth0".to_owned() });
        collect(dir.path(), "net", &valid).unwrap();
        assert_eq!(listed(), ["c1", "c3", "c5"]);
        assert!(dir.path().join("text").exists() && !dir.path().join(pending).exists());
    }
}
