//! The configuration file, in YAML or JSON: which devices belong to which resource. Pure.
//!
//! The layout and the selectors are those of the SR-IOV network device plugin where the meaning is the same.

mod dra;
mod resource;
mod selector;

use serde::Deserialize;
use serde_json::Value;

pub use dra::Dra;
pub(crate) use dra::{MAX_TEXT, is_label};
pub use resource::{Health, Pool, Resource, Template, token};
pub use selector::Selector;

use crate::health::{Delays, Millis};

/// The whole configuration.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(
    default,
    deny_unknown_fields,
    rename_all = "camelCase",
    expecting = "a mapping with the key resourceList or dra"
)]
pub struct Config {
    resource_prefix: String,
    unhealthy_after_ms: Millis,
    healthy_after_ms: Millis,
    /// The resources, in the order in which they choose devices.
    #[serde(rename = "resourceList")]
    pub resources: Vec<Resource>,
    /// The driver of Dynamic Resource Allocation; it chooses devices after the resources.
    pub dra: Option<Dra>,
}

impl Default for Config {
    fn default() -> Config {
        let resource_prefix = "ferrule.dev".to_owned();
        Config {
            resource_prefix,
            unhealthy_after_ms: 1_000,
            healthy_after_ms: 3_000,
            resources: Vec::new(),
            dra: None,
        }
    }
}

impl Config {
    /// How long a link must have lost its carrier before its device is unhealthy, and how long it must have it again.
    pub fn delays(&self) -> Delays {
        [self.unhealthy_after_ms, self.healthy_after_ms]
    }

    /// What may take a device, in this order: the resources, then the driver.
    pub fn takers(&self) -> impl Iterator<Item = &Resource> {
        self.resources.iter().chain(self.dra.iter().map(|dra| &dra.devices))
    }

    /// Reads a configuration. JSON is YAML too.
    ///
    /// # Errors
    /// The first wrong value, with its place.
    pub fn parse(text: &str) -> Result<Config, String> {
        let mut file: Value = yaml_serde::from_str(text).map_err(|error| error.to_string())?;
        file.get_mut("resourceList")
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
            .for_each(one_selector);
        file.get_mut("dra").into_iter().for_each(one_selector);
        let mut config: Config = serde_path_to_error::deserialize(file).map_err(|error| error.to_string())?;
        if config.resources.is_empty() && config.dra.is_none() {
            return Err("resourceList is empty, and there is no dra".to_owned());
        }
        config.dra.iter().try_for_each(Dra::check).map_err(|why| format!("dra: {why}"))?;
        for position in 0..config.resources.len() {
            let (earlier, rest) = config.resources.split_at_mut(position);
            let resource = &mut rest[0];
            let place = format!("resourceList[{position}] ({})", resource.name);
            let checked =
                resource.check(&config.resource_prefix).and_then(|()| resource.check_against(earlier));
            checked.map_err(|why| format!("{place}: {why}"))?;
        }
        Ok(config)
    }
}

/// One selector may stand for a list of one.
fn one_selector(entry: &mut Value) {
    if let Some(one @ Value::Object(_)) = entry.get_mut("selectors") {
        *one = Value::Array(vec![one.take()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(text: &str) -> String {
        Config::parse(text).unwrap_err()
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
        Config::parse(include_str!("../../../../examples/nic.yaml")).unwrap();
    }

    #[test]
    fn bad_input_is_one_clear_error() {
        let one = |rest: &str| format!("resourceList: [{{resourceName: a, {rest}}}]");
        for (text, part) in [
            ("resourceList: []".to_owned(), "resourceList is empty, and there is no dra"),
            ("dra: {}".to_owned(), "dra: missing field `selectors`"),
            ("dra: {selectors: []}".to_owned(), "dra: it has no selectors"),
            ("dra: {selectors: {vendor: [x]}}".to_owned(), "dra.selectors[0].vendor: unknown field `vendor`"),
            (
                "dra: {selectors: {}, driverName: A.b}".to_owned(),
                "dra: driverName \"A.b\" is no DNS subdomain",
            ),
            (
                "dra: {selectors: {}, driverName: a..b}".to_owned(),
                "dra: driverName \"a..b\" is no DNS subdomain",
            ),
            ("dra: {selectors: {}, resourceName: ''}".to_owned(), "dra: resourceName \"\" does not have"),
            (String::new(), "invalid type: null, expected a mapping with the key resourceList or dra"),
            ("{".to_owned(), "line 2 column 1"),
            ("resources: []".to_owned(), "unknown field `resources`"),
            (one("selector: {}"), "resourceList[0].selector: unknown field `selector`"),
            (one("selectors: {vendor: [x]}"), "resourceList[0].selectors[0].vendor: unknown field `vendor`"),
            (
                one("selectors: {vendors: [8086]}"),
                "[0].selectors[0].vendors[0]: invalid type: integer `8086`",
            ),
            (
                one("selectors: {}, preStartRequired: 1"),
                "resourceList[0].preStartRequired: invalid type: integer `1`",
            ),
            (one("selectors: {ddpProfiles: [x]}"), "unknown field `ddpProfiles`"),
            (one("selectors: {}, deviceType: accelerator"), "unknown variant `accelerator`"),
            (
                one("selectors: {}, pool: {template: veth, count: 1}"),
                "resourceList[0] (a): it has both selectors and a pool",
            ),
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
    fn each_name_once() {
        let two = "resourceList: [{resourceName: a, selectors: {}}, {resourceName: b, selectors: {}}]";
        assert_eq!(Config::parse(two).unwrap().resources.len(), 2);
        assert!(refused(&two.replace("resourceName: b", "resourceName: a")).contains("twice"));
        let pools = "resourceList: [{resourceName: a, pool: {template: veth, count: 1}},
            {resourceName: a, resourcePrefix: b, pool: {template: veth, count: 1}}]";
        assert!(refused(pools).contains("its tokens would have the IDs of those of ferrule.dev/a"));
    }
}
