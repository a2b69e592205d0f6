//! Which resource gets which device, and why not. Pure.

mod nic;

use std::collections::{BTreeSet, HashMap};

use crate::config::{self, Config, Health, Resource};
use crate::device::{Device, Place};
use crate::discovery::Inventory;

pub use nic::Nic;

/// A device in the list of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// The device's ID.
    pub id: String,
    /// Why the device is not healthy; `None` if it is.
    pub problem: Option<String>,
    /// Its kind and its place, for people.
    pub what: String,
    /// The NUMA node to report to the kubelet.
    pub numa: Option<i64>,
    /// The PCI address of the physical function.
    pub pf: Option<String>,
    /// Whether the device is there at all.
    pub present: bool,
}

impl Offer {
    /// What the kubelet learns of it: ID, health, NUMA node.
    pub fn reported(&self) -> (&str, bool, Option<i64>) {
        (&self.id, self.problem.is_none(), self.numa)
    }
}

/// What to advertise.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// For each taker of the configuration its devices, sorted by ID.
    pub offers: Vec<Vec<Offer>>,
    /// The devices of the DRA driver.
    pub nics: Vec<Nic>,
    /// The devices that no resource has, and why.
    pub left_out: Vec<(String, String)>,
    /// Devices that a second resource selects too: ID, the resource that has it, the other one.
    pub overlaps: Vec<(String, String, String)>,
}

/// The most links that can be stacked (the kernel's MAX_NEST_DEV).
const MAX_LEVELS: usize = 8;

/// The devices on the node by the names of their links.
type Links<'d> = HashMap<&'d str, &'d Device>;

/// Gives each device to the first resource that selects it.
pub fn plan(config: &Config, inventory: &Inventory) -> Plan {
    let mut plan = Plan { offers: vec![Vec::new(); config.takers().count()], ..Plan::default() };
    let on_node = inventory.devices().filter(|device| device.place == Place::Host);
    let links: Links<'_> =
        on_node.filter_map(|device| Some((device.link.as_ref()?.name.as_str(), device))).collect();
    let above = above(inventory);
    let mut tokens = BTreeSet::new();
    for (resource, offers) in config.takers().zip(&mut plan.offers) {
        *offers = pool(resource, &links);
        tokens.extend(offers.iter().map(|offer| offer.id.clone()));
    }
    for device in inventory.devices() {
        let mut takers = config.takers().enumerate().filter(|(_, resource)| resource.selects(device));
        let Some((position, first)) = takers.next() else {
            plan.left_out.push((device.id.clone(), "no selector matches".to_owned()));
            continue;
        };
        let name_of = |index| Some(inventory.by_index(index)?.link.as_ref()?.name.clone());
        let taken = || tokens.contains(&device.id).then(|| "a token has this ID".to_owned());
        let link = device.link.as_ref().filter(|_| device.place == Place::Host);
        let above = link.and_then(|link| above.get(&link.index)).into_iter().flatten().copied();
        if let Some(why) = device.excluded(first.allow_addresses, above, name_of).or_else(taken) {
            plan.left_out.push((device.id.clone(), why));
            continue;
        }
        for (_, other) in takers {
            plan.overlaps.push((device.id.clone(), first.name.clone(), other.name.clone()));
        }
        let offer = offer(first, device, &links);
        if let Some(dra) = config.dra.as_ref().filter(|_| position == config.resources.len()) {
            plan.nics.extend(Nic::new(dra, &offer, device));
        }
        plan.offers[position].push(offer);
    }
    plan
}

/// The links on the node by the index of each that they are made on, also if others are between the two.
fn above(inventory: &Inventory) -> HashMap<u32, Vec<&Device>> {
    let mut above: HashMap<u32, Vec<&Device>> = HashMap::new();
    for device in inventory.devices().filter(|device| device.place == Place::Host) {
        let below = |device: &Device| device.link.as_ref()?.below;
        let mut next = below(device);
        for _ in 0..MAX_LEVELS {
            let Some(index) = next else { break };
            above.entry(index).or_default().push(device);
            next = inventory.by_index(index).and_then(below);
        }
    }
    above
}

fn offer(resource: &Resource, device: &Device, links: &Links<'_>) -> Offer {
    let bus = device.bus.as_ref();
    let pf = || links.get(bus?.pf_name.as_deref()?).copied();
    let link = device.link.as_ref().map_or("", |link| link.name.as_str());
    let kind = device.link.as_ref().and_then(|link| link.kind.as_deref()).unwrap_or("physical");
    let (what, problem) = match device.place {
        Place::Host => (format!("{kind} link {link}"), carrier_problem(resource.health, device, pf())),
        Place::Pod { .. } => (format!("{kind} link in a pod, on the node {link:?}"), None),
        Place::Gone => (format!("{kind} link, on the node {link:?}"), Some("the link is gone".to_owned())),
    };
    Offer {
        id: device.id.clone(),
        problem,
        what,
        numa: bus.and_then(|bus| bus.numa).filter(|_| !resource.exclude_topology),
        pf: bus.and_then(|bus| bus.pf_address.clone()),
        present: device.place != Place::Gone,
    }
}

fn carrier_problem(health: Health, device: &Device, pf: Option<&Device>) -> Option<String> {
    let lost = |device: &Device| !device.carrier.is_good();
    match (health, pf) {
        (Health::Presence, _) => None,
        (Health::PfCarrier, Some(pf)) if lost(pf) => {
            Some(format!("the physical function {} has no carrier", pf.id))
        }
        (Health::Carrier | Health::PfCarrier, _) if lost(device) => Some("no carrier".to_owned()),
        _ => None,
    }
}

fn pool(resource: &Resource, links: &Links<'_>) -> Vec<Offer> {
    let Some(pool) = &resource.pool else { return Vec::new() };
    let (mut what, mut problem, mut numa) =
        (format!("token for a {:?}", pool.template).to_lowercase(), None, None);
    if let Some(name) = &pool.master {
        let master = links.get(name.as_str());
        problem = match master {
            Some(master) => carrier_problem(resource.health, master, None),
            None => Some(format!("the node has no link {name}")),
        };
        numa = master.and_then(|master| master.bus.as_ref()?.numa).filter(|_| !resource.exclude_topology);
        what = format!("{what} on {name}");
    }
    let token = Offer { id: String::new(), problem, what, numa, pf: None, present: true };
    let token = |number| Offer { id: config::token(resource.short_name(), number), ..token.clone() };
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
        let text = |offer: &Offer| match &offer.problem {
            None => offer.id.clone(),
            Some(problem) => format!("{}: {problem}", offer.id),
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
        // The node's uplink is a VLAN of a VLAN.
        on(&mut inventory, 14, "eth9", None, None);
        for (index, name, below) in [(15, "eth9.1", 14), (16, "eth9.1.2", 15), (17, "mv", 10)] {
            let kind = Some("vlan".to_owned());
            let link = Link { index, name: name.to_owned(), kind, below: Some(below), ..Link::default() };
            inventory.apply(Change::Link(link), |_| None);
        }
        for (index, address) in [(11, "10.0.0.1"), (16, "10.0.0.2")] {
            let address = address.parse().unwrap();
            inventory.apply(Change::Address { index, address, is_there: true }, |_| None);
        }
        let before = plan(&config, &inventory);
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
                "eth9: the node uses it: eth9.1.2, which is made on it, has the address 10.0.0.2",
                "eth9.1: the node uses it: eth9.1.2, which is made on it, has the address 10.0.0.2",
                "eth9.1.2: the node uses it: it has the address 10.0.0.2",
                "mv: no selector matches",
                "x0: no selector matches"
            ]
        );
        let lose = |device: &mut Device| device.carrier.observe(true, 0, config.delays());
        inventory
            .devices_mut()
            .filter(|device| ["0000:03:00.0", "eth1"].contains(&&*device.id))
            .for_each(lose);
        inventory.apply(Change::Left { index: 12, to: None }, |_| None);
        assert_eq!(
            summary(&plan(&config, &inventory)),
            [
                vec!["0000:03:00.1: the physical function 0000:03:00.0 has no carrier"],
                vec!["eth1: no carrier"],
                vec!["w0: the link is gone"],
                vec!["mv-0: no carrier", "mv-1: no carrier"],
            ]
        );
        inventory.apply(Change::Left { index: 10, to: Some((3, None)) }, |_| None);
        assert_eq!(summary(&plan(&config, &inventory))[1], ["eth1"], "healthy in a pod");
    }
}
