//! The proofs from what the schedule knows. Pure.

use std::collections::BTreeMap;
use std::time::SystemTime;

use ferrule_kernel::ip::IpFamily;

use super::denied::Rounds;
use super::endpoint::Endpoint;
use super::schedule::{Key, Schedule, Target};
use super::{Input, Proof, Proofs};

/// What the endpoint asks.
pub(super) fn targets(endpoint: &Endpoint, input: &Input) -> BTreeMap<Key, Target> {
    let mut targets = BTreeMap::new();
    let size = input.mtu;
    for place in &endpoint.places {
        let family = IpFamily::of(place.address);
        targets.insert(Key::Gateway(family), Target { address: place.gateway, size });
        if let Some(address) = place.forwarded {
            targets.insert(Key::Forwarded(family), Target { address, size });
        }
        for (name, families) in &input.peers {
            if let Some(Ok(target)) = families.get(&family) {
                targets.insert(Key::Peer(name.clone(), family), *target);
            }
        }
    }
    targets
}

/// Why there is no endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Missing {
    /// It is not made yet.
    Yet,
    /// Nothing can be known.
    Unknown(String),
    /// The plugins refuse a pod, again and again since then.
    Refused(SystemTime, String),
}

impl Missing {
    /// The reason, for people.
    pub(super) fn why(&self) -> &str {
        match self {
            Missing::Yet => "the health endpoint is not made yet",
            Missing::Unknown(why) | Missing::Refused(_, why) => why,
        }
    }
}

/// All proofs. `endpoint`: the endpoint, or why there is none.
pub(super) fn proofs(
    endpoint: Result<&Endpoint, &Missing>,
    input: &Input,
    schedule: &Schedule,
    rounds: &Rounds,
) -> Proofs {
    let unknown = |why: &str| Proof::Unknown(why.to_owned());
    let networks = input.wanted.iter().flat_map(|wanted| wanted.networks());
    let families: Vec<IpFamily> = networks.map(|network| IpFamily::of(network.ip())).collect();
    let policies = families.iter().filter(|_| input.probed.is_some()).filter_map(|family| {
        let proof = match endpoint {
            Err(Missing::Yet) => return None,
            Err(missing) => unknown(missing.why()),
            Ok(endpoint) if !has_other_side(endpoint, *family) => unknown(
                "the health endpoint has no other side, because the node is not the gateway of its pods",
            ),
            Ok(_) => rounds.proof(*family)?,
        };
        Some((*family, proof))
    });
    let policies = policies.collect();
    let local = families.iter().copied().filter_map(|family| {
        let proof = match endpoint {
            Err(Missing::Yet) => return None,
            Err(Missing::Unknown(why)) => unknown(why),
            Err(Missing::Refused(since, why)) => {
                Proof::Lost { since: *since, why: format!("the plugins refuse a pod: {why}") }
            }
            Ok(_) => {
                let keys = [Key::Gateway(family), Key::Forwarded(family)];
                let [gateway, forwarded] = keys.map(|key| schedule.proof(&key));
                let is_lost = |proof: &Option<Proof>| matches!(proof, Some(Proof::Lost { .. }));
                let is_new = |proof: &Option<Proof>| matches!(proof, Some(Proof::Unknown(_)));
                if !is_lost(&gateway) && !is_lost(&forwarded) && (is_new(&gateway) || is_new(&forwarded)) {
                    return None;
                }
                both(family, gateway, forwarded)
            }
        };
        Some((family, proof))
    });
    let peers = input.peers.iter().map(|(name, families)| {
        let of = |(family, target): (&IpFamily, &Result<Target, String>)| {
            let proof = match (target, endpoint) {
                (Err(why), _) => unknown(why),
                (Ok(_), Err(missing)) => unknown(missing.why()),
                (Ok(_), Ok(_)) => {
                    let found = schedule.proof(&Key::Peer(name.clone(), *family));
                    found.unwrap_or_else(|| unknown("this node has no health endpoint of this family"))
                }
            };
            (*family, proof)
        };
        (name.to_string(), families.iter().map(of).collect())
    });
    let endpoints = input.peers.iter().map(|(name, families)| {
        let known = families.iter().filter_map(|(family, target)| Some((*family, *target.as_ref().ok()?)));
        (name.to_string(), known.collect())
    });
    Proofs {
        endpoint: endpoint.ok().cloned(),
        local: local.collect(),
        policies,
        peers: peers.collect(),
        endpoints: endpoints.collect(),
    }
}

fn has_other_side(endpoint: &Endpoint, family: IpFamily) -> bool {
    endpoint.places.iter().any(|place| IpFamily::of(place.address) == family && place.forwarded.is_some())
}

/// The proof of this node. The gateway comes first: without it nothing is forwarded.
fn both(family: IpFamily, gateway: Option<Proof>, forwarded: Option<Proof>) -> Proof {
    match (gateway, forwarded) {
        (Some(Proof::Lost { since, why }), _) => {
            Proof::Lost { since, why: format!("the {family} gateway of this node's pods: {why}") }
        }
        (_, Some(Proof::Lost { since, why })) => Proof::Lost {
            since,
            why: format!(
                "{family} packets that this node forwards: {why}; a rule of the hook forward or rp_filter may drop them"
            ),
        },
        (Some(Proof::Proved { at }), Some(Proof::Proved { at: other })) => {
            Proof::Proved { at: at.min(other) }
        }
        // Another program is the pods' gateway, or they have no other side.
        (Some(proof), None) => proof,
        (Some(Proof::Unknown(why)), _) | (_, Some(Proof::Unknown(why))) => Proof::Unknown(why),
        (None, _) => Proof::Unknown("this node has no health endpoint of this family".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn this_node_is_proved_by_its_gateway_and_by_a_forwarded_packet() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let proved = |seconds| Some(Proof::Proved { at: at(seconds) });
        let lost = || Some(Proof::Lost { since: at(1), why: "no answer".into() });
        let unknown = || Some(Proof::Unknown("not asked".into()));
        let both = |gateway, forwarded| both(IpFamily::V4, gateway, forwarded);
        assert_eq!(both(proved(2), proved(1)), Proof::Proved { at: at(1) });
        assert_eq!(both(proved(2), None), Proof::Proved { at: at(2) });
        for found in [both(unknown(), proved(1)), both(proved(1), unknown()), both(None, proved(1))] {
            assert!(matches!(found, Proof::Unknown(_)), "{found:?}");
        }
        for (found, said) in [
            (both(lost(), lost()), "the IPv4 gateway"),
            (both(lost(), None), "the IPv4 gateway"),
            (both(proved(1), lost()), "the hook forward"),
            (both(unknown(), lost()), "the hook forward"),
        ] {
            assert!(matches!(&found, Proof::Lost { why, .. } if why.contains(said)), "{found:?}");
        }
    }
}
