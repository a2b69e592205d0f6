//! The users of the VLAN devices that macvlan makes for the key `vlan`. Each is an alternative name with a hash of the attachment.

use std::cell::OnceCell;

use cni_common::spec::CniError;
use ferrule_kit::container_link::vlan_device;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::named::Named;

/// Lists the users.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let known = OnceCell::new();
    let make_known =
        || Named::of(scene.attachments().map(|(owner, attachment)| (vlan_device::user(&attachment), owner)));
    let object = |(device, user): (&ferrule_kernel::netlink::Link, &str)| {
        let known: &Named<&Owner> = known.get_or_init(make_known);
        let owner = known.get(user).map(|owner| Owner::clone(owner)).unwrap_or_default();
        let is_nameless = owner.container.is_none();
        let place = format!("alternative name {user}");
        let object = Object::new(Kind::VlanUser, device.name.clone(), place, owner, Maker::Ferrule);
        let user = user.to_owned();
        Object {
            facts: vec![("kind", device.kind.clone()), ("mtu", device.mtu.to_string())],
            parent: Some(device.index),
            dead: is_nameless.then(|| {
                "no cache entry has its hash, no live namespace has a macvlan on the device".to_owned()
            }),
            ..object
        }
        .removed_by(move |sockets, is_dead| vlan_device::release_if(&mut sockets.route, &user, is_dead))
    };
    Ok(vlan_device::users(scene.links.iter().map(|(link, _)| link)).map(object).collect())
}
