//! The objects of whereabouts. Pure.
//!
//! An IPPool has a range and, by their distance from the range's address, the addresses in use. An OverlappingRangeIPReservation has an
//! address in its name, with hyphens instead of colons and maybe behind the name of a network. Whereabouts checks both before it gives
//! an address.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrule_blocks::block::{Block, Size};
use serde::Deserialize;

/// The group and the version.
pub(super) const API: &str = "/apis/whereabouts.cni.cncf.io/v1alpha1";

/// An IPPool.
#[derive(Debug, Deserialize)]
pub(super) struct Pool {
    metadata: Metadata,
    spec: Spec,
}

/// An OverlappingRangeIPReservation.
#[derive(Debug, Deserialize)]
pub(super) struct Reservation {
    metadata: Metadata,
    spec: Holder,
}

#[derive(Debug, Deserialize)]
struct Metadata {
    name: String,
}

#[derive(Debug, Deserialize)]
struct Spec {
    range: String,
    #[serde(default)]
    allocations: BTreeMap<String, Holder>,
}

#[derive(Debug, Deserialize)]
struct Holder {
    /// The pod: `namespace/name`.
    #[serde(default)]
    podref: String,
}

/// The addresses in use, each with its pod.
pub(super) type Live = BTreeMap<IpAddr, String>;

/// The addresses of all pools and reservations.
///
/// # Errors
/// A pool cannot be understood: some of its addresses would not be known.
pub(super) fn live(pools: &[Pool], reservations: &[Reservation]) -> Result<Live, String> {
    let mut live = Live::new();
    for Reservation { metadata, spec } in reservations {
        live.extend(named(&metadata.name).map(|ip| (ip, spec.podref.clone())));
    }
    for Pool { metadata: Metadata { name }, spec } in pools {
        let first = spec.range.split('/').next().and_then(|ip| ip.parse::<IpAddr>().ok());
        let first = first.ok_or_else(|| format!("IPPool {name}: range {:?} has no address", spec.range))?;
        for (distance, holder) in &spec.allocations {
            let ip = distance.parse().ok().and_then(|distance| at(first, distance));
            let ip = ip.ok_or_else(|| {
                format!("IPPool {name}: allocation {distance:?} is no address of {}", spec.range)
            })?;
            live.insert(ip, holder.podref.clone());
        }
    }
    Ok(live)
}

fn at(first: IpAddr, distance: u64) -> Option<IpAddr> {
    match first {
        IpAddr::V4(ip) => Some(IpAddr::V4(ip.to_bits().checked_add(distance.try_into().ok()?)?.into())),
        IpAddr::V6(ip) => Some(IpAddr::V6(ip.to_bits().checked_add(distance.into())?.into())),
    }
}

/// The addresses that the name of a reservation may mean. The network's name in it may look like a part of the address.
fn named(name: &str) -> impl Iterator<Item = IpAddr> {
    let starts = name.match_indices('-').map(|(at, _)| at + 1);
    [0].into_iter().chain(starts).filter_map(|at| name.get(at..)?.replace('-', ":").parse().ok())
}

/// The blocks that have an address in use, with these addresses. `size_of` is the size of the block of an address, or `None` for one that
/// does not matter.
pub(super) fn blocks(live: &Live, size_of: impl Fn(IpAddr) -> Option<Size>) -> BTreeMap<Block, Vec<IpAddr>> {
    let mut found = BTreeMap::<Block, Vec<IpAddr>>::new();
    for ip in live.keys() {
        if let Some(size) = size_of(*ip) {
            found.entry(Block::of(*ip, size)).or_default().push(*ip);
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pool(range: &str, allocations: Value) -> Pool {
        serde_json::from_value(
            json!({"metadata": {"name": "p"}, "spec": {"range": range, "allocations": allocations}}),
        )
        .unwrap()
    }

    #[test]
    fn addresses_of_pools_and_reservations() {
        let holder = || json!({"id": "c", "podref": "shop/web", "ifname": "net1"});
        let pools = [
            pool("10.20.0.0/24", json!({"1": holder(), "33": holder()})),
            pool("10.20.1.225/28", json!({"2": holder()})),
            pool("fd00:20::/64", json!({"18446744073709551615": holder()})),
        ];
        let reservation = |name: &str| {
            serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"podref": "shop/db"}}))
                .unwrap()
        };
        let reservations =
            ["10.20.0.33", "lan-10.20.0.34", "fd00-20--7", "lan-fd00-20--8", "nonsense"].map(reservation);
        let live = live(&pools, &reservations).unwrap();
        let ips: Vec<String> = live.keys().map(IpAddr::to_string).collect();
        let expected = [
            "10.20.0.1",
            "10.20.0.33",
            "10.20.0.34",
            "10.20.1.227",
            // What the names of the reservations may mean too.
            "20::7",
            "20::8",
            "fd00:20::7",
            "fd00:20::8",
            "fd00:20::ffff:ffff:ffff:ffff",
        ];
        assert_eq!(ips, expected);
        assert_eq!(live[&"10.20.0.33".parse().unwrap()], "shop/web", "its pool counts more");
        let size_of = |ip: IpAddr| match (ip, ip.to_string().starts_with("fd00")) {
            (IpAddr::V4(ip), _) => (ip.octets()[2] == 0).then(|| 32.try_into().unwrap()),
            (_, is_ours) => is_ours.then(|| 4.try_into().unwrap()),
        };
        let blocks: Vec<(String, usize)> =
            blocks(&live, size_of).iter().map(|(block, ips)| (block.name("l"), ips.len())).collect();
        let names = [
            "l.10-20-0-0",
            "l.10-20-0-32",
            "l.fd00-0020-0000-0000-0000-0000-0000-0004",
            "l.fd00-0020-0000-0000-0000-0000-0000-0008",
            "l.fd00-0020-0000-0000-ffff-ffff-ffff-fffc",
        ];
        assert_eq!(blocks, names.map(|name| (name.to_owned(), if name.ends_with("-32") { 2 } else { 1 })));
    }

    #[test]
    fn what_is_not_understood_is_an_error() {
        for (range, distance) in [
            ("10.20.0.0/24", "x"),
            ("10.20.0.0/24", "-1"),
            ("10.20.0.0/24", "4294967296"),
            ("255.255.255.0/24", "256"),
            ("x/24", "1"),
        ] {
            let pools = [pool(range, json!({distance: {"id": "c", "podref": "p"}}))];
            assert!(live(&pools, &[]).unwrap_err().starts_with("IPPool p: "), "{range} {distance}");
        }
    }
}
