//! The chains of `macspoofchk`.

use cni_common::spec::CniError;
use ferrule_bridge::mac_spoof::{self, plan};

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::named::Named;

/// Lists the attachments that have chains.
pub(super) fn read(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let links = Named::of(scene.links.iter().map(|(link, _)| (link.name.clone(), ())));
    let mut of_container: Named<Vec<&Owner>> = Named::default();
    for owner in scene.owners.iter() {
        of_container.entry(owner.container.as_deref().unwrap_or_default(), Vec::new).push(owner);
    }
    let object = |(chains, port, comment): (plan::Chains, String, Option<String>)| {
        let comment = comment.unwrap_or_default();
        // Both names may contain a hyphen. An attachment that is known elsewhere decides; else the last hyphen does.
        let names: Vec<Owner> = plan::owners_in(&comment)
            .map(|(container, ifname)| Owner {
                ifname: Some(ifname.to_owned()),
                ..Owner::container(container)
            })
            .collect();
        let known = names.iter().find_map(|name| {
            let mut known = of_container.get(name.container.as_deref()?)?.iter();
            known.find(|owner| name.may_be(owner)).map(|owner| Owner::clone(owner))
        });
        let owner = known.or_else(|| names.last().cloned()).unwrap_or_default();
        let place = format!("table {} {}", plan::TABLE, chains.interface);
        let object = Object::new(Kind::MacSpoof, format!("port {port}"), place, owner, Maker::Either);
        let alive = links.get(&port).map(|()| format!("port {port} exists"));
        Object { alive, ..object }.removed_by(move |sockets, is_dead| {
            mac_spoof::remove_if(&mut sockets.netfilter, &chains, is_dead)
        })
    };
    Ok(mac_spoof::list(&mut sockets.netfilter)?.into_iter().map(object).collect())
}
