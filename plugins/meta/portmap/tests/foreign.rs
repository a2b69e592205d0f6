//! Results of other vendors' main plugins: a host port leads to the container also if the result does not report its sandbox.
//! The tests need root, `nft` and `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{FOREIGN_ADDRESSES, Origin, foreign_results, iptables, overlay};
use common::{World, over_tcp};
use serde_json::json;

/// The results with which the reference succeeds and does nothing.
const REFERENCE_DOES_NOTHING: [&str; 2] = ["no sandbox", "only the host's end"];

#[test]
fn a_host_port_leads_to_the_addresses_of_every_result() {
    for (origin, backend) in
        [(Origin::Reference, "iptables"), (Origin::Ours, "iptables"), (Origin::Ours, "nftables")]
    {
        let world = World::by(origin);
        let attachment = world.pod("pod").attachment("eth0");
        let mapped = || {
            let all = iptables::saved(&world.node, "nft") + &world.table();
            let is_target = |ip: &str| {
                [format!("{ip}:80"), format!("[{ip}]:80"), format!("{ip} . 80")]
                    .iter()
                    .any(|to| all.contains(to))
            };
            FOREIGN_ADDRESSES.map(is_target)
        };
        for (what, result) in foreign_results() {
            let is_expected = origin == Origin::Ours || !REFERENCE_DOES_NOTHING.contains(&what);
            let config = json!({"cniVersion": result["cniVersion"], "name": "pods", "type": "portmap",
                "runtimeConfig": {"portMappings": over_tcp(8080, 80)}, "prevResult": result});
            let keys = if origin == Origin::Ours { json!({"backend": backend}) } else { json!({}) };
            let config = overlay(&config, &keys);
            world.ctx.add(&attachment, &config);
            assert_eq!(mapped(), [is_expected; 2], "{what}: {origin:?} with {backend}");
            if origin == Origin::Ours && result["cniVersion"] != "0.2.0" {
                world.ctx.check(&attachment, &config);
            }
            world.ctx.del(&attachment, &config);
            assert_eq!(mapped(), [false; 2], "{what}: {origin:?} with {backend}");
        }
    }
}
