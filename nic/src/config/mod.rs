//! The configuration file, in YAML or JSON: which devices belong to which resource. Pure.
//!
//! The layout and the selectors are those of the SR-IOV network device plugin where the meaning is the same.

mod names;
mod resource;
mod selector;

use std::fmt;

use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

pub use names::{env_name, socket_name};
pub use resource::{Health, Pool, Resource, Source, Template, token};
pub use selector::Selector;

/// The fault of a configuration, and its place.
#[derive(Debug, PartialEq, Eq)]
pub struct Invalid(String);

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Invalid {}

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// How long a link may have no carrier before its device is unhealthy, in milliseconds.
    pub unhealthy_after: u64,
    /// How long a link must have a carrier before its device is healthy again, in milliseconds.
    pub healthy_after: u64,
    /// The resources, in the order in which they choose devices.
    pub resources: Vec<Resource>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", expecting = "a mapping with the key resourceList")]
struct File {
    #[serde(default = "prefix")]
    resource_prefix: String,
    #[serde(default = "unhealthy_after")]
    unhealthy_after_ms: u64,
    #[serde(default = "healthy_after")]
    healthy_after_ms: u64,
    resource_list: Vec<Value>,
}

fn prefix() -> String {
    "ferrule.dev".to_owned()
}

fn unhealthy_after() -> u64 {
    1_000
}

fn healthy_after() -> u64 {
    3_000
}

impl Config {
    /// Reads a configuration. JSON is YAML too.
    pub fn parse(text: &str) -> Result<Config, Invalid> {
        let invalid = |error: &dyn fmt::Display| Invalid(error.to_string());
        let file: Value = yaml_serde::from_str(text).map_err(|error| invalid(&error))?;
        let file: File = decode(file)?;
        let mut resources: Vec<Resource> = Vec::new();
        for (position, entry) in file.resource_list.into_iter().enumerate() {
            let place = entry["resourceName"].as_str().map_or(String::new(), |name| format!(" ({name})"));
            let place = format!("resourceList[{position}]{place}");
            let resource = resource::parse(entry, &file.resource_prefix)
                .map_err(|error| Invalid(format!("{place}: {}", error.0)))?;
            if resources.iter().any(|other| other.name == resource.name) {
                return Err(Invalid(format!("{place}: the resource {} is there twice", resource.name)));
            }
            let is_pool = |resource: &Resource| matches!(resource.source, Source::Pool(_));
            let same = |other: &&Resource| is_pool(other) && other.short_name() == resource.short_name();
            if let Some(other) = resources.iter().find(same).filter(|_| is_pool(&resource)) {
                return Err(Invalid(format!(
                    "{place}: its tokens would have the IDs of those of {}",
                    other.name
                )));
            }
            if let Some(text) = shadowed(&resources, &resource) {
                return Err(Invalid(format!("{place}: {text}")));
            }
            resources.push(resource);
        }
        if resources.is_empty() {
            return Err(Invalid("resourceList is empty".to_owned()));
        }
        let (unhealthy_after, healthy_after) = (file.unhealthy_after_ms, file.healthy_after_ms);
        Ok(Config { unhealthy_after, healthy_after, resources })
    }
}

/// Decodes a value. An error names the key.
fn decode<T: DeserializeOwned>(value: Value) -> Result<T, Invalid> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let text = error.inner().to_string();
        match error.path().to_string() {
            path if path == "." || text.contains(&format!("`{path}`")) => Invalid(text),
            path => Invalid(format!("{path}: {text}")),
        }
    })
}

/// Why a selector of the resource can never get a device.
fn shadowed(earlier: &[Resource], resource: &Resource) -> Option<String> {
    let Source::Selectors(selectors) = &resource.source else { return None };
    let selectors = selectors.iter().enumerate();
    selectors.flat_map(|later| earlier.iter().map(move |first| (later, first))).find_map(
        |((position, selector), first)| {
            let Source::Selectors(all) = &first.source else { return None };
            all.iter().any(|other| other.covers(selector)).then(|| {
                format!(
                    "selectors overlap: selectors[{position}] gets no device, because {} takes all of them",
                    first.name
                )
            })
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text).unwrap_err().to_string()
    }

    #[test]
    fn yaml_and_json() {
        let yaml = "
resourceList:
- resourceName: nic
  selectors: {ifNames: ['eth*'], kinds: [physical]}
- resourceName: lan
  resourcePrefix: example.com
  health: pfCarrier
  pool: {template: macvlan, master: eth0, count: 3}
";
        let config = Config::parse(yaml).unwrap();
        let names: Vec<_> = config.resources.iter().map(|resource| resource.name.as_str()).collect();
        assert_eq!(names, ["ferrule.dev/nic", "example.com/lan"]);
        assert_eq!(config.resources[1].health, Health::PfCarrier);
        let json = r#"{"resourceList": [
            {"resourceName": "nic", "selectors": [{"ifNames": ["eth*"], "kinds": ["physical"]}]},
            {"resourceName": "lan", "resourcePrefix": "example.com", "health": "pfCarrier",
             "pool": {"template": "macvlan", "master": "eth0", "count": 3}}]}"#;
        assert_eq!(Config::parse(json).unwrap(), config);
    }

    #[test]
    fn the_example() {
        Config::parse(include_str!("../../../examples/nic.yaml")).unwrap();
    }

    #[test]
    fn bad_input_is_one_clear_error() {
        let one = |rest: &str| format!("resourceList: [{{resourceName: a, {rest}}}]");
        for (text, part) in [
            ("resourceList: []".to_owned(), "resourceList is empty"),
            (String::new(), "invalid type: null, expected a mapping with the key resourceList"),
            ("{".to_owned(), "line 2 column 1"),
            ("resources: []".to_owned(), "unknown field `resources`"),
            (one("selector: {}"), "resourceList[0] (a): unknown field `selector`"),
            (one("selectors: {vendor: [x]}"), "resourceList[0] (a): selectors[0]: unknown field `vendor`"),
            (
                one("selectors: {vendors: [8086]}"),
                "(a): selectors[0]: vendors[0]: invalid type: integer `8086`",
            ),
            (one("selectors: {}, preStartRequired: 1"), "(a): preStartRequired: invalid type: integer `1`"),
            (one("selectors: {ddpProfiles: [x]}"), "ddpProfiles is not supported"),
            (one("selectors: {}, deviceType: accelerator"), "unknown variant `accelerator`"),
            (one("selectors: {}, pool: {template: veth, count: 1}"), "both selectors and a pool"),
            (one("health: carrier"), "neither selectors nor a pool"),
            (one("pool: {template: macvlan, count: 1}"), "the pool has no master"),
            (one("pool: {template: veth, count: 0}"), "pool.count is 0"),
            (
                one("pool: {template: veth, count: 1}")
                    .replace(" a,", &format!(" {}, resourcePrefix: b,", "a".repeat(62))),
                "more than 63 bytes",
            ),
            (
                one("selectors: {}, resourcePrefix: kubernetes.io"),
                r#"the kubelet refuses the resource name "kubernetes.io/a""#,
            ),
        ] {
            let error = refused(&text);
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn overlapping_selectors() {
        let two = |first: &str, second: &str| {
            format!(
                "resourceList: [{{resourceName: a, selectors: {first}}}, {{resourceName: b, selectors: {second}}}]"
            )
        };
        for (first, second) in [
            ("{}", "{drivers: [x]}"),
            ("{vendors: ['8086', '15b3']}", "{vendors: ['15B3'], drivers: [x]}"),
            ("{ifNames: ['eth*']}", "{ifNames: [eth1, eth2]}"),
            ("{pfNames: [p0]}", "{pfNames: ['p0#1']}"),
            ("{pfNames: ['p0#0-7']}", "{pfNames: ['p0#2-3']}"),
        ] {
            let error = refused(&two(first, second));
            assert!(
                error.contains("selectors overlap: selectors[0] gets no device, because ferrule.dev/a"),
                "{error}"
            );
        }
        for (first, second) in [
            ("{drivers: [x]}", "{}"),
            ("{vendors: ['8086']}", "{vendors: ['8086', '15b3']}"),
            ("{ifNames: ['eth?']}", "{ifNames: ['eth*']}"),
            ("{ifNames: [eth1]}", "{ifNames: ['eth*']}"),
            ("{pfNames: ['p0#0-3']}", "{pfNames: ['p0#2-7']}"),
        ] {
            Config::parse(&two(first, second)).unwrap();
        }
        assert!(refused(&two("{}", "{}").replace("resourceName: b", "resourceName: a")).contains("twice"));
    }
}
