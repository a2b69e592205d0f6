//! Results of other vendors' main plugins: like the reference, we open every address. The tests need root, `nft` and `iptables`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{FOREIGN_ADDRESSES, Origin, foreign_results, with_prev};
use common::{World, saved};
use serde_json::json;

#[test]
fn every_address_of_a_result_is_opened() {
    for (origin, backend) in
        [(Origin::Reference, "iptables"), (Origin::Ours, "iptables"), (Origin::Ours, "nftables")]
    {
        let world = World::by(origin);
        let attachment = world.pod("pod").attachment("eth0");
        let opened = || {
            let all = saved(&world, "nft") + &world.set("pods4") + "/" + &world.set("pods6") + "/";
            FOREIGN_ADDRESSES
                .map(|ip| all.contains(&format!("-s {ip}/")) || all.contains(&format!("{ip} comment")))
        };
        // Firewall knows the versions since 0.3.0.
        for (what, result) in foreign_results().into_iter().filter(|(what, _)| *what != "version 0.2.0") {
            let config =
                json!({"cniVersion": "1.0.0", "name": "pods", "type": "firewall", "backend": backend});
            let config = with_prev(&config, &result);
            world.ctx.add(&attachment, &config);
            assert_eq!(opened(), [true; 2], "{what}: {origin:?} with {backend}");
            world.ctx.check(&attachment, &config);
            world.ctx.del(&attachment, &config);
            assert_eq!(opened(), [false; 2], "{what}: {origin:?} with {backend}");
        }
    }
}
