//! Which devices belong together: those of one NUMA node, and there those of one physical function. Pure.

use std::collections::BTreeMap;

use ferrule_nic_proto::v1beta1::{ContainerPreferredAllocationRequest, ContainerPreferredAllocationResponse};

use crate::plan::Offer;

/// Chooses among the devices that are available. Those that must be in the answer come first.
pub(crate) fn choose(
    offers: &[Offer],
    request: &ContainerPreferredAllocationRequest,
) -> ContainerPreferredAllocationResponse {
    let (available, must) = (&request.available_device_ids, &request.must_include_device_ids);
    let size = usize::try_from(request.allocation_size).unwrap_or(0);
    let wanted = |id: &str| available.iter().chain(must).any(|one| one == id);
    let free: Vec<&Offer> = offers.iter().filter(|offer| wanted(&offer.id)).collect();
    let is_must = |offer: &Offer| must.contains(&offer.id);
    let numa = ranks(free.iter().map(|offer| (offer.numa, is_must(offer))), size);
    let pf = ranks(free.iter().map(|offer| (offer.pf.as_deref(), is_must(offer))), size);
    let mut chosen = free.clone();
    chosen.sort_by_key(|offer| (!is_must(offer), numa[&offer.numa], pf[&offer.pf.as_deref()], &offer.id));
    let device_ids = chosen.into_iter().take(size).map(|offer| offer.id.clone()).collect();
    ContainerPreferredAllocationResponse { device_ids }
}

/// The order of groups: those with devices that must be in the answer, then the smallest that suffices, then the largest.
fn ranks<K: Ord + Copy>(devices: impl Iterator<Item = (K, bool)>, size: usize) -> BTreeMap<K, usize> {
    let mut groups: BTreeMap<K, (usize, usize)> = BTreeMap::new();
    for (group, must) in devices {
        let (count, musts) = groups.entry(group).or_default();
        *count += 1;
        *musts += usize::from(must);
    }
    let mut order: Vec<_> = groups.into_iter().collect();
    order.sort_by_key(|(_, (count, musts))| {
        let suffices = *count >= size;
        (usize::MAX - musts, !suffices, if suffices { *count } else { usize::MAX - count })
    });
    order.into_iter().enumerate().map(|(rank, (group, _))| (group, rank)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_node_then_one_function() {
        let offer = |(id, numa, pf): (&str, Option<i64>, &str)| Offer {
            id: id.to_owned(),
            problem: None,
            what: String::new(),
            numa,
            pf: Some(pf.to_owned()),
            present: true,
        };
        let offers: Vec<Offer> = [
            ("a", Some(0), "p0"),
            ("b", Some(1), "p1"),
            ("c", Some(0), "p2"),
            ("d", Some(1), "p1"),
            ("e", Some(1), "p3"),
            ("f", None, "p4"),
        ]
        .map(offer)
        .into();
        let ids = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        for (available, must, size, expected) in [
            ("a b c d e f", "", 2, "a c"),
            ("a b c d e f", "", 3, "b d e"),
            ("b d e", "", 2, "b d"),
            ("a b c d e f", "e", 2, "e b"),
            ("a b", "", 2, "a b"),
            ("a b d e f", "f", 1, "f"),
        ] {
            let request = ContainerPreferredAllocationRequest {
                available_device_ids: ids(available),
                must_include_device_ids: ids(must),
                allocation_size: size,
            };
            assert_eq!(choose(&offers, &request).device_ids, ids(expected), "{request:?}");
        }
    }
}
