//! Masquerading rules of both backends.

use std::cell::OnceCell;

use cni_common::spec::CniError;
use ferrule_kit::masquerade::plan::{self, TABLE};
use ferrule_kit::masquerade::survey;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};
use crate::named::{Named, add_new};

/// Lists the rules by owner.
pub(super) fn read(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    // A comment that was cut still begins with two hashes of the names.
    let known = OnceCell::new();
    let make_known =
        || Named::of(scene.attachments().map(|(owner, attachment)| (plan::prefix(&attachment), owner)));
    let mut objects: Named<Object> = Named::default();
    for rule in survey::list(&mut sockets.netfilter)? {
        let key = rule.chain.as_ref().unwrap_or(&rule.comment).clone();
        let object = match &rule.chain {
            None => {
                let prefix = rule.comment.split(',').next().unwrap_or_default();
                let named = plan::owner_in(&rule.comment).map(Owner::from);
                let find = || known.get_or_init(make_known).get(prefix).map(|owner| Owner::clone(owner));
                let owner = named.or_else(find);
                Some((owner.unwrap_or_default(), format!("table {TABLE}")))
            }
            Some(chain) => plan::chain_owner_in(&rule.comment, chain).map(|(network, container)| {
                (Owner::container(container).on(network), format!("iptables nat {chain}"))
            }),
        };
        // A rule of POSTROUTING that jumps to the chain of another program.
        let Some((owner, place)) = object else { continue };
        let object = objects.entry(&key, || {
            Object::new(Kind::Masquerade, "", place, owner, Maker::Either).removed_by(
                move |sockets, is_dead| match &rule.chain {
                    None => survey::remove(&mut sockets.netfilter, &rule.comment, is_dead),
                    Some(chain) => survey::remove_chain(&mut sockets.netfilter, chain, is_dead),
                },
            )
        });
        add_new(&mut object.addresses, rule.source);
    }
    let named = |object: Object| {
        let names: Vec<String> = object.addresses.iter().map(ToString::to_string).collect();
        Object { name: names.join(", "), ..object }
    };
    Ok(objects.into_items().into_iter().map(named).collect())
}
