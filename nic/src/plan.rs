//! Which resource gets which device, and why not. Pure.

use std::collections::{BTreeSet, HashMap};

use crate::config::{self, Config, Health, Resource, Source};
use crate::device::{Device, Place};
use crate::discovery::Inventory;
use crate::health::Carriers;

/// A device in the list of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The device's ID.
    pub id: String,
    /// Why the device is not healthy; `None` if it is.
    pub fault: Option<String>,
    /// Its kind and its place, for people.
    pub what: String,
    /// The NUMA node to tell the kubelet.
    pub numa: Option<i64>,
    /// The PCI address of the physical function.
    pub pf: Option<String>,
    /// Whether the device is there at all.
    pub present: bool,
}

impl Offer {
    /// What the kubelet hears of it: ID, health, NUMA node.
    pub fn told(&self) -> (&str, bool, Option<i64>) {
        (&self.id, self.fault.is_none(), self.numa)
    }
}

/// What to advertise.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// For each resource of the configuration its devices, sorted by ID.
    pub offers: Vec<Vec<Offer>>,
    /// The devices that no resource has, and why.
    pub left_out: Vec<(String, String)>,
    /// Devices that a second resource selects too: ID, the resource that has it, the other one.
    pub overlaps: Vec<(String, String, String)>,
}

/// The devices on the node by the names of their links.
type Links<'d> = HashMap<&'d str, &'d Device>;

/// Gives each device to the first resource that selects it.
pub fn plan(config: &Config, inventory: &Inventory, carriers: &Carriers) -> Plan {
    let mut plan = Plan { offers: vec![Vec::new(); config.resources.len()], ..Plan::default() };
    let on_node = inventory.devices().filter(|device| device.place == Place::Host);
    let links: Links<'_> =
        on_node.filter_map(|device| Some((device.link.as_ref()?.name.as_str(), device))).collect();
    let mut tokens = BTreeSet::new();
    for (resource, offers) in config.resources.iter().zip(&mut plan.offers) {
        *offers = pool(resource, &links, carriers);
        tokens.extend(offers.iter().map(|offer| offer.id.clone()));
    }
    for device in inventory.devices() {
        let mut takers =
            config.resources.iter().enumerate().filter(|(_, resource)| selects(resource, device));
        let Some((position, first)) = takers.next() else {
            plan.left_out.push((device.id.clone(), "no selector matches".to_owned()));
            continue;
        };
        let excluded = device.excluded(first.allow_addresses, |index| {
            Some(inventory.by_index(index)?.link.as_ref()?.name.clone())
        });
        let excluded =
            excluded.or_else(|| tokens.contains(&device.id).then(|| "a token has this ID".to_owned()));
        if let Some(why) = excluded {
            plan.left_out.push((device.id.clone(), why));
            continue;
        }
        for (_, other) in takers {
            plan.overlaps.push((device.id.clone(), first.name.clone(), other.name.clone()));
        }
        plan.offers[position].push(offer(first, device, &links, carriers));
    }
    plan
}

fn selects(resource: &Resource, device: &Device) -> bool {
    matches!(&resource.source, Source::Selectors(all) if all.iter().any(|selector| selector.matches(device)))
}

fn offer(resource: &Resource, device: &Device, links: &Links<'_>, carriers: &Carriers) -> Offer {
    let bus = device.bus.as_ref();
    let pf = || links.get(bus?.pf_name.as_deref()?).copied();
    let link = device.link.as_ref().map_or("", |link| link.name.as_str());
    let kind = device.link.as_ref().and_then(|link| link.kind.as_deref()).unwrap_or("physical");
    let (what, fault) = match device.place {
        Place::Host => {
            (format!("{kind} link {link}"), carrier_fault(resource.health, device, pf(), carriers))
        }
        Place::Pod { .. } => (format!("{kind} link in a pod, on the node {link:?}"), None),
        Place::Gone => (format!("{kind} link, on the node {link:?}"), Some("the link is gone".to_owned())),
    };
    Offer {
        id: device.id.clone(),
        fault,
        what,
        numa: bus.and_then(|bus| bus.numa).filter(|_| !resource.exclude_topology),
        pf: bus.and_then(|bus| bus.pf_address.clone()),
        present: device.place != Place::Gone,
    }
}

fn carrier_fault(
    health: Health,
    device: &Device,
    pf: Option<&Device>,
    carriers: &Carriers,
) -> Option<String> {
    let lost = |device: &Device| !carriers.is_good(&device.id);
    match (health, pf) {
        (Health::Presence, _) => None,
        (Health::PfCarrier, Some(pf)) if lost(pf) => {
            Some(format!("the physical function {} has no carrier", pf.id))
        }
        (Health::Carrier | Health::PfCarrier, _) if lost(device) => Some("no carrier".to_owned()),
        _ => None,
    }
}

fn pool(resource: &Resource, links: &Links<'_>, carriers: &Carriers) -> Vec<Offer> {
    let Source::Pool(pool) = &resource.source else { return Vec::new() };
    let master = pool.master.as_deref().map(|name| (name, links.get(name).copied()));
    let fault = match master {
        None => None,
        Some((name, None)) => Some(format!("the node has no link {name}")),
        Some((_, Some(master))) => carrier_fault(resource.health, master, None, carriers),
    };
    let numa =
        master.and_then(|(_, master)| master?.bus.as_ref()?.numa).filter(|_| !resource.exclude_topology);
    let kind = format!("{:?}", pool.template).to_lowercase();
    let what = match master {
        Some((name, _)) => format!("token for a {kind} on {name}"),
        None => format!("token for a {kind}"),
    };
    let token = |number| Offer {
        id: config::token(resource.short_name(), number),
        fault: fault.clone(),
        what: what.clone(),
        numa,
        pf: None,
        present: true,
    };
    let mut tokens: Vec<Offer> = (0..pool.count).map(token).collect();
    tokens.sort_by(|one, other| one.id.cmp(&other.id));
    tokens
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::{Bus, Link};
    use crate::discovery::Change;

    const CONFIG: &str = "
resourceList:
- {resourceName: fast, selectors: {drivers: [iavf]}, health: pfCarrier}
- {resourceName: lan, selectors: {ifNames: ['eth*']}, health: carrier}
- {resourceName: any, selectors: {kinds: [veth]}, excludeTopology: true}
- {resourceName: mv, pool: {template: macvlan, master: p0, count: 2}, health: carrier}
";

    fn on(inventory: &mut Inventory, index: u32, name: &str, kind: Option<&str>, bus: Option<Bus>) {
        let link = Link {
            index,
            name: name.to_owned(),
            kind: kind.map(str::to_owned),
            up: true,
            carrier: true,
            ..Link::default()
        };
        inventory.apply(Change::Link(link), |_| bus.map(|bus| (format!("0000:03:00.{index}"), bus)));
    }

    fn summary(plan: &Plan) -> Vec<Vec<String>> {
        let text = |offer: &Offer| match &offer.fault {
            None => offer.id.clone(),
            Some(fault) => format!("{}: {fault}", offer.id),
        };
        plan.offers.iter().map(|offers| offers.iter().map(text).collect()).collect()
    }

    #[test]
    fn first_match_health_and_reasons() {
        let config = Config::parse(CONFIG).unwrap();
        let mut inventory = Inventory::default();
        let bus = |driver: &str, functions| Bus {
            driver: Some(driver.to_owned()),
            pf_name: Some("p0".to_owned()),
            numa: Some(1),
            functions,
            ..Bus::default()
        };
        on(&mut inventory, 0, "p0", None, Some(bus("ice", 4)));
        on(&mut inventory, 1, "v0", None, Some(bus("iavf", 0)));
        on(&mut inventory, 10, "eth1", Some("veth"), None);
        on(&mut inventory, 11, "eth2", Some("dummy"), None);
        on(&mut inventory, 12, "w0", Some("veth"), None);
        on(&mut inventory, 13, "x0", Some("dummy"), None);
        inventory.apply(Change::Address(11, "10.0.0.1".parse().unwrap()), |_| None);
        let mut carriers = Carriers::new(0, 0);
        let before = plan(&config, &inventory, &carriers);
        assert_eq!(summary(&before), [vec!["0000:03:00.1"], vec!["eth1"], vec!["w0"], vec!["mv-0", "mv-1"]]);
        assert_eq!(
            before.overlaps,
            [("eth1".to_owned(), "ferrule.dev/lan".to_owned(), "ferrule.dev/any".to_owned())]
        );
        assert_eq!((before.offers[0][0].numa, before.offers[3][0].numa), (Some(1), Some(1)));
        let reasons: Vec<_> = before.left_out.iter().map(|(id, why)| format!("{id}: {why}")).collect();
        assert_eq!(
            reasons,
            [
                "0000:03:00.0: no selector matches",
                "eth2: the node uses it: it has the address 10.0.0.1",
                "x0: no selector matches"
            ]
        );
        for id in ["0000:03:00.0", "eth1"] {
            carriers.observe(id, true, 0);
        }
        inventory.apply(Change::Left { index: 12, to: None }, |_| None);
        assert_eq!(
            summary(&plan(&config, &inventory, &carriers)),
            [
                vec!["0000:03:00.1: the physical function 0000:03:00.0 has no carrier"],
                vec!["eth1: no carrier"],
                vec!["w0: the link is gone"],
                vec!["mv-0: no carrier", "mv-1: no carrier"],
            ]
        );
        inventory.apply(Change::Left { index: 10, to: Some((3, None)) }, |_| None);
        assert_eq!(summary(&plan(&config, &inventory, &carriers))[1], ["eth1"], "healthy in a pod");
    }
}
