//! The objects about blocks, as a function of any bytes.

use ferrule_blocks::block::Size;
use serde::de::DeserializeOwned;

use super::fence::Node;
use super::object::{Claimant, Domain, Object, Page};
use super::whereabouts::{self, Pool, Reservation};

/// Reads them as a list of each kind.
pub fn objects(bytes: &[u8]) {
    let node: Option<Node> = serde_json::from_slice(bytes).ok();
    let [node_name, machine, store, boot] = ["node", "machine", "store", "boot"].map(str::to_owned);
    let reader = Claimant { node: node_name, machine, store, boot };
    for claim in items::<Object>(bytes).into_iter().filter_map(|object| object.claim("lan", &reader)) {
        assert!(claim.block.is_aligned());
        let _ = node.as_ref().map(|node| node.is_fenced() && node.has_made(&claim));
    }
    let _ = items::<Domain>(bytes).iter().map(|domain| domain.ranges().len()).sum::<usize>();
    if let Ok(live) = whereabouts::live(&items::<Pool>(bytes), &items::<Reservation>(bytes)) {
        let _ = whereabouts::blocks(&live, |_| Size::try_from(32).ok());
    }
}

fn items<T: DeserializeOwned>(bytes: &[u8]) -> Vec<T> {
    serde_json::from_slice::<Page<T>>(bytes).map_or_else(|_| Vec::new(), |page| page.items)
}
