//! Which interfaces the pod gets, and which plugins make each of them. Pure.

use std::collections::BTreeSet;

use cni_common::spec::{CniError, SpecVersion};
use ferrule_kubelet::claims::Object;
use ferrule_kubelet::claims::{Claimed, Cni, Link, Record, Step, network};
use serde_json::{Value, json};

/// The interface of one device, not yet made.
#[derive(Clone, Debug, PartialEq)]
pub struct Planned {
    /// What the attached file says of it. Its plugins lack the device.
    pub step: Step,
    /// The device.
    pub link: Link,
}

/// Plans the interfaces of all records. `taken` are the names of the interfaces that the pod has already.
///
/// # Errors
/// Code 7 if two interfaces have the same name, or a configuration is invalid.
pub fn plan(records: &[Record], network: &str, taken: &BTreeSet<String>) -> Result<Vec<Planned>, CniError> {
    let mut taken = taken.clone();
    let devices = || records.iter().flat_map(|record| record.devices.iter().map(move |one| (record, one)));
    for (record, name) in devices().filter_map(|(record, one)| Some((record, one.name()?))) {
        if !taken.insert(name.to_owned()) {
            let claim = &record.claim;
            let msg = format!(
                "claim {}/{}: the pod has an interface {name:?} already",
                claim.namespace, claim.name
            );
            return Err(CniError::invalid_config(msg));
        }
    }
    let mut free = (1u32..).map(|number| format!("net{number}")).filter(|name| !taken.contains(name));
    let mut planned = Vec::new();
    for (record, one) in devices() {
        let named = one.name().map(str::to_owned);
        let Some(if_name) = named.or_else(|| free.next()) else { continue };
        let claim = &record.claim;
        let plugins = plugins(one, network).map_err(|why| {
            CniError::invalid_config(format!("claim {}/{}: {why}", claim.namespace, claim.name))
        })?;
        let step = Step {
            claim: claim.clone(),
            request: one.request.clone(),
            pool: one.pool.clone(),
            device: one.device.clone(),
            link: one.link.name.clone(),
            if_name,
            raised: None,
            plugins,
            outcome: None,
        };
        planned.push(Planned { step, link: one.link.clone() });
    }
    Ok(planned)
}

/// The configurations of the plugins for one device, on a network of their own: GC of the pod's network does not know the interface.
fn plugins(one: &Claimed, network: &str) -> Result<Vec<Object>, String> {
    let (name, mut plugins) = match &one.cni {
        Some(Cni { config, .. }) => {
            network::check(config)?;
            (config.get("name").and_then(Value::as_str).unwrap_or(network), network::plugins(config)?)
        }
        None => (network, moved(one)),
    };
    for plugin in &mut plugins {
        plugin.insert("name".to_owned(), format!("{name}.claims").into());
        plugin.insert("cniVersion".to_owned(), SpecVersion::NEWEST.as_str().into());
    }
    Ok(plugins)
}

/// The plugins that move the device itself.
fn moved(one: &Claimed) -> Vec<Object> {
    let mut device = Object::from_iter([("type".to_owned(), json!("host-device"))]);
    device.extend(ipam(one).map(|ipam| ("ipam".to_owned(), ipam.into())));
    let tuning =
        |mtu: u32| Object::from_iter([("type".to_owned(), json!("tuning")), ("mtu".to_owned(), json!(mtu))]);
    [device].into_iter().chain(one.mtu.map(tuning)).collect()
}

fn ipam(one: &Claimed) -> Option<Object> {
    if one.ipam.is_some() || one.addresses.is_empty() && one.routes.is_empty() {
        return one.ipam.clone();
    }
    let addresses: Vec<Value> = one.addresses.iter().map(|address| json!({"address": address})).collect();
    let fields = [("type", json!("static")), ("addresses", addresses.into()), ("routes", json!(one.routes))];
    Some(fields.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(name: &str, devices: &str) -> Record {
        let text = format!(
            r#"{{"version":1,"driver":"d","claim":{{"namespace":"shop","name":"{name}","uid":"c1"}},
                "pod":{{"uid":"0d3c","name":"web"}},"devices":[{devices}]}}"#
        );
        Record::parse(text.as_bytes()).unwrap()
    }

    fn device(keys: &str) -> String {
        format!(r#"{{"request":"r","pool":"p","device":"d","link":{{"name":"ens1"}}{keys}}}"#)
    }

    fn taken(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn names_of_interfaces() {
        let two = [device(""), device(r#","ifName":"net2""#)].join(",");
        let records = [record("a", &two), record("b", &device(""))];
        let names = |taken_names| -> Vec<String> {
            let planned = plan(&records, "n", &taken(taken_names)).unwrap();
            planned.into_iter().map(|one| one.step.if_name).collect()
        };
        assert_eq!(names(&["eth0", "lo"]), ["net1", "net2", "net3"]);
        assert_eq!(names(&["eth0", "net1"]), ["net3", "net2", "net4"]);
        let error = plan(&records, "n", &taken(&["net2"])).unwrap_err();
        assert_eq!(error.msg, "claim shop/a: the pod has an interface \"net2\" already");
        let twice = [record("a", &device(r#","ifName":"x""#)), record("b", &device(r#","ifName":"x""#))];
        assert_eq!(
            plan(&twice, "n", &taken(&[])).unwrap_err().msg,
            "claim shop/b: the pod has an interface \"x\" already"
        );
    }

    #[test]
    fn plugins_of_a_device() {
        for (keys, expected) in [
            ("", json!([{"type": "host-device"}])),
            (
                r#","mtu":1400,"addresses":["10.0.0.2/24"],"routes":[{"dst":"10.9.0.0/16","gw":"10.0.0.1"}]"#,
                json!([{"type": "host-device", "ipam": {"type": "static", "addresses": [{"address": "10.0.0.2/24"}],
                    "routes": [{"dst": "10.9.0.0/16", "gw": "10.0.0.1"}]}}, {"type": "tuning", "mtu": 1400}]),
            ),
            (
                r#","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}"#,
                json!([{"type": "host-device", "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}}]),
            ),
            (
                r#","cni":{"ifName":"x","config":{"plugins":[{"type":"vlan","vlanId":7},{"type":"sbr"}]}}"#,
                json!([{"type": "vlan", "vlanId": 7}, {"type": "sbr"}]),
            ),
        ] {
            let planned = plan(&[record("a", &device(keys))], "n", &taken(&[])).unwrap();
            let mut expected = expected;
            for plugin in expected.as_array_mut().unwrap() {
                plugin["name"] = json!("n.claims");
                plugin["cniVersion"] = json!("1.1.0");
            }
            assert_eq!(json!(planned[0].step.plugins), expected, "{keys}");
        }
        let named = device(r#","cni":{"ifName":"x","config":{"name":"mv","type":"macvlan"}}"#);
        let planned = plan(&[record("a", &named)], "n", &taken(&[])).unwrap();
        assert_eq!(planned[0].step.plugins[0]["name"], "mv.claims");
    }
}
