//! libcni's cache: one file for each attachment, `RESULTS/NETWORK-CONTAINER-IFNAME`, which the runtime writes after ADD.
//!
//! # References
//! `cniCacheV1` in libcni/api.go.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use base64::prelude::{BASE64_STANDARD, Engine as _};
use ferrule_kernel::file;
use ferrule_kernel::netlink::Link;
use ferrule_kit::fold::unfolded;
use ferrule_kit::presence::Presence;
use ferrule_kit::veth;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::model::{Maker, Owner, State, seconds, shown};
use crate::sight::Sight;

/// The value of `kind`.
pub(crate) const KIND: &str = "cniCacheV1";

/// The links of a node that may be a host's end, by name.
pub type Pairs = BTreeMap<String, Link>;

/// The cache of a node.
#[derive(Debug, Default)]
pub struct Cache {
    /// Whether the folder of results exists and could be read. Without it, no missing entry proves anything.
    pub is_readable: bool,
    /// The attachments, by owner.
    pub entries: Vec<Entry>,
    /// The names of files that could not be read or decoded, such as those of libcni before 0.8.
    pub unknown: Vec<String>,
    /// Why not.
    pub failures: Vec<String>,
}

/// A cached attachment. Serialised, it is what the JSON of the views says of it.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Entry {
    /// Its three names.
    #[serde(skip)]
    pub owner: Owner,
    /// The pod, as `NAMESPACE/NAME`; podman's name of a container has no namespace.
    pub pod: Option<String>,
    /// CNI_NETNS of its ADD.
    pub netns: String,
    /// What that path is now.
    #[serde(skip)]
    pub netns_state: Presence,
    /// What the runtime has sent.
    #[serde(skip)]
    pub sent: Sent,
    /// The network's configuration list, without chains.
    #[serde(skip)]
    pub config: Arc<Value>,
    /// The container's addresses in the result.
    #[serde(skip)]
    pub addresses: BTreeSet<IpAddr>,
    /// The links in the result.
    #[serde(skip)]
    pub links: Vec<CachedLink>,
    /// The file.
    #[serde(rename = "cache", serialize_with = "shown")]
    pub file: PathBuf,
    /// When the ADD ended.
    #[serde(serialize_with = "seconds")]
    pub since: Option<SystemTime>,
}

/// A link in a result.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct CachedLink {
    /// Its name.
    pub name: String,
    /// Its MAC address.
    pub mac: String,
    /// The path of the network namespace that it is in; empty for the host's.
    pub sandbox: String,
}

/// What the runtime has sent at ADD, and the answer.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Sent {
    /// CNI_ARGS.
    pub cni_args: Vec<(String, String)>,
    /// The values for `runtimeConfig`.
    pub capability_args: Map<String, Value>,
    /// The result, or null.
    pub result: Value,
}

/// A file of the cache.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct CacheFile {
    kind: String,
    container_id: String,
    network_name: String,
    if_name: String,
    netns: Option<String>,
    config: Option<String>,
    #[serde(flatten)]
    sent: Sent,
}

impl Entry {
    /// Whether the attachment is alive, as its namespace says.
    pub fn state(&self) -> State {
        State::of_netns(&self.netns, self.netns_state)
    }

    /// The plugins of the configuration list; one configuration without a list counts as a list of one.
    pub fn plugins(&self) -> Vec<&Value> {
        match self.config["plugins"].as_array() {
            Some(plugins) => plugins.iter().collect(),
            None if self.config.get("type").is_some() => vec![&*self.config],
            None => Vec::new(),
        }
    }

    /// Whether it is only the container's `lo`, which runtimes attach before the network.
    pub fn is_loopback(&self) -> bool {
        let plugins = self.plugins();
        !plugins.is_empty() && plugins.iter().all(|plugin| plugin["type"] == "loopback")
    }

    /// The values of a key of the plugins with this type or, for an IPAM plugin, of `ipam` with this type. `ipam` of `flannel` needs
    /// no type if it is host-local.
    pub fn values_of(&self, plugin: &str, key: &str) -> impl Iterator<Item = &str> {
        let type_of = |conf: &Value| conf["type"].as_str().unwrap_or_default().to_owned();
        let ipam_of = move |conf: &Value| match type_of(&conf["ipam"]) {
            name if name.is_empty() && conf["type"] == "flannel" => "host-local".to_owned(),
            name => name,
        };
        let of = move |conf| [(ipam_of(conf), &conf["ipam"]), (type_of(conf), conf)];
        let sections = self.plugins().into_iter().flat_map(of);
        sections.filter(move |(name, _)| name == plugin).filter_map(move |(_, conf)| conf[key].as_str())
    }

    /// The plugin's configuration as libcni sends it at CHECK and DEL.
    pub fn request(&self, plugin: &Value) -> String {
        let mut config = plugin.as_object().cloned().unwrap_or_default();
        config.insert("name".to_owned(), json!(self.owner.network));
        config.insert("cniVersion".to_owned(), self.config["cniVersion"].clone());
        if !self.sent.result.is_null() {
            config.insert("prevResult".to_owned(), self.sent.result.clone());
        }
        let mut values = self.sent.capability_args.clone();
        values.retain(|name, _| plugin["capabilities"][name] == true);
        if !values.is_empty() {
            config.insert("runtimeConfig".to_owned(), values.into());
        }
        json!(config).to_string()
    }

    /// CNI_ARGS.
    pub fn args(&self) -> String {
        let args = self.sent.cni_args.iter();
        args.map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(";")
    }

    /// `configs` has the lists that earlier files had: the containers of a network share one.
    fn decode(bytes: &[u8], sight: &Sight, configs: &mut HashMap<String, Arc<Value>>) -> Option<Entry> {
        let file: CacheFile = serde_json::from_slice(bytes).ok()?;
        let names = [&file.container_id, &file.network_name, &file.if_name];
        if file.kind != KIND || names.iter().any(|name| name.is_empty()) {
            return None;
        }
        let config = configs.entry(file.config.unwrap_or_default()).or_insert_with_key(|encoded| {
            let json = BASE64_STANDARD.decode(encoded).ok();
            Arc::new(
                json.and_then(|json| serde_json::from_slice(&json).ok()).map(unfolded).unwrap_or_default(),
            )
        });
        let links = file.sent.result["interfaces"].as_array().into_iter().flatten();
        let links: Vec<CachedLink> = links.filter_map(|link| CachedLink::deserialize(link).ok()).collect();
        // The libcni of containerd 1.6 and podman 4 does not write the path. The result has it too, but plugins may write
        // other things there, so it only proves life.
        let named = || {
            let is_live = |path: &&String| sight.netns(path).inode().is_some();
            links.iter().map(|link| &link.sandbox).find(is_live).cloned()
        };
        let netns = file.netns.filter(|path| !path.is_empty()).or_else(named).unwrap_or_default();
        Some(Entry {
            owner: Owner::container(&file.container_id).on(&file.network_name).with_ifname(&file.if_name),
            pod: pod(&file.sent.cni_args),
            netns_state: sight.netns(&netns),
            netns,
            config: Arc::clone(config),
            addresses: addresses(&file.sent.result),
            links,
            sent: file.sent,
            ..Entry::default()
        })
    }
}

impl Cache {
    /// A readable cache with these entries.
    #[cfg(test)]
    pub(crate) fn with(entries: Vec<Entry>) -> Cache {
        Cache { is_readable: true, entries, ..Cache::default() }
    }

    /// Reads the files in the folder.
    pub fn read(results: &Path, sight: &Sight) -> Cache {
        let Ok(files) = fs::read_dir(results) else { return Cache::default() };
        let mut cache = Cache { is_readable: true, ..Cache::default() };
        let mut configs = HashMap::new();
        for file in files {
            let Ok(file) = file else {
                cache.is_readable = false;
                continue;
            };
            let (path, name) = (file.path(), file.file_name().to_string_lossy().into_owned());
            // The time first: a file that changes in between then has another one.
            let read =
                fs::symlink_metadata(&path).and_then(|meta| Ok((file::read(&path)?, meta.modified().ok())));
            let decoded = match read {
                Ok((bytes, since)) => Entry::decode(&bytes, sight, &mut configs)
                    .map(|entry| Entry { file: path, since, ..entry })
                    .ok_or_else(|| format!("cannot decode the cached result {name}")),
                // A DEL has removed it since.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => Err(format!("cannot read the cached result {name}: {error}")),
            };
            match decoded {
                Ok(entry) => cache.entries.push(entry),
                Err(why) => {
                    cache.unknown.push(name);
                    cache.failures.push(why);
                }
            }
        }
        cache.entries.sort_by(|one, other| one.owner.cmp(&other.owner));
        cache
    }

    /// The host's end of an attachment, and whose plugin has made it: by the name that Ferrule derives, or by the result. Some plugins
    /// report no MAC address, such as those of AWS and Calico. Then the name decides while the container's namespace exists: the next
    /// container of the same pod may have the same name.
    pub fn host_end<'l>(&self, pairs: &'l Pairs, owner: &Owner) -> Option<(&'l Link, Maker)> {
        let mut derived = owner.attachment().into_iter().flat_map(|attachment| veth::names(&attachment));
        let ours = derived.find_map(|(name, mac)| pairs.get(&name).filter(|link| link.mac == mac));
        let entries = self.of(owner.container.as_deref()?).filter(|entry| entry.owner == *owner);
        let on_host = |link: &&CachedLink| link.sandbox.is_empty();
        let mut cached =
            entries.flat_map(|entry| entry.links.iter().filter(on_host).map(move |link| (entry, link)));
        ours.map(|link| (link, Maker::Ferrule)).or_else(|| {
            cached.find_map(|(entry, end)| {
                let link = pairs.get(&end.name)?;
                if end.mac.is_empty() {
                    let is_alive = matches!(entry.netns_state, Presence::Present(_));
                    return (is_alive && link.peer_netns.is_some()).then_some((link, Maker::Either));
                }
                (link.mac.to_string() == end.mac).then_some((link, Maker::Reference))
            })
        })
    }

    /// The entries of a container.
    pub fn of(&self, container: &str) -> impl Iterator<Item = &Entry> {
        let of = |entry: &Entry| entry.owner.container.as_deref().unwrap_or_default().cmp(container);
        let start = self.entries.partition_point(|entry| of(entry).is_lt());
        self.entries[start..].iter().take_while(move |entry| of(entry).is_eq())
    }
}

/// The pod that CNI_ARGS name.
fn pod(args: &[(String, String)]) -> Option<String> {
    let value = |key: &str| args.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str());
    let name = value("K8S_POD_NAME")?;
    Some(value("K8S_POD_NAMESPACE").map_or(name.to_owned(), |namespace| format!("{namespace}/{name}")))
}

/// The addresses in a result of any version: `ips[].address`, or `ip4.ip` and `ip6.ip` before 0.3.0.
pub(crate) fn addresses(result: &Value) -> BTreeSet<IpAddr> {
    let ips = result["ips"].as_array().into_iter().flatten().map(|ip| &ip["address"]);
    let old = ["ip4", "ip6"].into_iter().map(|key| &result[key]["ip"]);
    ips.chain(old).filter_map(|text| text.as_str()?.split('/').next()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    fn whole() -> Sight {
        Sight { own: 0, partial: None, is_within: false, is_elsewhere: false }
    }

    /// The reader follows no link, waits for no FIFO and stops at its limit.
    #[test]
    fn foreign_objects_are_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        assert!(std::process::Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        std::os::unix::fs::symlink("/dev/zero", path("link")).unwrap();
        std::os::unix::fs::symlink("nowhere", path("dangling")).unwrap();
        fs::create_dir(path("folder")).unwrap();
        fs::File::create(path("sparse")).unwrap().set_len(10 << 30).unwrap();
        let mut cache = Cache::read(dir.path(), &whole());
        cache.unknown.sort();
        assert_eq!(cache.unknown, ["dangling", "fifo", "folder", "link", "sparse"]);
        assert!(cache.failures.iter().any(|why| why.starts_with("cannot read the cached result fifo: ")));
    }

    #[test]
    fn a_file_of_libcni_is_decoded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(std::ffi::OsStr::from_bytes(b"pods-c1-eth0\xff"));
        // {"name":"pods","plugins":[{"type":"bridge","ipam":{"type":"host-local","dataDir":"/d"}},{"type":"tuning"}]}
        let config = "eyJuYW1lIjoicG9kcyIsInBsdWdpbnMiOlt7InR5cGUiOiJicmlkZ2UiLCJpcGFtIjp7InR5cGUiOiJob3N0LWxvY2FsIiwiZGF0YURpciI6Ii9kIn19LHsidHlwZSI6InR1bmluZyJ9XX0=";
        let text = format!(
            r#"{{"kind":"cniCacheV1","containerId":"c1","config":"{config}","ifName":"eth0","networkName":"pods",
            "netns":"/nowhere","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-0"]],
            "capabilityArgs":{{"bandwidth":{{}}}},"result":{{"cniVersion":"1.0.0",
            "interfaces":[{{"name":"cni0","mac":"02:00:00:00:00:01"}},{{"name":"eth0","sandbox":"/nowhere"}}],
            "ips":[{{"address":"10.1.0.2/16"}}]}}}}"#
        );
        fs::write(&file, text).unwrap();
        fs::write(dir.path().join("old-c2-eth0"), "{}").unwrap();
        let cache = Cache::read(dir.path(), &whole());
        assert!(cache.is_readable && cache.unknown == ["old-c2-eth0"]);
        let entry = cache.of("c1").next().unwrap();
        assert_eq!(entry.pod.as_deref(), Some("shop/web-0"));
        assert!(entry.addresses.iter().eq(&["10.1.0.2".parse::<IpAddr>().unwrap()]));
        assert_eq!(
            (entry.links[0].name.as_str(), entry.links[0].mac.as_str(), entry.links[1].sandbox.as_str()),
            ("cni0", "02:00:00:00:00:01", "/nowhere")
        );
        assert_eq!(entry.values_of("host-local", "dataDir").collect::<Vec<_>>(), ["/d"]);
        assert_eq!((entry.plugins().len(), entry.sent.capability_args.len()), (2, 1));
        assert!(matches!(entry.netns_state, Presence::Gone { .. }) && entry.since.is_some());
        assert!(json!(entry)["cache"].as_str().unwrap().ends_with("pods-c1-eth0\u{fffd}"));
        assert!(!Cache::read(&dir.path().join("none"), &whole()).is_readable);
    }

    #[test]
    fn a_host_end_without_a_mac_address_is_known_by_its_name() {
        let link = |name: &str, peer_netns| Link { name: name.to_owned(), peer_netns, ..Link::default() };
        let pairs: Pairs =
            [link("cali1", Some(4)), link("veth1", None)].map(|link| (link.name.clone(), link)).into();
        let present = Presence::Present((4, 1));
        for (name, mac, netns_state, expected) in [
            ("cali1", "", present, Some(Maker::Either)),
            ("cali1", "", Presence::Gone { is_missing: true }, None),
            ("cali1", "00:00:00:00:00:00", Presence::Unknown, Some(Maker::Reference)),
            ("cali1", "02:00:00:00:00:01", present, None),
            ("veth1", "", present, None),
            ("cali2", "", present, None),
        ] {
            let owner = Owner::container("c1").on("net").with_ifname("eth0");
            let of_host = CachedLink { name: name.to_owned(), mac: mac.to_owned(), ..CachedLink::default() };
            let entry = Entry { owner: owner.clone(), netns_state, links: vec![of_host], ..Entry::default() };
            let cache = Cache { entries: vec![entry], ..Cache::default() };
            let found = cache.host_end(&pairs, &owner).map(|(_, maker)| maker);
            assert_eq!(found, expected, "{name} {mac}");
        }
    }

    #[test]
    fn a_plugin_gets_the_result_and_the_capabilities_that_it_declares() {
        let capability_args = json!({"portMappings": [1], "bandwidth": {}}).as_object().cloned().unwrap();
        let result = json!({"cniVersion": "1.0.0"});
        let entry = Entry {
            owner: Owner::container("c1").on("net").with_ifname("eth0"),
            config: Arc::new(result.clone()),
            sent: Sent { capability_args, result, ..Sent::default() },
            ..Entry::default()
        };
        let plugin = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true, "bandwidth": false}});
        let expected = json!({"type": "portmap", "snat": true, "capabilities": {"portMappings": true, "bandwidth": false},
            "name": "net", "cniVersion": "1.0.0", "prevResult": {"cniVersion": "1.0.0"}, "runtimeConfig": {"portMappings": [1]}});
        assert_eq!(entry.request(&plugin).parse::<Value>().unwrap(), expected);
        assert!(!entry.request(&json!({"type": "x"})).contains("runtimeConfig"));
    }

    #[test]
    fn results_before_0_3_0_have_addresses() {
        let result = json!({"ip4": {"ip": "10.0.0.2/24"}, "ip6": {"ip": "fd00::2/64"}});
        assert_eq!(addresses(&result).len(), 2);
    }
}
