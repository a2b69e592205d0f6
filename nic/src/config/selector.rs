//! Selectors: which devices a resource takes. The keys of one are AND, the values of a key are OR, an absent key matches all.

use std::ops::RangeInclusive;

use serde::Deserialize;
use serde_json::Value;

use super::{Invalid, decode};
use crate::device::Device;

/// Keys of the SR-IOV plugin that Ferrule does not have.
const UNSUPPORTED: [&str; 4] = ["ddpProfiles", "pKeys", "vdpaType", "auxTypes"];

/// One selector.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default, expecting = "a mapping of keys")]
pub struct Selector {
    /// PCI vendor codes, hexadecimal without `0x`.
    pub vendors: Vec<String>,
    /// PCI device codes, hexadecimal without `0x`.
    pub devices: Vec<String>,
    /// Names of kernel drivers.
    pub drivers: Vec<String>,
    /// PCI addresses with domain, such as `0000:03:00.1`.
    pub pci_addresses: Vec<String>,
    /// ACPI indexes.
    pub acpi_indexes: Vec<String>,
    /// Link names of the physical function, with functions as in `p0#0,2-7`.
    pub pf_names: Vec<String>,
    /// PCI addresses of the physical function, with functions likewise.
    pub root_devices: Vec<String>,
    /// `ether` or `infiniband`.
    pub link_types: Vec<String>,
    /// Link names with `*` and `?`.
    pub if_names: Vec<String>,
    /// Kinds of links, such as `veth`; `physical` is a link without a kind.
    pub kinds: Vec<String>,
    /// Alternative names of the link.
    pub alt_names: Vec<String>,
    /// MAC addresses of the link.
    pub macs: Vec<String>,
    /// Whether containers get the device nodes of vhost-net and tun.
    pub need_vhost_net: bool,
    is_rdma: bool,
    #[serde(skip)]
    auxiliary: bool,
}

/// Reads one selector or a list of them.
pub(super) fn parse(value: Value, auxiliary: bool) -> Result<Vec<Selector>, Invalid> {
    let list = match value {
        Value::Array(list) => list,
        one => vec![one],
    };
    let parsed = list.into_iter().enumerate().map(|(position, value)| {
        let invalid = |text: String| Invalid(format!("selectors[{position}]: {text}"));
        if let Some(key) = UNSUPPORTED.iter().find(|key| value.get(**key).is_some()) {
            return Err(invalid(format!("{key} is not supported")));
        }
        let mut selector: Selector = decode(value).map_err(|error| invalid(error.to_string()))?;
        selector.auxiliary = auxiliary;
        if selector.is_rdma {
            return Err(invalid("isRdma is not supported".to_owned()));
        }
        for pattern in selector.pf_names.iter().chain(&selector.root_devices) {
            parent(pattern).ok_or_else(|| {
                invalid(format!("{pattern:?} is not a device with functions as in \"p0#0,2-7\""))
            })?;
        }
        let types = |kind: &&String| !["ether", "infiniband"].contains(&kind.as_str());
        if let Some(kind) = selector.link_types.iter().find(types) {
            return Err(invalid(format!("linkTypes has {kind:?}, not \"ether\" or \"infiniband\"")));
        }
        Ok(selector)
    });
    parsed.collect()
}

/// A physical function, and the functions of it that are chosen; no range means all.
fn parent(pattern: &str) -> Option<(&str, Vec<RangeInclusive<u32>>)> {
    let Some((name, functions)) = pattern.split_once('#') else { return Some((pattern, Vec::new())) };
    let range = |text: &str| {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?;
        (!range.is_empty()).then_some(range)
    };
    Some((name, functions.split(',').map(range).collect::<Option<_>>()?))
}

impl Selector {
    /// Whether the device matches.
    pub fn matches(&self, device: &Device) -> bool {
        let bus = device.bus.as_ref();
        let link = device.link.as_ref();
        let same = |list: &[String], value: Option<&str>| {
            list.is_empty()
                || value.is_some_and(|value| list.iter().any(|one| one.eq_ignore_ascii_case(value)))
        };
        let function = bus.and_then(|bus| bus.function);
        let below = |list: &[String], value: Option<&str>| {
            list.is_empty()
                || value.is_some_and(|value| list.iter().any(|one| is_below(one, value, function)))
        };
        let index = bus.and_then(|bus| bus.acpi_index).map(|index| index.to_string());
        self.auxiliary == bus.is_some_and(|bus| bus.auxiliary)
            && same(&self.vendors, bus.and_then(|bus| bus.vendor.as_deref()))
            && same(&self.devices, bus.and_then(|bus| bus.device.as_deref()))
            && same(&self.drivers, bus.and_then(|bus| bus.driver.as_deref()))
            && same(&self.pci_addresses, bus.and_then(|bus| bus.pci_address.as_deref()))
            && same(&self.acpi_indexes, index.as_deref())
            && below(&self.pf_names, bus.and_then(|bus| bus.pf_name.as_deref()))
            && below(&self.root_devices, bus.and_then(|bus| bus.pf_address.as_deref()))
            && same(&self.link_types, link.map(|link| link.link_type.as_str()))
            && same(&self.kinds, link.map(|link| link.kind.as_deref().unwrap_or("physical")))
            && same(&self.macs, link.map(|link| link.mac.as_str()))
            && (self.if_names.is_empty()
                || link.is_some_and(|link| self.if_names.iter().any(|pattern| glob(pattern, &link.name))))
            && (self.alt_names.is_empty()
                || link.is_some_and(|link| self.alt_names.iter().any(|name| link.alt_names.contains(name))))
    }

    /// Whether each device that matches the other one matches this one too, as far as the texts tell.
    pub(super) fn covers(&self, other: &Selector) -> bool {
        let all = |mine: &[String], others: &[String], covers: fn(&str, &str) -> bool| {
            let covered = |value: &String| mine.iter().any(|one| covers(one, value));
            mine.is_empty() || !others.is_empty() && others.iter().all(covered)
        };
        let same: fn(&str, &str) -> bool = |one, value| one.eq_ignore_ascii_case(value);
        self.auxiliary == other.auxiliary
            && all(&self.vendors, &other.vendors, same)
            && all(&self.devices, &other.devices, same)
            && all(&self.drivers, &other.drivers, same)
            && all(&self.pci_addresses, &other.pci_addresses, same)
            && all(&self.acpi_indexes, &other.acpi_indexes, same)
            && all(&self.link_types, &other.link_types, same)
            && all(&self.kinds, &other.kinds, same)
            && all(&self.macs, &other.macs, same)
            && all(&self.alt_names, &other.alt_names, same)
            && all(&self.pf_names, &other.pf_names, covers_functions)
            && all(&self.root_devices, &other.root_devices, covers_functions)
            && all(&self.if_names, &other.if_names, covers_names)
    }
}

/// Whether this function of this parent is one that the pattern names.
fn is_below(pattern: &str, value: &str, function: Option<u32>) -> bool {
    parent(pattern).is_some_and(|(name, ranges)| {
        let chosen = |function| ranges.iter().any(|range| range.contains(&function));
        name.eq_ignore_ascii_case(value) && (ranges.is_empty() || function.is_some_and(chosen))
    })
}

fn covers_functions(one: &str, other: &str) -> bool {
    let (Some((name, mine)), Some((value, others))) = (parent(one), parent(other)) else { return false };
    let within = |range: &RangeInclusive<u32>| {
        mine.iter().any(|one| one.contains(range.start()) && one.contains(range.end()))
    };
    name.eq_ignore_ascii_case(value) && (mine.is_empty() || !others.is_empty() && others.iter().all(within))
}

/// Whether each name that matches the other pattern matches this one. `?` would take a `*` for a character.
fn covers_names(one: &str, other: &str) -> bool {
    one == other || glob(one, other) && !(one.contains('?') && other.contains('*'))
}

/// Whether the whole text matches the pattern with `*` and `?`.
fn glob(pattern: &str, text: &str) -> bool {
    match pattern.as_bytes() {
        [] => text.is_empty(),
        [b'*', ..] => {
            let rest = &pattern[1..];
            text.char_indices().any(|(at, _)| glob(rest, &text[at..])) || glob(rest, "")
        }
        [b'?', ..] => text.chars().next().is_some_and(|c| glob(&pattern[1..], &text[c.len_utf8()..])),
        _ => {
            let mut rest = pattern.chars();
            let first = rest.next();
            first.is_some_and(|c| text.strip_prefix(c).is_some_and(|text| glob(rest.as_str(), text)))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::device::{Bus, Link, Place};

    fn vf() -> Device {
        let bus = Bus {
            pci_address: Some("0000:03:00.1".into()),
            vendor: Some("8086".into()),
            device: Some("154c".into()),
            driver: Some("iavf".into()),
            acpi_index: Some(7),
            pf_address: Some("0000:03:00.0".into()),
            pf_name: Some("p0".into()),
            function: Some(3),
            ..Bus::default()
        };
        let link = Link {
            name: "eth3".into(),
            mac: "02:00:00:00:00:01".into(),
            link_type: "ether".into(),
            alt_names: vec!["enp3s0f1".into()],
            ..Link::default()
        };
        Device { id: "0000:03:00.1".into(), bus: Some(bus), link: Some(link), place: Place::Host }
    }

    #[test]
    fn each_key_selects() {
        let device = vf();
        for (matching, other) in [
            (json!({}), json!({"kinds": ["veth"]})),
            (json!({"vendors": ["15b3", "8086"]}), json!({"vendors": ["15b3"]})),
            (json!({"devices": ["154C"]}), json!({"devices": ["1"]})),
            (json!({"drivers": ["iavf"]}), json!({"drivers": ["i40e"]})),
            (json!({"pciAddresses": ["0000:03:00.1"]}), json!({"pciAddresses": ["0000:03:00.0"]})),
            (json!({"acpiIndexes": ["7"]}), json!({"acpiIndexes": ["8"]})),
            (json!({"pfNames": ["p0"]}), json!({"pfNames": ["p1"]})),
            (json!({"pfNames": ["p0#0,2-7"]}), json!({"pfNames": ["p0#0-2,4"]})),
            (json!({"rootDevices": ["0000:03:00.0#3"]}), json!({"rootDevices": ["0000:03:00.0#2"]})),
            (json!({"linkTypes": ["ether"]}), json!({"linkTypes": ["infiniband"]})),
            (json!({"kinds": ["physical"]}), json!({"kinds": ["dummy"]})),
            (json!({"ifNames": ["e*3"]}), json!({"ifNames": ["eth?3"]})),
            (json!({"altNames": ["enp3s0f1"]}), json!({"altNames": ["eth3"]})),
            (json!({"macs": ["02:00:00:00:00:01"]}), json!({"macs": ["02:00:00:00:00:02"]})),
        ] {
            assert!(parse(matching.clone(), false).unwrap()[0].matches(&device), "{matching}");
            assert!(!parse(other.clone(), false).unwrap()[0].matches(&device), "{other}");
        }
        assert!(!parse(json!({}), true).unwrap()[0].matches(&device), "no auxiliary device");
    }

    #[test]
    fn bad_functions() {
        for pattern in ["p0#", "p0#a", "p0#3-1", "p0#1,,2"] {
            let error = parse(json!({"pfNames": [pattern]}), false).unwrap_err();
            assert!(error.to_string().contains("with functions"), "{pattern}: {error}");
        }
        assert!(parse(json!({"linkTypes": ["x"]}), false).is_err());
    }

    #[test]
    fn globs() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("eth*", "eth", true),
            ("eth?", "eth", false),
            ("*0", "eth0", true),
            ("*0", "eth01", false),
            ("é*", "éa", true),
            ("", "a", false),
        ] {
            assert_eq!(glob(pattern, text), expected, "{pattern} {text}");
        }
    }
}
