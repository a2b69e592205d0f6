//! The network configurations, as libcni reads them.
//!
//! # References
//! ConfFiles and ConfListFromBytes in libcni/conf.go; "Configuration format" in the CNI specification.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ferrule_kernel::file;
use ferrule_kit::fold::{CHAIN, members};
use serde_json::Value;

use super::Finding;
pub use super::libcni::type_of;
use super::libcni::{self, Decoded, Unusable};

/// The endings of the files that runtimes read.
const ENDINGS: [&str; 3] = ["conf", "conflist", "json"];
/// The ending of a list of plugins.
const LIST: &str = "conflist";

const NO_FOLDER: &str =
    "make the folder and copy a file of examples/ into it; --conf-dir names another folder";
const NO_NETWORK: &str = "there is no network: runtimes report \"cni plugin not initialized\"";
const SAME_NAME: &str = "give one of them another name: addresses and rules belong to the name";
const READABLE: &str = "make the file readable; containerd may refuse all networks because of it";
const NO_PLUGINS: &str = "has no \"plugins\", and the folder of its name has none";
const INLINE: &str = "write the plugins into the list \"plugins\"";

/// A network.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Network {
    /// The file.
    pub file: PathBuf,
    /// Its name.
    pub name: String,
    /// The CNI version that a runtime uses: the highest of `cniVersion` and `cniVersions`.
    pub version: String,
    /// The configurations of its plugins, without chains.
    pub plugins: Vec<Value>,
    /// Whether a `chain` runs them.
    pub is_folded: bool,
}

impl Network {
    /// How findings name it.
    pub fn subject(&self) -> String {
        format!("network {} ({})", self.name, self.file.display())
    }

    /// The plugins' types, those of IPAM behind their plugin.
    pub fn types(&self) -> impl Iterator<Item = &str> {
        let chain = self.is_folded.then_some(CHAIN);
        chain.into_iter().chain(
            self.plugins.iter().flat_map(|plugin| [type_of(plugin), type_of(&plugin["ipam"])]).flatten(),
        )
    }

    /// Whether it has one of these plugins.
    pub fn has(&self, names: &[&str]) -> bool {
        self.types().any(|name| names.contains(&name))
    }
}

/// Reads the folder, and finds files that no runtime can use and names that two networks have.
pub fn read(folder: &Path) -> (Vec<Network>, Vec<Finding>) {
    let place = folder.display().to_string();
    let (mut networks, mut findings) = (Vec::<Network>::new(), Vec::new());
    let files = match files(folder, &ENDINGS) {
        Ok(files) => files,
        Err(error) => {
            return (networks, vec![Finding::error(place, format!("cannot be read: {error}"), NO_FOLDER)]);
        }
    };
    for file in files {
        let subject = file.display().to_string();
        match read_one(&file) {
            Ok(network) => {
                if let Some(other) = networks.iter().find(|other| other.name == network.name) {
                    let problem = format!("{} has a network {} too", other.file.display(), network.name);
                    findings.push(Finding::error(subject, problem, SAME_NAME));
                }
                networks.push(network);
            }
            Err(Unusable { why, remedy }) => findings.push(Finding::error(subject, why, remedy)),
        }
    }
    if networks.is_empty() && findings.is_empty() {
        findings.push(Finding::error(place, NO_NETWORK, "copy a file of examples/ into the folder"));
    }
    (networks, findings)
}

/// The files with these endings, sorted by their names. A FIFO or a link too, which stops a runtime if it leads nowhere or never ends.
fn files(folder: &Path, endings: &[&str]) -> io::Result<Vec<PathBuf>> {
    let entries = fs::read_dir(folder)?.flatten();
    let files = entries.filter(|entry| entry.file_type().is_ok_and(|kind| !kind.is_dir()));
    let is_read =
        |path: &PathBuf| path.extension().is_some_and(|ending| endings.iter().any(|one| ending == *one));
    let mut files: Vec<PathBuf> = files.map(|entry| entry.path()).filter(is_read).collect();
    files.sort();
    Ok(files)
}

fn text(file: &Path) -> Result<String, Unusable> {
    file::read_named_text(file).map_err(|error| Unusable { why: error.to_string(), remedy: READABLE })
}

/// The network of a file, with the plugins in the folder of its name.
fn read_one(file: &Path) -> Result<Network, Unusable> {
    let decode =
        if file.extension().is_some_and(|ending| ending == LIST) { libcni::list } else { libcni::single };
    let Decoded { name, version, mut plugins, has_folder } = decode(&text(file)?)?;
    if has_folder && let Some(folder) = file.parent() {
        let folder = folder.join(&name);
        let found = match files(&folder, &["conf"]) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            found => found.map_err(|error| Unusable {
                why: format!("{}: {error}", folder.display()),
                remedy: READABLE,
            })?,
        };
        for plugin in found {
            let of_file =
                |error: Unusable| Unusable { why: format!("{}: {}", plugin.display(), error.why), ..error };
            plugins.push(text(&plugin).and_then(|text| libcni::plugin(&text)).map_err(of_file)?);
        }
    }
    if plugins.is_empty() {
        return Err(Unusable { why: NO_PLUGINS.to_owned(), remedy: INLINE });
    }
    Ok(network(file, name, version, &plugins))
}

fn network(file: &Path, name: String, version: String, plugins: &[Value]) -> Network {
    let is_folded = plugins.iter().any(|plugin| type_of(plugin) == Some(CHAIN));
    let objects: Vec<_> = plugins.iter().filter_map(|plugin| plugin.as_object().cloned()).collect();
    let plugins = members(&objects).into_iter().map(Value::from).collect();
    Network { file: file.to_owned(), name, version, plugins, is_folded }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    pub(in crate::doctor) fn network(name: &str, plugins: &str) -> Network {
        let text = format!(r#"{{"name":"{name}","cniVersion":"1.0.0","plugins":{plugins}}}"#);
        let Decoded { name, version, plugins, .. } = libcni::list(&text).unwrap();
        super::network(format!("/n/{name}.conflist").as_ref(), name, version, &plugins)
    }

    #[test]
    fn types_of_plugins() {
        let list = network("pods", r#"[{"type":"bridge","ipam":{"type":"host-local"}},{"type":"portmap"}]"#);
        assert_eq!(list.types().collect::<Vec<_>>(), ["bridge", "host-local", "portmap"]);
        let folded = r#"[{"type":"chain","plugins":[{"type":"bridge"}]},{"type":"own"}]"#;
        let folded = network("pods", folded);
        assert_eq!(folded.types().collect::<Vec<_>>(), ["chain", "bridge", "own"]);
        assert!(list.has(&["portmap"]) && !list.has(&["firewall"]) && list.version == "1.0.0");
    }

    /// libcni adds the plugins in the folder of the network's name.
    #[test]
    fn plugins_in_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let write = |file: &str, text: &str| fs::write(dir.path().join(file), text).unwrap();
        fs::create_dir(dir.path().join("x")).unwrap();
        let types = || {
            let (networks, findings) = read(dir.path());
            let types: Vec<String> = networks.iter().flat_map(Network::types).map(str::to_owned).collect();
            (types.join(" "), findings.first().map_or(String::new(), |finding| finding.problem.clone()))
        };
        write("x.conflist", r#"{"name":"x"}"#);
        assert_eq!(types(), (String::new(), NO_PLUGINS.to_owned()));
        write("x/20-b.conf", r#"{"type":"b"}"#);
        write("x/10-a.conf", r#"{"type":"a"}"#);
        write("x/10-a.json", "nonsense");
        assert_eq!(types(), ("a b".to_owned(), String::new()));
        write("x.conflist", r#"{"name":"x","plugins":[{"type":"c"}]}"#);
        assert_eq!(types().0, "c a b");
        write("x.conflist", r#"{"name":"x","plugins":[{"type":"c"}],"loadOnlyInlinedPlugins":true}"#);
        assert_eq!(types().0, "c");
        write("x.conflist", r#"{"name":"x","plugins":[{"type":"c"}]}"#);
        write("x/20-b.conf", r#"{"name":"b"}"#);
        assert!(types().1.ends_with("x/20-b.conf: has no \"type\""), "{:?}", types());
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
