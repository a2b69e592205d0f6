//! The network configurations, as libcni reads them.
//!
//! # References
//! ConfFiles and ConfListFromBytes in libcni/conf.go; "Configuration format" in the CNI specification.

use std::fs::{self, DirEntry};
use std::path::{Path, PathBuf};

use cni_common::spec::SpecVersion;
use ferrule_kernel::file;
use serde_json::Value;

use super::Finding;

/// The endings of the files that runtimes read.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];

const NO_FOLDER: &str =
    "make the folder and copy a file of examples/ into it; --conf-dir names another folder";
const NO_NETWORK: &str = "there is no network: runtimes report \"cni plugin not initialized\"";
const SAME_NAME: &str = "give one of them another name: addresses and rules belong to the name";
const UNUSABLE: &str = "correct the file; containerd may refuse all networks because of it";

/// A network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// The file.
    pub file: PathBuf,
    /// Its name.
    pub name: String,
    /// The CNI version that a runtime uses: the highest of `cniVersion` and `cniVersions`.
    pub version: String,
    /// The configurations of its plugins.
    pub plugins: Vec<Value>,
}

impl Network {
    /// How findings name it.
    pub fn subject(&self) -> String {
        format!("network {} ({})", self.name, self.file.display())
    }

    /// The plugins' types, those of IPAM behind their plugin.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        self.plugins.iter().flat_map(|plugin| [type_of(plugin), type_of(&plugin["ipam"])]).flatten()
    }

    /// Whether it has one of these plugins.
    pub fn has(&self, names: &[&str]) -> bool {
        self.types().any(|name| names.contains(&name))
    }
}

/// The type of a plugin or of a section of IPAM, if it has one.
pub fn type_of(conf: &Value) -> Option<&str> {
    conf["type"].as_str().filter(|name| !name.is_empty())
}

/// Reads the folder, and finds files that no runtime can use and names that two networks have.
pub fn read(folder: &Path) -> (Vec<Network>, Vec<Finding>) {
    let place = folder.display().to_string();
    let (mut networks, mut findings) = (Vec::<Network>::new(), Vec::new());
    let mut files: Vec<PathBuf> = match fs::read_dir(folder) {
        Ok(entries) => entries.flatten().filter(is_read).map(|entry| entry.path()).collect(),
        Err(error) => {
            return (networks, vec![Finding::error(place, format!("cannot be read: {error}"), NO_FOLDER)]);
        }
    };
    files.sort();
    for path in files {
        let subject = path.display().to_string();
        let text = file::read_named_text(&path).map_err(|error| error.to_string());
        match text.and_then(|text| parse(&text)) {
            Ok(network) => {
                if let Some(other) = networks.iter().find(|other| other.name == network.name) {
                    let problem = format!("{} has a network {} too", other.file.display(), network.name);
                    findings.push(Finding::error(subject, problem, SAME_NAME));
                }
                networks.push(Network { file: path, ..network });
            }
            Err(why) => findings.push(Finding::error(subject, why, UNUSABLE)),
        }
    }
    if networks.is_empty() && findings.is_empty() {
        findings.push(Finding::error(place, NO_NETWORK, "copy a file of examples/ into the folder"));
    }
    (networks, findings)
}

/// A FIFO or a link too, which stops a runtime if it leads nowhere or never ends.
fn is_read(entry: &DirEntry) -> bool {
    let has_ending = entry.path().extension().is_some_and(|ending| ENDINGS.iter().any(|one| ending == *one));
    has_ending && !entry.file_type().is_ok_and(|kind| kind.is_dir())
}

/// Decodes a file: a list of plugins, or a single one.
fn parse(text: &str) -> Result<Network, String> {
    let json: Value = serde_json::from_str(text).map_err(|error| format!("is not JSON: {error}"))?;
    if !json.is_object() {
        return Err("is not a JSON object".to_owned());
    }
    let name = json["name"].as_str().unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err("has no \"name\"".to_owned());
    }
    let version = version(&json);
    let plugins: Vec<Value> = match &json["plugins"] {
        Value::Array(plugins) => plugins.iter().filter(|plugin| plugin.is_object()).cloned().collect(),
        Value::Null if json.get("type").is_some() => vec![json],
        _ => Vec::new(),
    };
    if plugins.is_empty() {
        return Err("has no \"plugins\"".to_owned());
    }
    match plugins.iter().position(|plugin| type_of(plugin).is_none()) {
        Some(at) => Err(format!("plugins[{at}] has no \"type\"")),
        None => Ok(Network { file: PathBuf::new(), name, version, plugins }),
    }
}

/// The newest version that we know, or else the first one.
fn version(json: &Value) -> String {
    let several = json["cniVersions"].as_array().into_iter().flatten();
    let texts: Vec<&str> =
        [&json["cniVersion"]].into_iter().chain(several).filter_map(Value::as_str).collect();
    let known = texts.iter().filter(|text| SpecVersion::parse(text).is_some());
    let newest = known.max_by_key(|text| SpecVersion::parse(text)).or(texts.first());
    (*newest.unwrap_or(&"0.1.0")).to_owned()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::doctor) fn network(name: &str, plugins: &str) -> Network {
        let text = format!(r#"{{"name":"{name}","cniVersion":"1.0.0","plugins":{plugins}}}"#);
        Network { file: format!("/n/{name}.conflist").into(), ..parse(&text).unwrap() }
    }

    #[test]
    fn lists_and_single_plugins() {
        let list = network("pods", r#"[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]"#);
        assert_eq!(list.types().collect::<Vec<_>>(), ["bridge", "host-local", "portmap"]);
        assert!(list.has(&["portmap"]) && !list.has(&["firewall"]) && list.version == "1.0.0");
        let single =
            parse(r#"{"name":"one","type":"ptp","cniVersion":"0.4.0","cniVersions":["1.0.0","9.0.0"]}"#)
                .unwrap();
        assert_eq!((single.types().next(), single.version.as_str()), (Some("ptp"), "1.0.0"));
        for (text, why) in [
            ("{", "is not JSON: EOF while parsing an object at line 1 column 1"),
            ("[]", "is not a JSON object"),
            (r#"{"type":"ptp"}"#, "has no \"name\""),
            (r#"{"name":"x","plugins":[]}"#, "has no \"plugins\""),
            (r#"{"name":"x","plugins":[{"type":"a"},{}]}"#, "plugins[1] has no \"type\""),
        ] {
            assert_eq!(parse(text), Err(why.to_owned()));
        }
    }

    #[test]
    fn a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let found = |findings: &[Finding]| findings.iter().map(|one| one.problem.clone()).collect::<Vec<_>>();
        let (_, none) = read(dir.path());
        assert!(found(&none)[0].contains("no network"), "{none:?}");
        for (file, text) in [
            ("20-b.conflist", r#"{"name":"x","plugins":[{"type":"a"}]}"#),
            ("10-a.conf", r#"{"name":"x","type":"a"}"#),
            ("30-c.json", "nonsense"),
            ("40-d.bak", "nonsense"),
        ] {
            fs::write(dir.path().join(file), text).unwrap();
        }
        fs::create_dir(dir.path().join("50-folder.conflist")).unwrap();
        std::os::unix::fs::symlink("20-b.conflist", dir.path().join("60-link.conflist")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", dir.path().join("70-zero.conflist")).unwrap();
        let (networks, findings) = read(dir.path());
        assert_eq!(
            networks.iter().map(|network| network.file.file_name().unwrap()).collect::<Vec<_>>(),
            ["10-a.conf", "20-b.conflist", "60-link.conflist"]
        );
        assert!(found(&findings)[0].ends_with("10-a.conf has a network x too"), "{findings:?}");
        assert!(findings.len() == 4 && findings[1].subject.ends_with("30-c.json"), "{findings:?}");
        assert!(findings[3].subject.ends_with("70-zero.conflist"), "{findings:?}");
        assert!(found(&read(&dir.path().join("none")).1)[0].starts_with("cannot be read"));
    }
}
