//! Masquerading rules of both backends.

use std::collections::BTreeMap;

use cni_common::spec::CniError;
use ferrule_kit::masquerade::plan::{self, TABLE};
use ferrule_kit::masquerade::survey;

use super::Scene;
use crate::model::{Kind, Maker, Object, Owner, Sockets};

/// Lists the rules by owner.
pub(super) fn read(sockets: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    // A comment that was cut still begins with two hashes of the names.
    let known: BTreeMap<String, &Owner> =
        scene.attachments().map(|(owner, attachment)| (plan::prefix(&attachment), owner)).collect();
    let mut objects: BTreeMap<String, Object> = BTreeMap::new();
    for rule in survey::list(&mut sockets.netfilter)? {
        let key = rule.chain.as_ref().unwrap_or(&rule.comment).clone();
        let object = match &rule.chain {
            None => {
                let prefix = rule.comment.split(',').next().unwrap_or_default();
                let named = plan::owner_in(&rule.comment).map(Owner::from);
                let owner = named.or_else(|| known.get(prefix).map(|owner| (*owner).clone()));
                Some((owner.unwrap_or_default(), format!("table {TABLE}")))
            }
            Some(chain) => plan::chain_owner_in(&rule.comment, chain).map(|(network, container)| {
                (Owner::container(container).on(network), format!("iptables nat {chain}"))
            }),
        };
        // A rule of POSTROUTING that jumps to the chain of another program.
        let Some((owner, place)) = object else { continue };
        let object = objects.entry(key).or_insert_with(|| {
            Object::new(Kind::Masquerade, "", place, owner, Maker::Either).removed_by(
                move |sockets, is_dead| match &rule.chain {
                    None => survey::remove(&mut sockets.netfilter, &rule.comment, is_dead),
                    Some(chain) => survey::remove_chain(&mut sockets.netfilter, chain, is_dead),
                },
            )
        });
        object.addresses.extend(rule.source);
    }
    let named = |mut object: Object| {
        object.addresses.sort_unstable();
        object.addresses.dedup();
        let names: Vec<String> = object.addresses.iter().map(ToString::to_string).collect();
        Object { name: names.join(", "), ..object }
    };
    Ok(objects.into_values().map(named).collect())
}
