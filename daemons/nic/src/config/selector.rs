//! Selectors: which devices a resource takes. The keys of one are AND, the values of a key are OR, an absent key matches all.

use std::ops::RangeInclusive;

use serde::Deserialize;

use crate::device::Device;

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
    pub pf_names: Vec<Functions>,
    /// PCI addresses of the physical function, with functions likewise.
    pub root_devices: Vec<Functions>,
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
    /// Only `false` is accepted, which is the default of the SR-IOV plugin.
    pub is_rdma: bool,
}

/// A physical function, and those of its virtual functions that are chosen; no range means all.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Functions {
    parent: String,
    ranges: Vec<RangeInclusive<u32>>,
}

impl TryFrom<String> for Functions {
    type Error = String;

    fn try_from(text: String) -> Result<Functions, String> {
        let Some((parent, functions)) = text.split_once('#') else {
            return Ok(Functions { parent: text, ranges: Vec::new() });
        };
        let range = |text: &str| {
            let (first, last) = text.split_once('-').unwrap_or((text, text));
            let range = first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?;
            (!range.is_empty()).then_some(range)
        };
        let ranges: Option<_> = functions.split(',').map(range).collect();
        let ranges =
            ranges.ok_or_else(|| format!("{text:?} is not a device with functions as in \"p0#0,2-7\""))?;
        Ok(Functions { parent: parent.to_owned(), ranges })
    }
}

impl Selector {
    /// Checks values that no device can have. The error names the wrong value.
    pub(super) fn check(&self) -> Result<(), String> {
        if self.is_rdma {
            return Err("isRdma is not supported".to_owned());
        }
        match self.link_types.iter().find(|kind| !["ether", "infiniband"].contains(&kind.as_str())) {
            Some(kind) => Err(format!("linkTypes has {kind:?}, not \"ether\" or \"infiniband\"")),
            None => Ok(()),
        }
    }

    /// Whether the device matches.
    pub fn matches(&self, device: &Device) -> bool {
        let (bus, link) = (device.bus.as_ref(), device.link.as_ref());
        let same = |list: &[String], value: Option<&str>| {
            any(list, value, |one, value| one.eq_ignore_ascii_case(value))
        };
        let function = bus.and_then(|bus| bus.function);
        let below = |list: &[Functions], value: Option<&str>| {
            any(list, value, |one, value| one.contain(value, function))
        };
        let index = bus.and_then(|bus| bus.acpi_index).map(|index| index.to_string());
        same(&self.vendors, bus.and_then(|bus| bus.vendor.as_deref()))
            && same(&self.devices, bus.and_then(|bus| bus.device.as_deref()))
            && same(&self.drivers, bus.and_then(|bus| bus.driver.as_deref()))
            && same(&self.pci_addresses, bus.and_then(|bus| bus.pci_address.as_deref()))
            && same(&self.acpi_indexes, index.as_deref())
            && below(&self.pf_names, bus.and_then(|bus| bus.pf_name.as_deref()))
            && below(&self.root_devices, bus.and_then(|bus| bus.pf_address.as_deref()))
            && same(&self.link_types, link.map(|link| link.link_type.as_str()))
            && same(&self.kinds, link.map(|link| link.kind.as_deref().unwrap_or("physical")))
            && same(&self.macs, link.map(|link| link.mac.as_str()))
            && any(&self.if_names, link.map(|link| link.name.as_str()), |pattern, name| glob(pattern, name))
            && any(&self.alt_names, link, |name, link| link.alt_names.contains(name))
    }
}

/// Whether one of the values of a key fits the device's. An absent key fits each device.
fn any<T, V: Copy>(list: &[T], value: Option<V>, fits: impl Fn(&T, V) -> bool) -> bool {
    list.is_empty() || value.is_some_and(|value| list.iter().any(|one| fits(one, value)))
}

impl Functions {
    /// Whether this function of this parent is chosen.
    fn contain(&self, parent: &str, function: Option<u32>) -> bool {
        let chosen = |function| self.ranges.iter().any(|range| range.contains(&function));
        self.parent.eq_ignore_ascii_case(parent) && (self.ranges.is_empty() || function.is_some_and(chosen))
    }
}

/// Whether the whole text matches the pattern with `*` and `?`.
fn glob(pattern: &str, text: &str) -> bool {
    let mut rest = pattern.chars();
    match rest.next() {
        None => text.is_empty(),
        Some('*') => {
            let rest = rest.as_str();
            text.char_indices().any(|(at, _)| glob(rest, &text[at..])) || glob(rest, "")
        }
        Some(first) => {
            let mut text = text.chars();
            text.next().is_some_and(|c| first == '?' || first == c) && glob(rest.as_str(), text.as_str())
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::device::{Bus, Link};

    fn selector(keys: &serde_json::Value) -> Selector {
        Selector::deserialize(keys).unwrap()
    }

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
        Device { id: "0000:03:00.1".into(), bus: Some(bus), link: Some(link), ..Device::default() }
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
            assert!(selector(&matching).matches(&device), "{matching}");
            assert!(!selector(&other).matches(&device), "{other}");
        }
    }

    #[test]
    fn bad_functions() {
        for pattern in ["p0#", "p0#a", "p0#3-1", "p0#1,,2"] {
            let error = Selector::deserialize(json!({"pfNames": [pattern]})).unwrap_err();
            assert!(error.to_string().contains("with functions"), "{pattern}: {error}");
        }
        assert!(selector(&json!({"linkTypes": ["x"]})).check().is_err());
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
