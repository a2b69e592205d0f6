//! The table of the nftables backend after ADD, CHECK, DEL and GC, read with `nft`. The tests need root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{World, pods};
use serde_json::json;

const LISTED: &str = include_str!("listed.txt");

#[test]
fn listing_is_as_documented() {
    let world = World::new();
    let added = world.add("one", &pods(json!({"backend": "nftables", "ingressPolicy": "isolated"})));
    assert_eq!(world.table(), LISTED);
    assert_eq!(added.check(), Ok(()));
    added.del();
    assert_eq!((world.set("pods4"), world.set("pods6")), (String::new(), String::new()));
}
