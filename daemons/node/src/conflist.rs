//! The conflist: a template, this node's podCIDRs, and the pods' MTU.

use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::file;
use ferrule_kernel::ip::IpFamily;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use serde_json::{Value, json};
use tokio::io::unix::AsyncFd;

use crate::arguments::{Main, Options};
use crate::plan::Pods;

/// The key that marks a file as ours. libcni and the plugins ignore it.
pub use ferrule_kit::cluster::CONFLIST_MARK as MARK;

pub use crate::kernel::BRIDGE;

/// Whose file has the conflist's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// No file has it.
    Nothing,
    /// A file with [`MARK`].
    Ours,
    /// Another file, or a link.
    Foreign,
}

/// The plugin of the built-in conflist that makes the pods' interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All pods of the node on [`BRIDGE`].
    Bridge,
    /// A pair of links for each pod.
    Ptp,
}

/// A conflist without the values of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Value);

impl Template {
    /// Reads the template of the options, or makes the built-in one.
    ///
    /// # Errors
    /// The file cannot be read, or is no conflist whose first plugin has `ipam` of the type host-local.
    pub fn read(options: &Options) -> Result<Template> {
        let Some(path) = &options.template else {
            return Ok(Template::built_in(if options.main == Main::Bridge {
                Kind::Bridge
            } else {
                Kind::Ptp
            }));
        };
        let parse = || -> Result<Template> { Template::parse(&file::read_named(path)?) };
        parse().with_context(|| format!("template {}", path.display()))
    }

    fn parse(bytes: &[u8]) -> Result<Template> {
        let mut value: Value = serde_json::from_slice(bytes).context("it is not JSON")?;
        if !value["name"].is_string() || !value["plugins"].is_array() {
            bail!("it is no conflist: \"name\" or \"plugins\" is missing");
        }
        match &value["plugins"][0]["ipam"]["type"] {
            Value::String(kind) if kind == "host-local" => {}
            other => bail!("plugins[0].ipam.type is {other}, it must be \"host-local\""),
        }
        if let Some(object) = value.as_object_mut() {
            object.remove(MARK);
        }
        Ok(Template(value))
    }

    /// The built-in one.
    pub fn built_in(kind: Kind) -> Template {
        let ipam = json!({ "type": "host-local" });
        let first = match kind {
            // The podCIDR may change: the former gateway goes with the last pod that needs it.
            Kind::Bridge => {
                json!({ "type": "bridge", "bridge": BRIDGE, "isGateway": true, "forceAddress": true,
                "hairpinMode": true, "ipam": ipam })
            }
            Kind::Ptp => json!({ "type": "ptp", "ipam": ipam }),
        };
        Template(json!({
            "cniVersion": "1.0.0",
            "name": "ferrule",
            "plugins": [
                first,
                { "type": "portmap", "capabilities": { "portMappings": true } },
                { "type": "bandwidth", "capabilities": { "bandwidth": true } },
            ],
        }))
    }

    /// The bridges that may carry pods: the template's, and the built-in one, whose pods may be older than this configuration.
    pub fn bridges(&self) -> Vec<String> {
        let own = self.bridge().filter(|own| *own != BRIDGE);
        [BRIDGE].into_iter().chain(own).map(str::to_owned).collect()
    }

    /// The plugin that makes the pods' interfaces.
    pub fn plugin(&self) -> &str {
        self.0["plugins"][0]["type"].as_str().unwrap_or_default()
    }

    /// The name of the network.
    pub fn network(&self) -> String {
        self.0["name"].as_str().unwrap_or_default().to_owned()
    }

    /// host-local's folder of this network: a file for each address in use.
    pub fn store(&self) -> PathBuf {
        let folder = self.0["plugins"][0]["ipam"]["dataDir"].as_str().unwrap_or("/var/lib/cni/networks");
        Path::new(folder).join(self.network())
    }

    /// The bridge of the pods, if the plugin is `bridge`.
    pub fn bridge(&self) -> Option<&str> {
        let first = &self.0["plugins"][0];
        (first["type"] == "bridge").then(|| first["bridge"].as_str().unwrap_or("cni0"))
    }

    /// The conflist of this node.
    pub fn value(&self, node: &str, pods: &Pods) -> Value {
        let mut value = self.0.clone();
        value[MARK] = json!({ "node": node });
        let first = &mut value["plugins"][0];
        first["ipMasq"] = json!(false);
        first["mtu"] = json!(pods.mtu);
        let ipam = &mut first["ipam"];
        let range = |network: &ipnetwork::IpNetwork| json!([{ "subnet": network.to_string() }]);
        ipam["ranges"] = pods.networks.iter().map(range).collect();
        if ipam["routes"].is_null() {
            let default = |network: &ipnetwork::IpNetwork| match IpFamily::of(network.ip()) {
                IpFamily::V4 => json!({ "dst": "0.0.0.0/0" }),
                IpFamily::V6 => json!({ "dst": "::/0" }),
            };
            ipam["routes"] = pods.networks.iter().map(default).collect();
        }
        value
    }

    /// Its text.
    pub fn fill(&self, node: &str, pods: &Pods) -> String {
        format!("{:#}\n", self.value(node, pods))
    }
}

/// Looks whose file it is.
pub fn find(path: &Path) -> Result<Found> {
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(error) => return Err(error).with_context(|| format!("look at {}", path.display())),
        Ok(metadata) if !metadata.is_file() => return Ok(Found::Foreign),
        Ok(_) => {}
    }
    let bytes = file::read(path).with_context(|| format!("read {}", path.display()))?;
    let is_ours = serde_json::from_slice::<Value>(&bytes).is_ok_and(|value| value[MARK].is_object());
    Ok(if is_ours { Found::Ours } else { Found::Foreign })
}

/// Writes the conflist if the file has another text. Returns whether it did.
///
/// # Errors
/// The file is not ours, or cannot be written.
pub fn write(path: &Path, text: &str) -> Result<bool> {
    let found = find(path)?;
    match found {
        Found::Foreign => bail!(
            "{} is not ours: it has no key \"{MARK}\". Remove it, or choose another --conflist",
            path.display()
        ),
        Found::Ours if file::read(path).is_ok_and(|bytes| bytes == text.as_bytes()) => return Ok(false),
        Found::Ours | Found::Nothing => {}
    }
    let put = || -> io::Result<()> {
        let pending = pending(path);
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        match found {
            Found::Ours => file::replace_durably(path, &pending, 0o644, text.as_bytes()),
            // Fails if another program has made the file meanwhile.
            _ => file::create_durably(path, &pending, 0o644, text.as_bytes()),
        }
    };
    put().with_context(|| format!("write {}", path.display())).map(|()| true)
}

/// A descriptor that is readable when the file has been changed, moved or removed.
///
/// # Errors
/// It is gone already, or this user has too many of them.
pub fn watch(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    // The kernel tells of a name that is removed as a change of the attributes, and at once.
    notices(path, AddWatchFlags::IN_MODIFY | AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_MOVE_SELF)
}

/// A descriptor that is readable when the conflist's folder has got or lost a file: runtimes take the first one.
///
/// # Errors
/// There is no folder, or this user has too many descriptors.
pub fn watch_folder(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
    let moved = AddWatchFlags::IN_MOVED_TO | AddWatchFlags::IN_MOVED_FROM;
    notices(path.parent().unwrap_or(path), AddWatchFlags::IN_CREATE | AddWatchFlags::IN_DELETE | moved)
}

fn notices(path: &Path, flags: AddWatchFlags) -> io::Result<AsyncFd<OwnedFd>> {
    let queue = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    queue.add_watch(path, flags)?;
    #[expect(
        deprecated,
        reason = "its successor is unsafe; an OwnedFd keeps its descriptor, which is all that this demands"
    )]
    AsyncFd::new(queue.into())
}

/// Removes the conflist if it is ours and has other networks: it could not be replaced, and its addresses are another node's. Returns
/// whether it did.
pub fn remove_other(path: &Path, pods: &Pods) -> Result<bool> {
    let value: Value = serde_json::from_slice(&file::read(path)?)?;
    let ranges = value["plugins"][0]["ipam"]["ranges"].as_array().into_iter().flatten();
    let subnets: Vec<_> = ranges.map(|range| range[0]["subnet"].as_str().unwrap_or_default()).collect();
    let wanted: Vec<_> = pods.networks.iter().map(ToString::to_string).collect();
    if subnets == wanted { Ok(false) } else { remove(path) }
}

/// Removes the conflist if it is ours. Returns whether it was there.
pub fn remove(path: &Path) -> Result<bool> {
    let _ = fs::remove_file(pending(path));
    if find(path)? != Found::Ours {
        return Ok(false);
    }
    fs::remove_file(path).with_context(|| format!("remove {}", path.display()))?;
    Ok(true)
}

/// Runtimes read files with the extensions conf, conflist and json only.
fn pending(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt as _;

    use clap::Parser as _;

    use super::*;
    use crate::arguments::Arguments;

    fn pods() -> Pods {
        Pods { networks: vec!["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()], mtu: 1450 }
    }

    #[test]
    fn the_values_of_the_node_are_filled_in() {
        for main in [Kind::Bridge, Kind::Ptp] {
            let value: Value = serde_json::from_str(&Template::built_in(main).fill("n1", &pods())).unwrap();
            let first = &value["plugins"][0];
            assert_eq!(
                first["ipam"]["ranges"],
                json!([[{ "subnet": "10.244.1.0/24" }], [{ "subnet": "fd00:1::/64" }]])
            );
            assert_eq!(first["ipam"]["routes"], json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]));
            assert_eq!((&first["mtu"], &first["ipMasq"]), (&json!(1450), &json!(false)));
            assert_eq!(value[MARK]["node"], "n1");
        }
    }

    #[test]
    fn a_template_keeps_its_other_keys() {
        let text = br#"{"cniVersion":"0.4.0","name":"x","plugins":[{"type":"bridge","vlan":7,"mtu":9000,
            "ipam":{"type":"host-local","dataDir":"/d","routes":[{"dst":"10.0.0.0/8"}]}},{"type":"firewall"}]}"#;
        let template = Template::parse(text).unwrap();
        let value: Value = serde_json::from_str(&template.fill("n1", &pods())).unwrap();
        assert_eq!((&value["plugins"][0]["vlan"], &value["plugins"][0]["mtu"]), (&json!(7), &json!(1450)));
        assert_eq!(value["plugins"][0]["ipam"]["routes"], json!([{ "dst": "10.0.0.0/8" }]));
        assert_eq!(template.store(), Path::new("/d/x"));
        for (text, said) in [
            ("{", "it is not JSON"),
            (r#"{"type":"bridge"}"#, "it is no conflist"),
            (r#"{"name":"x","plugins":[]}"#, "plugins[0].ipam.type is null"),
            (r#"{"name":"x","plugins":[{"ipam":{"type":"dhcp"}}]}"#, "plugins[0].ipam.type is \"dhcp\""),
        ] {
            let error = Template::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }

    #[test]
    fn only_our_file_is_replaced_and_only_by_another_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("net.d/10-ferrule.conflist");
        let text = Template::built_in(Kind::Bridge).fill("n1", &pods());
        assert_eq!(find(&path).unwrap(), Found::Nothing);
        assert!(write(&path, &text).unwrap());
        assert_eq!(find(&path).unwrap(), Found::Ours);
        assert!(!write(&path, &text).unwrap());
        assert!(write(&path, &text.replace("1450", "1400")).unwrap());
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no other file stays");
        let other = Pods { networks: vec!["10.244.9.0/24".parse().unwrap()], mtu: 1450 };
        assert!(!remove_other(&path, &pods()).unwrap() && remove_other(&path, &other).unwrap());
        assert!(write(&path, &text).unwrap());
        assert!(remove(&path).unwrap() && !remove(&path).unwrap());
        for foreign in ["{}", "no JSON", "{\"ferruleNode\":1}"] {
            fs::write(&path, foreign).unwrap();
            let error = write(&path, &text).unwrap_err().to_string();
            assert!(error.contains("is not ours"), "{error}");
            assert!(!remove(&path).unwrap());
            assert_eq!(fs::read_to_string(&path).unwrap(), foreign);
        }
    }

    #[test]
    fn a_link_is_not_ours() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.conflist");
        std::os::unix::fs::symlink("/dev/null", &path).unwrap();
        assert_eq!(find(&path).unwrap(), Found::Foreign);
    }

    /// Also a template may be one: Kubernetes mounts a ConfigMap as links.
    #[test]
    fn a_planted_link_is_not_followed_and_no_second_name_stays() {
        let folder = tempfile::tempdir().unwrap();
        let [path, target] = ["10-ferrule.conflist", "target"].map(|name| folder.path().join(name));
        let text = Template::built_in(Kind::Ptp).fill("n1", &pods());
        for text in [text.clone(), text.replace("1450", "1400")] {
            std::os::unix::fs::symlink(&target, pending(&path)).unwrap();
            assert!(write(&path, &text).unwrap());
            let meta = fs::symlink_metadata(&path).unwrap();
            assert_eq!((meta.is_file(), meta.nlink(), target.exists()), (true, 1, false));
        }
        std::os::unix::fs::symlink(&path, &target).unwrap();
        let options = Options { template: Some(target), ..Arguments::parse_from(["x"]).options };
        assert!(Template::read(&options).is_ok());
    }
}
