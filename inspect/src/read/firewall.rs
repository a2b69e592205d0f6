//! Addresses that the firewall lets pass: those of our table, and the reference's rules, which name no container.

use cni_common::spec::CniError;
use ferrule_firewall::nft::{self, Owned, layout::TABLE};
use ferrule_firewall::{iptables, survey};
use ferrule_kit::owner;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::named::Named;

/// Lists the addresses.
pub(super) fn read(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    let mut known: Named<()> = Named::default();
    for owned in nft::list(&mut sockets.netfilter, |_| true)? {
        known.entry(&owned.address.to_string(), || ());
        let labels: Vec<String> = owned.labels().map(str::to_owned).collect();
        objects.extend(labels.into_iter().map(|label| of_label(owned.clone(), label)));
    }
    for address in iptables::addresses(&mut sockets.netfilter)? {
        if known.get(&address.to_string()).is_some() {
            continue;
        }
        // The rules may be in both variants of iptables.
        known.entry(&address.to_string(), || ());
        let owner = scene.owner_of(address).cloned().unwrap_or_default();
        let place = format!("iptables filter {}", iptables::FORWARD);
        let object = Object::new(Kind::Firewall, address.to_string(), place, owner, Maker::Reference);
        let object = Object { addresses: vec![address], is_by_address: true, ..object };
        objects.push(object.removed_by(move |sockets, is_dead| {
            survey::remove_reference(&mut sockets.netfilter, address, is_dead)
        }));
    }
    Ok(objects)
}

fn of_label(owned: Owned, label: String) -> Object {
    let by = match (owned.is_pod(), owned.zone()) {
        (true, _) => "nftables".to_owned(),
        (_, Some(zone)) => format!("firewalld zone {zone}"),
        _ => "iptables".to_owned(),
    };
    let whose = owner::parse(&label).map(Owner::from).unwrap_or_default();
    let (name, place) = (owned.address.to_string(), format!("table {TABLE}"));
    let object = Object::new(Kind::Firewall, name, place, whose, Maker::Ferrule);
    let facts = vec![("opened by", by), ("label", label.clone())];
    let is_by_address = !owned.is_pod();
    Object { addresses: vec![owned.address], facts, is_by_address, ..object }
        .removed_by(move |sockets, is_dead| survey::remove(&mut sockets.netfilter, &owned, &label, is_dead))
}
