//! The addresses and the configurations of the endpoint and of its other side. Pure.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;

use cni_common::plugin::Attachment;
use ferrule_kernel::ip::IpFamily;
use ferrule_kit::fold::{first, first_mut};
use ferrule_kit::veth;
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::CONTAINERS;
use super::chain::IFNAME;
use crate::conflist::MARK;

/// The most addresses that are looked at.
const TRIES: u128 = 1024;

/// The addresses of one podCIDR.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The podCIDR.
    pub network: String,
    pub gateway: IpAddr,
    /// The endpoint's.
    pub address: IpAddr,
    /// That of the other side, which the node forwards to.
    pub forwarded: Option<IpAddr>,
}

impl Place {
    /// All addresses that the endpoint has here.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        std::iter::once(self.address).chain(self.forwarded)
    }
}

fn number(ip: IpAddr) -> u128 {
    match ip {
        IpAddr::V4(ip) => u32::from(ip).into(),
        IpAddr::V6(ip) => ip.into(),
    }
}

fn address(family: IpFamily, number: u128) -> IpAddr {
    match family {
        IpFamily::V4 => u32::try_from(number).unwrap_or(0).to_be_bytes().into(),
        IpFamily::V6 => number.to_be_bytes().into(),
    }
}

/// The first and the last address that host-local gives to a pod: the first one of all is the gateway's.
fn range(network: IpNetwork) -> (u128, u128) {
    let last = number(network.broadcast());
    let last = if network.is_ipv4() { last.saturating_sub(1) } else { last };
    (number(network.network()).saturating_add(2), last)
}

/// How many addresses of a network pods can still get.
pub(super) fn free(network: IpNetwork, used: &BTreeSet<IpAddr>) -> u128 {
    let (first, last) = range(network);
    let all = (last.saturating_add(1)).saturating_sub(first);
    let used =
        used.iter().filter(|ip| network.contains(**ip) && (first..=last).contains(&number(**ip))).count();
    all.saturating_sub(used as u128)
}

/// How many addresses of each podCIDR the endpoint of this conflist takes.
pub(super) fn count(conflist: &Value) -> usize {
    if is_gateway(conflist) { 2 } else { 1 }
}

/// Whether the endpoint may take so many addresses. Two are left: the next pod would end the endpoint at once if it were one.
pub(super) fn has_room(network: IpNetwork, used: &BTreeSet<IpAddr>, count: usize) -> bool {
    free(network, used) >= count as u128 + 2
}

/// Chooses so many unused addresses from the end, where host-local comes last.
pub(super) fn choose(network: IpNetwork, used: &BTreeSet<IpAddr>, count: usize) -> Vec<IpAddr> {
    let (first, last) = range(network);
    let family = IpFamily::of(network.ip());
    let candidates = (first..=last).rev().take(usize::try_from(TRIES).unwrap_or(usize::MAX));
    candidates.map(|number| address(family, number)).filter(|ip| !used.contains(ip)).take(count).collect()
}

/// Whether the node forwards what the pods of this conflist send: the node is their gateway.
pub(super) fn is_gateway(conflist: &Value) -> bool {
    let first = first(conflist);
    match first["type"].as_str() {
        Some("ptp") => true,
        Some("bridge") => first["isGateway"] == true || first["isDefaultGateway"] == true,
        _ => false,
    }
}

fn ranges(places: &[Place], of: impl Fn(&Place) -> Option<IpAddr>) -> Value {
    let one = |place: &Place| {
        let ip = of(place)?;
        Some(json!([{ "subnet": place.network, "rangeStart": ip, "rangeEnd": ip, "gateway": place.gateway }]))
    };
    places.iter().filter_map(one).collect()
}

/// Another network than that of the pods: their runtime's GC names only its own attachments as valid ones.
fn name_of(network: &str) -> String {
    format!("{network}.node-health")
}

fn name(conflist: &Value) -> String {
    name_of(conflist["name"].as_str().unwrap_or_default())
}

/// The names that the node's ends of the endpoint's links may have, beside this network of the pods: no pods are behind them.
pub fn links(network: &str) -> BTreeSet<String> {
    let network = name_of(network);
    let of = |container_id: &str| {
        veth::names(&Attachment { network: &network, container_id, ifname: IFNAME }).map(|(name, _)| name)
    };
    CONTAINERS.into_iter().flat_map(of).collect()
}

/// The conflist of the endpoint: that of the pods, with another name, and with ranges of one address.
pub(super) fn endpoint(conflist: &Value, places: &[Place], data: &Path) -> Value {
    let mut value = conflist.clone();
    if let Some(object) = value.as_object_mut() {
        object.remove(MARK);
        object.insert("name".to_owned(), json!(name(conflist)));
    }
    let Some(first) = first_mut(&mut value) else { return value };
    let ipam = &mut first["ipam"];
    ipam["ranges"] = ranges(places, |place| Some(place.address));
    ipam["dataDir"] = json!(data);
    // The bridge's subnet would lead to the other side without the gateway.
    let through = places.iter().filter_map(|place| {
        let ip = place.forwarded?;
        Some(json!({ "dst": format!("{ip}/{}", IpFamily::of(ip).bits()), "gw": place.gateway }))
    });
    let mut routes = ipam["routes"].as_array().cloned().unwrap_or_default();
    routes.extend(through);
    ipam["routes"] = json!(routes);
    value
}

/// The conflist of the other side, which stands for a pod of another link. `None` if no network has an address for it.
pub(super) fn other_side(conflist: &Value, places: &[Place], data: &Path) -> Option<Value> {
    let ranges = ranges(places, |place| place.forwarded);
    if ranges.as_array().is_none_or(Vec::is_empty) {
        return None;
    }
    let mut plugin = json!({ "type": "ptp", "ipMasq": false,
        "ipam": { "type": "host-local", "dataDir": data, "ranges": ranges, "routes": first(conflist)["ipam"]["routes"] } });
    if let Some(mtu) = first(conflist)["mtu"].as_u64() {
        plugin["mtu"] = json!(mtu);
    }
    Some(json!({ "cniVersion": conflist["cniVersion"], "name": name(conflist), "plugins": [plugin] }))
}

#[cfg(test)]
mod tests {
    use ferrule_kit::fold::{fold, unfolded};

    use super::*;

    fn ips(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    #[test]
    fn addresses_come_from_the_end_and_are_counted_as_host_local_does() {
        for (network, used, all, chosen) in [
            ("10.244.1.0/24", &[][..], 253, &["10.244.1.254", "10.244.1.253"][..]),
            ("10.244.1.0/24", &["10.244.1.254", "10.9.9.9"], 252, &["10.244.1.253", "10.244.1.252"]),
            ("10.0.0.0/29", &["10.0.0.1", "10.0.0.2", "10.0.0.6"], 3, &["10.0.0.5", "10.0.0.4"]),
            ("10.0.0.0/30", &[], 1, &["10.0.0.2"]),
            ("10.0.0.0/31", &[], 0, &[]),
            ("10.0.0.0/32", &[], 0, &[]),
            ("fd00::/126", &[], 2, &["fd00::3", "fd00::2"]),
            ("fd00::/128", &[], 0, &[]),
            (
                "fd00:1::/64",
                &[],
                (1 << 64) - 2,
                &["fd00:1::ffff:ffff:ffff:ffff", "fd00:1::ffff:ffff:ffff:fffe"],
            ),
        ] {
            let network: IpNetwork = network.parse().unwrap();
            let used: BTreeSet<IpAddr> = ips(used).into_iter().collect();
            assert_eq!(free(network, &used), all, "{network}");
            assert_eq!(choose(network, &used, 2), ips(chosen), "{network}");
        }
    }

    #[test]
    fn the_endpoint_has_the_pods_conflist_with_its_own_address() {
        let conflist = json!({ "cniVersion": "1.0.0", "name": "pods", MARK: { "node": "a" }, "plugins": [
            { "type": "bridge", "isGateway": true, "mtu": 1450, "hairpinMode": true,
              "ipam": { "type": "host-local", "dataDir": "/x", "ranges": [[{ "subnet": "10.0.0.0/24" }]],
                        "routes": [{ "dst": "0.0.0.0/0" }] } },
            { "type": "firewall" } ] });
        let [gateway, address, forwarded] =
            ["10.0.0.1", "10.0.0.254", "10.0.0.253"].map(|ip| ip.parse().unwrap());
        let place = Place { network: "10.0.0.0/24".into(), gateway, address, forwarded: Some(forwarded) };
        let data = Path::new("/run/h");
        let found = endpoint(&conflist, std::slice::from_ref(&place), data);
        let mut expected = conflist.clone();
        expected.as_object_mut().unwrap().remove(MARK);
        expected["name"] = json!("pods.node-health");
        expected["plugins"][0]["ipam"] = json!({ "type": "host-local", "dataDir": "/run/h",
            "ranges": [[{ "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.254", "rangeEnd": "10.0.0.254", "gateway": "10.0.0.1" }]],
            "routes": [{ "dst": "0.0.0.0/0" }, { "dst": "10.0.0.253/32", "gw": "10.0.0.1" }] });
        assert_eq!(found, expected);
        // In the other form too.
        let folded: Value = fold(conflist.as_object().unwrap()).unwrap().into();
        assert_eq!(unfolded(endpoint(&folded, std::slice::from_ref(&place), data)), expected);
        assert!(is_gateway(&folded));
        let other = other_side(&conflist, std::slice::from_ref(&place), data).unwrap();
        assert_eq!(other_side(&folded, std::slice::from_ref(&place), data).as_ref(), Some(&other));
        assert_eq!((&other["name"], &other["plugins"][0]["mtu"]), (&json!("pods.node-health"), &json!(1450)));
        assert_eq!(other["plugins"][0]["ipam"]["ranges"][0][0]["rangeStart"], "10.0.0.253");
        assert_eq!(other_side(&conflist, &[Place { forwarded: None, ..place }], data), None);
        assert!(is_gateway(&conflist));
        for (kind, key) in [("bridge", "x"), ("macvlan", "isGateway")] {
            assert!(!is_gateway(&json!({ "plugins": [{ "type": kind, key: true }] })), "{kind}");
        }
    }
}
