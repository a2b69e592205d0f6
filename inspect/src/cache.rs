//! libcni's cache: one file for each attachment, `RESULTS/NETWORK-CONTAINER-IFNAME`, which the runtime writes after ADD.
//!
//! # References
//! `cniCacheV1` in libcni/api.go.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Read as _};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::SystemTime;

use serde_json::{Map, Value};

use crate::base64;
use crate::model::Owner;
use crate::named::Named;
use crate::scene::Sandbox;
use crate::sight::Sight;

/// The value of `kind`.
const KIND: &str = "cniCacheV1";

/// The cache of a node.
#[derive(Debug, Default)]
pub struct Cache {
    /// Whether the folder of results exists and could be read. Without it, no missing entry proves anything.
    pub is_readable: bool,
    /// The attachments.
    pub entries: Vec<Entry>,
    /// The positions of each container's entries.
    of_container: Named<Vec<usize>>,
    /// The names of files that could not be read or decoded, such as those of libcni before 0.8.
    pub unknown: Vec<String>,
    /// Why not.
    pub failures: Vec<String>,
}

/// A cached attachment.
#[derive(Clone, Debug, Default)]
pub struct Entry {
    /// Its three names.
    pub owner: Owner,
    /// CNI_NETNS of its ADD.
    pub netns: String,
    /// What that path is now.
    pub sandbox: Sandbox,
    /// CNI_ARGS.
    pub args: Vec<(String, String)>,
    /// The values for `runtimeConfig`.
    pub capabilities: Map<String, Value>,
    /// The network's configuration list.
    pub config: Rc<Value>,
    /// The result of ADD.
    pub result: Option<Value>,
    /// The container's addresses in the result.
    pub addresses: Vec<IpAddr>,
    /// Name and MAC address of the links on the host in the result.
    pub host_links: Vec<(String, String)>,
    /// The file.
    pub file: PathBuf,
    /// When the ADD ended.
    pub since: Option<SystemTime>,
}

impl Entry {
    /// The value of a key of CNI_ARGS.
    fn argument(&self, key: &str) -> Option<&str> {
        self.args.iter().find(|(name, _)| name == key).map(|(_, value)| value.as_str())
    }

    /// The pod, as `NAMESPACE/NAME`; podman's name of a container has no namespace.
    pub fn pod(&self) -> Option<String> {
        let name = self.argument("K8S_POD_NAME")?;
        Some(
            self.argument("K8S_POD_NAMESPACE")
                .map_or(name.to_owned(), |namespace| format!("{namespace}/{name}")),
        )
    }

    /// Name and MAC address of the links in the result, on the host or in the container.
    pub fn links(&self, on_host: bool) -> Vec<(String, String)> {
        self.result.as_ref().map(|result| links(result, on_host)).unwrap_or_default()
    }

    /// The version of the configuration list; empty if it has none.
    pub fn version(&self) -> &str {
        self.config.get("cniVersion").and_then(Value::as_str).unwrap_or_default()
    }

    /// The plugins of the configuration list; one configuration without a list counts as a list of one.
    pub fn plugins(&self) -> Vec<&Value> {
        match self.config.get("plugins").and_then(Value::as_array) {
            Some(plugins) => plugins.iter().collect(),
            None if self.config.get("type").is_some() => vec![&*self.config],
            None => Vec::new(),
        }
    }

    /// Whether it is only the container's `lo`, which runtimes attach before the network.
    pub fn is_loopback(&self) -> bool {
        let plugins = self.plugins();
        let is_it = |plugin: &&Value| plugin.get("type").and_then(Value::as_str) == Some("loopback");
        !plugins.is_empty() && plugins.iter().all(is_it)
    }

    /// The values of a key of the plugins with this type or, for an IPAM plugin, of `ipam` with this type.
    fn values_of<'e>(&'e self, plugin: &'e str, key: &'e str) -> impl Iterator<Item = &'e str> {
        let section = move |conf: &'e Value| {
            let is_it = |conf: &&Value| conf.get("type").and_then(Value::as_str) == Some(plugin);
            conf.get("ipam").filter(is_it).or_else(|| Some(conf).filter(is_it))
        };
        self.plugins().into_iter().filter_map(section).filter_map(move |conf| conf.get(key)?.as_str())
    }

    /// `configs` has the lists that earlier files had: the containers of a network share one.
    fn decode(bytes: &[u8], sight: &Sight, configs: &mut Named<Rc<Value>>) -> Option<Entry> {
        let mut json = parse(bytes)?;
        if json.get("kind")?.as_str()? != KIND {
            return None;
        }
        let text = |key: &str| json.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let some = |key: &str| Some(text(key)).filter(|text| !text.is_empty());
        let owner = Owner {
            container: Some(some("containerId")?),
            network: Some(some("networkName")?),
            ifname: Some(some("ifName")?),
        };
        let pair =
            |pair: &Value| Some((pair.get(0)?.as_str()?.to_owned(), pair.get(1)?.as_str()?.to_owned()));
        let args =
            json.get("cniArgs").and_then(Value::as_array).into_iter().flatten().filter_map(pair).collect();
        let encoded = text("config");
        let decoded = || base64::decode(&encoded).and_then(|bytes| parse(&bytes)).unwrap_or_default();
        let config = Rc::clone(configs.entry(&encoded, || Rc::new(decoded())));
        let netns = some("netns");
        let capabilities = match json.get_mut("capabilityArgs").map(Value::take) {
            Some(Value::Object(map)) => map,
            _ => Map::new(),
        };
        let result = json.get_mut("result").map(Value::take).filter(|result| !result.is_null());
        // The libcni of containerd 1.6 and podman 4 does not write the path. The result has it too, but plugins may write
        // other things there, so it only proves life.
        let named =
            || sandboxes(result.as_ref()?).find(|path| matches!(sight.sandbox(path), Sandbox::Live(_)));
        let netns = netns.or_else(|| named().map(str::to_owned)).unwrap_or_default();
        Some(Entry {
            owner,
            sandbox: sight.sandbox(&netns),
            netns,
            args,
            capabilities,
            config,
            addresses: result.as_ref().map(addresses).unwrap_or_default(),
            host_links: result.as_ref().map(|result| links(result, true)).unwrap_or_default(),
            result,
            file: PathBuf::new(),
            since: None,
        })
    }
}

impl Cache {
    /// A readable cache with these entries.
    #[cfg(test)]
    pub(crate) fn with(entries: Vec<Entry>) -> Cache {
        let mut cache = Cache { is_readable: true, ..Cache::default() };
        for (at, entry) in entries.iter().enumerate() {
            cache.of_container.entry(entry.owner.container.as_deref().unwrap(), Vec::new).push(at);
        }
        Cache { entries, ..cache }
    }

    /// Reads the files in the folder.
    pub fn read(results: &Path, sight: &Sight) -> Cache {
        let Ok(files) = fs::read_dir(results) else { return Cache::default() };
        let mut cache = Cache { is_readable: true, ..Cache::default() };
        let mut configs = Named::default();
        let mut names: Named<()> = Named::default();
        for file in files {
            match file {
                Ok(file) => names.add(file.file_name().to_string_lossy().into_owned(), ()),
                Err(_) => cache.is_readable = false,
            }
        }
        for name in names.names() {
            let path = results.join(name);
            let (bytes, since) = match read_file(&path) {
                Ok(read) => read,
                // A DEL has removed it since.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                Err(error) => {
                    cache.unknown.push(name.to_owned());
                    cache.failures.push(format!("cannot read the cached result {name}: {error}"));
                    continue;
                }
            };
            match Entry::decode(&bytes, sight, &mut configs) {
                Some(entry) => {
                    let container = entry.owner.container.clone().unwrap_or_default();
                    cache.of_container.entry(&container, Vec::new).push(cache.entries.len());
                    cache.entries.push(Entry { file: path, since, ..entry });
                }
                None => {
                    cache.unknown.push(name.to_owned());
                    cache.failures.push(format!("cannot decode the cached result {name}"));
                }
            }
        }
        cache
    }

    /// The values of a key in all configurations: of the plugins with this type or, for an IPAM plugin, of `ipam` with this type.
    pub fn values_of<'c>(&'c self, plugin: &'c str, key: &'c str) -> impl Iterator<Item = &'c str> {
        // The containers of a network share a configuration.
        let mut distinct: Vec<&Entry> = Vec::new();
        for entry in &self.entries {
            if !distinct.iter().any(|one| Rc::ptr_eq(&one.config, &entry.config)) {
                distinct.push(entry);
            }
        }
        distinct.into_iter().flat_map(move |entry| entry.values_of(plugin, key))
    }

    /// The entries of a container.
    pub fn of(&self, container: &str) -> impl Iterator<Item = &Entry> {
        self.of_container.get(container).into_iter().flatten().filter_map(|at| self.entries.get(*at))
    }
}

/// Decodes JSON. The plugins parse texts too, so the parser is in the program once.
pub(crate) fn parse(bytes: &[u8]) -> Option<Value> {
    serde_json::from_str(str::from_utf8(bytes).ok()?).ok()
}

/// The content of a file, and when it was written.
fn read_file(path: &Path) -> io::Result<(Vec<u8>, Option<SystemTime>)> {
    let mut file = File::open(path)?;
    let meta = file.metadata()?;
    let mut bytes = Vec::with_capacity(usize::try_from(meta.len()).unwrap_or_default() + 1);
    file.read_to_end(&mut bytes)?;
    Ok((bytes, meta.modified().ok()))
}

/// The addresses in a result of any version: `ips[].address`, or `ip4.ip` and `ip6.ip` before 0.3.0.
fn addresses(result: &Value) -> Vec<IpAddr> {
    let ips = result.get("ips").and_then(Value::as_array).into_iter().flatten();
    let ips = ips.filter_map(|ip| ip.get("address"));
    let old = ["ip4", "ip6"].into_iter().filter_map(|key| result.get(key)?.get("ip"));
    let parse = |text: &Value| text.as_str()?.split('/').next()?.parse().ok();
    ips.chain(old).filter_map(parse).collect()
}

/// What the interfaces' `sandbox` says.
fn sandboxes(result: &Value) -> impl Iterator<Item = &str> {
    let links = result.get("interfaces").and_then(Value::as_array).into_iter().flatten();
    links.filter_map(|link| link.get("sandbox")?.as_str())
}

fn links(result: &Value, on_host: bool) -> Vec<(String, String)> {
    let links = result.get("interfaces").and_then(Value::as_array).into_iter().flatten();
    let text = |link: &Value, key: &str| link.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    links
        .filter(|link| text(link, "sandbox").is_empty() == on_host)
        .map(|link| (text(link, "name"), text(link, "mac")))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole() -> Sight {
        Sight { own: 0, partial: None, is_within: false, is_elsewhere: false }
    }

    #[test]
    fn a_file_of_libcni_is_decoded() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("pods-c1-eth0");
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
        assert_eq!(entry.pod().as_deref(), Some("shop/web-0"));
        assert_eq!(entry.addresses, ["10.1.0.2".parse::<IpAddr>().unwrap()]);
        assert_eq!(entry.host_links, [("cni0".to_owned(), "02:00:00:00:00:01".to_owned())]);
        assert_eq!(entry.values_of("host-local", "dataDir").collect::<Vec<_>>(), ["/d"]);
        assert_eq!((entry.plugins().len(), entry.capabilities.len()), (2, 1));
        assert!(matches!(entry.sandbox, Sandbox::Gone(_)) && entry.since.is_some());
        assert!(!Cache::read(&dir.path().join("none"), &whole()).is_readable);
    }

    #[test]
    fn results_before_0_3_0_have_addresses() {
        let result = serde_json::json!({"ip4": {"ip": "10.0.0.2/24"}, "ip6": {"ip": "fd00::2/64"}});
        assert_eq!(addresses(&result).len(), 2);
    }
}
