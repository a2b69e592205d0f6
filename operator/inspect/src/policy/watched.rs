//! A pod that `ferrule policy watch` is to look at.

use std::collections::BTreeSet;
use std::net::IpAddr;

use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_policy_kit::ask::{Ask, Pod};
use itertools::Itertools as _;

use super::daemon::Daemon;
use super::notes::no_part;
use super::places::{Places, Where};

/// The state of a pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Here,
    /// On another node, which judges its packets.
    Elsewhere,
    /// It is in the node's network.
    InHost,
    /// Its containers have ended.
    Ended,
    Gone,
}

/// A pod with its last known state.
pub struct Watched {
    name: String,
    /// Its addresses, as long as it has them.
    pub addresses: BTreeSet<IpAddr>,
    standing: Option<Standing>,
    /// The runtime's cache has had it.
    is_cached: bool,
}

impl Watched {
    /// A pod as NAMESPACE/NAME.
    pub fn new(name: &str) -> Watched {
        Watched { name: name.to_owned(), addresses: BTreeSet::new(), standing: None, is_cached: false }
    }

    /// Looks for it. A line if there is something to say.
    ///
    /// # Errors
    /// The kernel refuses to say a route.
    pub fn look(
        &mut self,
        places: &Places,
        daemon: &mut Daemon,
        route: &mut Socket,
    ) -> Result<Option<String>, CniError> {
        let (own, is_over) = places.addresses_of(&self.name);
        let own = if is_over { BTreeSet::new() } else { own };
        let told = daemon.ask(Ask::Pod(self.name.clone())).and_then(|answer| answer.pod);
        let mut is_in_host = false;
        for address in told.iter().filter(|pod| !pod.has_part).flat_map(|pod| &pod.addresses) {
            is_in_host |= places.of(*address, route)?.of == Where::ThisNode;
        }
        Ok(self.take(own, told, is_in_host))
    }

    /// `own`: its addresses by the runtime's cache. `told`: what the daemon knows.
    fn take(&mut self, own: BTreeSet<IpAddr>, told: Option<Pod>, is_in_host: bool) -> Option<String> {
        let standing = match &told {
            Some(Pod { has_part: false, .. }) if is_in_host => Standing::InHost,
            Some(Pod { has_part: true, is_here: false, .. }) => Standing::Elsewhere,
            // The API may have it for some time.
            _ if own.is_empty() && self.is_cached => Standing::Gone,
            Some(Pod { has_part: false, .. }) => Standing::Ended,
            Some(_) => Standing::Here,
            // The daemon may be away.
            None if own.is_empty() => Standing::Gone,
            None => self.standing.filter(|standing| *standing != Standing::Gone).unwrap_or(Standing::Here),
        };
        self.is_cached |= !own.is_empty();
        self.addresses = match standing {
            Standing::Ended | Standing::Gone => BTreeSet::new(),
            _ => own.into_iter().chain(told.into_iter().flat_map(|pod| pod.addresses)).collect(),
        };
        let before = self.standing.replace(standing);
        if before == self.standing {
            return None;
        }
        let name = &self.name;
        match standing {
            Standing::Here => before
                .map(|_| format!("{name} runs on this node with {}", self.addresses.iter().join(" and "))),
            Standing::Elsewhere => {
                Some(format!("{name} runs on another node, which alone sees what its policies deny"))
            }
            Standing::InHost | Standing::Ended => Some(no_part(name, is_in_host)),
            Standing::Gone if before == Some(Standing::Ended) => None,
            Standing::Gone if before.is_some() => {
                Some(format!("{name} has ended: it is not on this node any more"))
            }
            Standing::Gone => Some(format!("{name} is not on this node")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_change_is_one_line() {
        let mut pod = Watched::new("shop/web");
        let own =
            |last: &[u8]| last.iter().map(|last| IpAddr::from([10, 1, 0, *last])).collect::<BTreeSet<_>>();
        let told = |last: &[u8], is_here, has_part| {
            Some(Pod { addresses: own(last).into_iter().collect(), is_here, has_part })
        };
        for (cached, known, is_in_host, line, addresses) in [
            (own(&[]), None, false, "shop/web is not on this node", 0),
            (own(&[]), None, false, "", 0),
            // The API has it later than the runtime, and no address of it at first.
            (own(&[2]), None, false, "shop/web runs on this node with 10.1.0.2", 1),
            (own(&[2]), told(&[], true, true), false, "", 1),
            (own(&[2]), told(&[2], true, false), false, "shop/web has ended: no policy is for it", 0),
            // Without a daemon.
            (own(&[2]), None, false, "", 0),
            (own(&[]), None, false, "", 0),
            (own(&[3]), told(&[3], true, true), false, "shop/web runs on this node with 10.1.0.3", 1),
            // Its namespace is gone, and the API does not know it yet.
            (
                own(&[]),
                told(&[3], true, true),
                false,
                "shop/web has ended: it is not on this node any more",
                0,
            ),
            (own(&[]), None, false, "", 0),
            (own(&[]), told(&[9], false, true), false, "shop/web runs on another node", 1),
            (own(&[]), told(&[7], true, false), true, "shop/web uses the node's network", 1),
        ] {
            let said = pod.take(cached, known, is_in_host).unwrap_or_default();
            assert!(said.starts_with(line) && said.is_empty() == line.is_empty(), "{said}, not {line}");
            assert_eq!(pod.addresses.len(), addresses, "{line}");
        }
        let mut here = Watched::new("shop/web");
        assert_eq!(here.take(own(&[2]), told(&[2], true, true), false), None, "nothing to say");
    }
}
