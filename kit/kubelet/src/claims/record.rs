//! The record of a claim for one pod: which devices of ours the pod has, and how each becomes an interface. Pure.
//!
//! The driver checks the parameters of a claim with [`Record::check`] before it writes the record, and ADD checks the record again.

use cni_common::spec::ident::check_ifname;
use ipnetwork::IpNetwork;
use serde::{Deserialize, Serialize};

use super::address::{addresses, prefix};
use super::{Object, is_uid, network};

/// The format of the records that this version writes and reads.
pub const VERSION: u32 = 1;
/// The most devices in a claim, as in the API server.
const MAX_DEVICES: usize = 32;
/// The most addresses, and the most routes, of a device.
const MAX_ADDRESSES: usize = 64;
/// The MTU range in bytes that the kernel accepts for an Ethernet link.
const MTU: std::ops::RangeInclusive<u32> = 68..=65535;

/// The least MTU with which the kernel has IPv6.
const IPV6_MTU: u32 = 1280;
/// Names that every pod has: an interface, and folders of settings in `/proc/sys/net`.
const TAKEN: [&str; 3] = ["lo", "all", "default"];

/// The devices of one claim for one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// The driver's name.
    pub driver: String,
    /// The claim.
    pub claim: Ref,
    /// The pod.
    pub pod: PodRef,
    /// The devices of the driver that the claim has, in the order of the allocation.
    pub devices: Vec<Claimed>,
}

/// An object of the API server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Ref {
    /// Its namespace, which is the pod's too.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// Its UID.
    pub uid: String,
}

/// The pod. Its namespace is the claim's.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PodRef {
    /// Its UID.
    pub uid: String,
    /// Its name.
    pub name: String,
}

/// A device, and how it becomes an interface of the pod. Without `cni` the device itself moves into the pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Claimed {
    /// The request of the claim.
    pub request: String,
    /// The pool of the device.
    pub pool: String,
    /// The device's name in the pool.
    pub device: String,
    /// Its link on the host.
    pub link: Link,
    /// The interface's name. By default the first free one of `net1`, `net2`, …
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub if_name: Option<String>,
    /// The interface's MTU in bytes. By default the device keeps its own.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub mtu: Option<u32>,
    /// Its addresses, with prefix lengths.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub addresses: Vec<String>,
    /// Its routes.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub routes: Vec<Route>,
    /// The `ipam` section of a network configuration, instead of `addresses` and `routes`.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub ipam: Option<Object>,
    /// A network configuration, instead of all of these.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub cni: Option<Cni>,
}

/// The link of a device as the driver has seen it. A device on a bus is found by its address there, another one by name and MAC address.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its hardware address; empty if it has none.
    #[serde(skip_serializing_if = "String::is_empty", default)]
    pub mac: String,
    /// The device's place on a bus; `None` for a virtual one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub bus: Option<Bus>,
}

/// A place on a bus.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bus {
    /// The bus, such as `pci`.
    pub subsystem: String,
    /// The address, such as `0000:03:00.1`.
    pub address: String,
}

/// A route. The fields are those of CNI 1.1.0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Route {
    /// The destination, with a prefix length.
    pub dst: String,
    /// The next hop.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub gw: Option<String>,
    /// The routing table; by default the main one.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub table: Option<u32>,
    /// The metric.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub priority: Option<u32>,
    /// The scope as in linux/rtnetlink.h: 0 global, 253 link, 254 host.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub scope: Option<u32>,
}

/// `CNI` of the API types of cni-dra-driver.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Cni {
    /// The interface's name.
    pub if_name: String,
    /// The network configuration: a list with `plugins`, or a single plugin with `type`. See [`network`].
    pub config: Object,
}

impl Record {
    /// Reads and checks a record.
    ///
    /// # Errors
    /// The bytes are no record of this version, or a value is invalid.
    pub fn parse(bytes: &[u8]) -> Result<Record, String> {
        let record: Record = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        record.check().map(|()| record)
    }

    /// The record as bytes.
    ///
    /// # Errors
    /// A value is invalid.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        self.check()?;
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }

    /// Checks all values.
    ///
    /// # Errors
    /// The first invalid value, and why it is.
    pub fn check(&self) -> Result<(), String> {
        if self.version != VERSION {
            return Err(format!("version {} is not {VERSION}", self.version));
        }
        for (what, uid) in [("claim", &self.claim.uid), ("pod", &self.pod.uid)] {
            if !is_uid(uid) {
                return Err(format!("{uid:?} is no UID of a {what}"));
            }
        }
        if self.devices.is_empty() || self.devices.len() > MAX_DEVICES {
            return Err(format!("{} devices (must be 1 to {MAX_DEVICES})", self.devices.len()));
        }
        let mut names: Vec<&str> = self.devices.iter().filter_map(Claimed::name).collect();
        names.sort_unstable();
        if let Some((name, _)) = names.iter().zip(names.iter().skip(1)).find(|(one, next)| one == next) {
            return Err(format!("ifName: two devices have {name:?}"));
        }
        let each = |one: &Claimed| one.check().map_err(|why| format!("request {:?}: {why}", one.request));
        self.devices.iter().try_for_each(each)
    }
}

impl Claimed {
    /// The interface's name, if the claim has chosen one.
    pub fn name(&self) -> Option<&str> {
        self.cni.as_ref().map(|cni| cni.if_name.as_str()).or(self.if_name.as_deref())
    }

    /// Checks the values: those of the claim's parameters, and how the driver names the device.
    ///
    /// # Errors
    /// The first invalid value, and why it is.
    pub fn check(&self) -> Result<(), String> {
        self.link.check()?;
        if let Some(name) = self.name() {
            check_ifname(name).map_err(|error| format!("ifName {name:?}: {}", error.msg))?;
            if TAKEN.contains(&name) {
                return Err(format!("ifName {name:?}: every pod has this interface or folder of settings"));
            }
        }
        if let Some(cni) = &self.cni {
            let other = [
                ("ifName", self.if_name.is_some()),
                ("mtu", self.mtu.is_some()),
                ("addresses", !self.addresses.is_empty()),
                ("routes", !self.routes.is_empty()),
                ("ipam", self.ipam.is_some()),
            ];
            if let Some((key, _)) = other.into_iter().find(|(_, is_set)| *is_set) {
                return Err(format!("{key}: the network configuration in cni says it"));
            }
            return network::check(&cni.config).map_err(|why| format!("config: {why}"));
        }
        if let Some(mtu) = self.mtu.filter(|mtu| !MTU.contains(mtu)) {
            return Err(format!("mtu {mtu} (must be between {} and {})", MTU.start(), MTU.end()));
        }
        if let Some(ipam) = &self.ipam {
            if !self.addresses.is_empty() || !self.routes.is_empty() {
                return Err("ipam: addresses and routes are set too (must be one or the other)".to_owned());
            }
            return network::check_ipam(ipam).map_err(|why| format!("ipam: {why}"));
        }
        if self.addresses.len().max(self.routes.len()) > MAX_ADDRESSES {
            return Err(format!("more than {MAX_ADDRESSES} addresses or routes"));
        }
        let addresses = addresses(&self.addresses).map_err(|why| format!("addresses: {why}"))?;
        if let Some(mtu) = self.mtu.filter(|mtu| *mtu < IPV6_MTU && addresses.iter().any(|one| one.is_ipv6()))
        {
            return Err(format!("mtu {mtu}: addresses of IPv6 need at least {IPV6_MTU}"));
        }
        let each = |one: &Route| {
            let dst = one.check()?;
            match addresses.iter().any(|address| address.is_ipv4() == dst.is_ipv4()) {
                true => Ok(()),
                false => Err(format!("{dst}: the device has no address of this family")),
            }
        };
        self.routes.iter().try_for_each(|one| each(one).map_err(|why| format!("routes: {why}")))
    }
}

impl Link {
    fn check(&self) -> Result<(), String> {
        check_ifname(&self.name).map_err(|error| format!("link {:?}: {}", self.name, error.msg))?;
        let Some(Bus { subsystem, address }) = &self.bus else { return Ok(()) };
        match [subsystem, address]
            .into_iter()
            .find(|part| part.is_empty() || part.contains('/') || **part == "..")
        {
            Some(part) => Err(format!("bus: {part:?} is no name of a folder")),
            None => Ok(()),
        }
    }
}

impl Route {
    /// Returns the destination.
    fn check(&self) -> Result<IpNetwork, String> {
        let dst = prefix(&self.dst)?;
        let Some(gw) = &self.gw else { return Ok(dst) };
        let is_v4 = |text: &str| text.contains('.') && !text.contains(':');
        match gw.parse::<std::net::IpAddr>() {
            Err(_) => Err(format!("gw {gw:?} is no IP address")),
            Ok(_) if is_v4(gw) != is_v4(&self.dst) => {
                Err(format!("gw {gw:?} and dst {:?} differ in family", self.dst))
            }
            Ok(_) => Ok(dst),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;

    /// A record of one device with these keys more.
    pub(crate) fn record(keys: &str) -> Result<Record, String> {
        let text = format!(
            r#"{{"version":1,"driver":"nic.ferrule.dev","claim":{{"namespace":"shop","name":"nic","uid":"c1a1"}},
                "pod":{{"uid":"0d3c","name":"web"}},"devices":[{{"request":"nic","pool":"node1","device":"ens1",
                "link":{{"name":"ens1","mac":"02:00:00:00:00:01"}}{keys}}}]}}"#
        );
        Record::parse(text.as_bytes())
    }

    #[test]
    fn a_record_is_read_as_it_was_written() {
        for keys in [
            "",
            r#","ifName":"fast","mtu":9000,"addresses":["10.0.0.2/24","fd00::2/64"],"routes":[{"dst":"10.9.0.0/16","gw":"10.0.0.1"},{"dst":"fd01::/64","table":100}]"#,
            r#","ipam":{"type":"host-local","subnet":"10.1.2.0/24"}"#,
            r#","cni":{"ifName":"net1","config":{"cniVersion":"1.0.0","name":"mv","plugins":[{"type":"macvlan","mode":"bridge"}]}}"#,
        ] {
            let record = record(keys).unwrap();
            assert_eq!(Record::parse(&record.to_bytes().unwrap()), Ok(record), "{keys}");
        }
        let with_bus = r#"{"name":"ens1","bus":{"subsystem":"pci","address":"0000:03:00.1"}}"#;
        let link: Link = serde_json::from_str(with_bus).unwrap();
        assert_eq!((link.check(), serde_json::to_string(&link).unwrap().as_str()), (Ok(()), with_bus));
    }

    #[test]
    fn invalid_values() {
        for (keys, why) in [
            (r#","ifName":"a/b""#, "request \"nic\": ifName \"a/b\": interface name contains / or : or"),
            (r#","ifName":"lo""#, "request \"nic\": ifName \"lo\": every pod has"),
            (r#","ifName":"all""#, "request \"nic\": ifName \"all\": every pod has"),
            (r#","ifName":"default""#, "request \"nic\": ifName \"default\": every pod has"),
            (
                r#","mtu":1279,"addresses":["fd00::2/64"]"#,
                "request \"nic\": mtu 1279: addresses of IPv6 need at least 1280",
            ),
            (r#","addresses":["0.0.0.0/0"]"#, "request \"nic\": addresses: \"0.0.0.0/0\" is no address of"),
            (r#","addresses":["ff02::1/64"]"#, "request \"nic\": addresses: \"ff02::1/64\" is no address of"),
            (
                r#","addresses":["10.0.0.2/24","10.0.0.2/16"]"#,
                "request \"nic\": addresses: 10.0.0.2 is there twice",
            ),
            (
                r#","routes":[{"dst":"10.9.0.0/16"}]"#,
                "request \"nic\": routes: 10.9.0.0/16: the device has no",
            ),
            (
                r#","addresses":["10.0.0.2/24"],"routes":[{"dst":"fd01::/64"}]"#,
                "request \"nic\": routes: fd01::/64: the device has no address of this family",
            ),
            (r#","mtu":67"#, "request \"nic\": mtu 67 (must be between 68 and 65535)"),
            (
                r#","addresses":["10.0.0.2"]"#,
                "request \"nic\": addresses: \"10.0.0.2\" is no IP address with",
            ),
            (
                r#","routes":[{"dst":"x/8"}]"#,
                "request \"nic\": routes: \"x/8\" is no IP address with a prefix",
            ),
            (
                r#","routes":[{"dst":"10.0.0.0/8","gw":"fd00::1"}]"#,
                "request \"nic\": routes: gw \"fd00::1\" and dst",
            ),
            (
                r#","routes":[{"dst":"10.0.0.0/8","gw":"x"}]"#,
                "request \"nic\": routes: gw \"x\" is no IP address",
            ),
            (
                r#","ipam":{"type":"static"},"addresses":["10.0.0.2/8"]"#,
                "request \"nic\": ipam: addresses and routes",
            ),
            (r#","ipam":{}"#, "request \"nic\": ipam: "),
            (
                r#","mtu":1400,"cni":{"ifName":"net1","config":{"type":"macvlan"}}"#,
                "request \"nic\": mtu: the network",
            ),
            (r#","cni":{"ifName":"net1","config":{}}"#, "request \"nic\": config: "),
            (r#","mtU":1400"#, "unknown field `mtU`"),
        ] {
            let error = record(keys).unwrap_err();
            assert!(error.starts_with(why), "{keys}: {error}");
        }
        let twice = |uid: &str| {
            let mut value = serde_json::to_value(record(r#","ifName":"net1""#).unwrap()).unwrap();
            value["pod"]["uid"] = json!(uid);
            let device = value["devices"][0].clone();
            value["devices"] = json!([device.clone(), device]);
            Record::parse(value.to_string().as_bytes()).unwrap_err()
        };
        assert_eq!(twice("0d3c"), "ifName: two devices have \"net1\"");
        assert_eq!(twice("../x"), "\"../x\" is no UID of a pod");
        let of_later = Record { version: 2, ..record("").unwrap() };
        assert_eq!(of_later.to_bytes().unwrap_err(), "version 2 is not 1");
    }
}
