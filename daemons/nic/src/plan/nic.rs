//! A device as the scheduler sees it: its name, its attributes. Pure.

use std::collections::BTreeMap;

use ferrule_kubelet::claims::{Bus, Link};
use k8s_openapi::api::resource::v1::DeviceAttribute;
use sha2::{Digest as _, Sha256};

use super::Offer;
use crate::config::{Dra, MAX_TEXT, is_label};
use crate::device::Device;

/// A device of the driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Nic {
    /// Its name in the pool: a DNS label.
    pub name: String,
    /// Why it is not healthy; `None` if it is.
    pub problem: Option<String>,
    /// How ADD finds it.
    pub link: Link,
    /// The attributes for the selectors of claims.
    pub attributes: BTreeMap<String, DeviceAttribute>,
}

impl Nic {
    /// The device as the driver offers it; `None` if it is gone, or was never seen on the node.
    pub(crate) fn new(dra: &Dra, offer: &Offer, device: &Device) -> Option<Nic> {
        let link = device.link.as_ref().filter(|_| offer.present)?;
        let bus = device.bus.as_ref();
        let subsystem = if bus.is_some_and(|bus| bus.auxiliary) { "auxiliary" } else { "pci" };
        let id_on_bus = || bus.map(|_| device.id.clone());
        let pci = bus.and_then(|bus| bus.pci_address.clone());
        let kind = link.kind.as_deref().unwrap_or("physical").to_owned();
        let pf = bus.filter(|bus| bus.function.is_some()).and_then(|bus| bus.pf_name.clone());
        let texts = [
            ("driver", bus.and_then(|bus| bus.driver.clone())),
            ("mac", Some(link.mac.clone())),
            ("linkType", Some(link.link_type.clone())),
            ("kind", Some(kind)),
            ("vendor", bus.and_then(|bus| bus.vendor.clone())),
            ("device", bus.and_then(|bus| bus.device.clone())),
            ("pfName", pf.clone()),
            ("sriovPf", pf),
            ("ifName", Some(link.name.clone())),
            ("resource.kubernetes.io/pciBusID", pci),
            ("resource.kubernetes.io/pcieRoot", bus.and_then(|bus| bus.pcie_root.clone())),
            ("k8s.cni.cncf.io/deviceID", Some(device.id.clone())),
            ("k8s.cni.cncf.io/resourceName", Some(dra.resource_name.clone())),
        ];
        let numbers = [
            ("mtu", Some(i64::from(link.mtu))),
            ("speed", link.speed.map(i64::from)),
            ("sriovVf", bus.and_then(|bus| bus.function).map(i64::from)),
            ("resource.kubernetes.io/numaNode", bus.and_then(|bus| bus.numa)),
        ];
        // The API server refuses the whole slice for one text that is too long.
        let is_fine = |text: &String| (1..=MAX_TEXT).contains(&text.len());
        let text = |(name, text): (&str, Option<String>)| {
            let string = Some(text.filter(is_fine)?);
            Some((name.to_owned(), DeviceAttribute { string, ..DeviceAttribute::default() }))
        };
        let number = |(name, int): (&str, Option<i64>)| {
            int.map(|int| (name.to_owned(), DeviceAttribute { int: Some(int), ..DeviceAttribute::default() }))
        };
        // A link that is down counts as one with a carrier: it has none to lose.
        let carrier = DeviceAttribute { bool: Some(device.carrier.is_good()), ..DeviceAttribute::default() };
        let carrier = ("carrier".to_owned(), carrier);
        Some(Nic {
            name: name(&device.id, bus.is_some_and(|bus| !bus.auxiliary)),
            problem: offer.problem.clone(),
            link: Link {
                name: link.name.clone(),
                mac: link.mac.clone(),
                bus: id_on_bus().map(|address| Bus { subsystem: subsystem.to_owned(), address }),
            },
            attributes: texts
                .into_iter()
                .filter_map(text)
                .chain(numbers.into_iter().filter_map(number))
                .chain([carrier])
                .collect(),
        })
    }
}

/// A unique DNS label for the device with this ID. The name of a link stays if it is such a label; else it becomes a hash, which is
/// longer than the name of any link.
fn name(id: &str, is_pci: bool) -> String {
    let is_plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    match is_pci {
        true => format!("pci-{}", id.to_ascii_lowercase().replace(|c: char| !is_plain(c), "-")),
        false if id.len() < 16 && is_label(id) => id.to_owned(),
        false => {
            let hash: String = Sha256::digest(id).iter().take(8).map(|byte| format!("{byte:02x}")).collect();
            format!("link-{hash}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::device;

    #[test]
    fn names() {
        assert_eq!(name("0000:03:00.1", true), "pci-0000-03-00-1");
        for id in ["eth1", "d1-50"] {
            assert_eq!(name(id, false), id);
        }
        for id in ["Eth1", "eth1.100", "mlx5_core.sf.2", "-", "eth-", "pci-0000-03-00-1"] {
            let name = name(id, false);
            assert!(name.starts_with("link-") && name.len() == 21, "{name}");
        }
        assert_ne!(name("Eth1", false), name("eth1.1", false));
    }

    #[test]
    fn attributes() {
        let dra = Config::parse("dra: {selectors: {}}").unwrap().dra.unwrap();
        let bus = device::Bus {
            pci_address: Some("0000:03:00.1".to_owned()),
            driver: Some("iavf".to_owned()),
            vendor: Some("8086".to_owned()),
            device: Some("x".repeat(65)),
            pf_name: Some("p0".to_owned()),
            function: Some(3),
            numa: Some(1),
            pcie_root: Some("pci0000:00".to_owned()),
            ..device::Bus::default()
        };
        let link =
            device::Link { name: "v3".to_owned(), mtu: 1500, speed: Some(25_000), ..device::Link::default() };
        let mut device =
            Device { id: "0000:03:00.1".to_owned(), bus: Some(bus), link: Some(link), ..Device::default() };
        let mut offer = Offer {
            id: device.id.clone(),
            problem: None,
            what: String::new(),
            numa: None,
            pf: None,
            present: true,
        };
        let nic = Nic::new(&dra, &offer, &device).unwrap();
        let text = |(name, value): (&String, &DeviceAttribute)| match (&value.string, value.int) {
            (Some(text), None) => format!("{name}={text}"),
            (None, Some(int)) => format!("{name}={int}"),
            _ => format!("{name}={}", value.bool.unwrap()),
        };
        let texts: Vec<String> = nic.attributes.iter().map(text).collect();
        assert_eq!(
            texts.join(" "),
            "carrier=true driver=iavf ifName=v3 k8s.cni.cncf.io/deviceID=0000:03:00.1 \
             k8s.cni.cncf.io/resourceName=nic.ferrule.dev/nic kind=physical mtu=1500 pfName=p0 resource.kubernetes.io/numaNode=1 \
             resource.kubernetes.io/pciBusID=0000:03:00.1 resource.kubernetes.io/pcieRoot=pci0000:00 speed=25000 sriovPf=p0 \
             sriovVf=3 vendor=8086"
        );
        assert_eq!(
            (nic.name.as_str(), nic.link.bus.unwrap().subsystem.as_str()),
            ("pci-0000-03-00-1", "pci")
        );
        device.bus = None;
        device.id = "v3".to_owned();
        let nic = Nic::new(&dra, &offer, &device).unwrap();
        assert_eq!((nic.name.as_str(), nic.link.bus), ("v3", None));
        offer.present = false;
        assert_eq!(Nic::new(&dra, &offer, &device), None);
    }
}
