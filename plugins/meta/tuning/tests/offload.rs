//! The key `offload`: ADD switches the features, CHECK compares them, DEL restores them. `ethtool` is the witness.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::network_config;
use cni_lab::{Place as _, Pod};
use common::{BACKUP, attached, config, eth0, has_feature};
use serde_json::json;

const TSO: &str = "tx-tcp-segmentation";
/// `ethtool` has a name of its own for `rx-gro`.
const GRO: &str = "generic-receive-offload";
const CHECKSUM: &str = "tx-checksum-ip-generic";

fn features(pod: &Pod) -> [bool; 3] {
    [TSO, GRO, CHECKSUM].map(|name| has_feature(pod, name))
}

#[test]
fn features_are_switched_and_restored() {
    let (ctx, pod) = attached();
    pod.sh("ethtool -K eth0 gro off").unwrap();
    assert_eq!(features(&pod), [true, false, true]);
    let conf = config("1.1.0", &json!({"offload": {"tx": false, "gro": true}}));
    ctx.add(&eth0(&pod), &conf);
    // TSO needs checksums.
    assert_eq!(features(&pod), [false, true, false]);
    ctx.check(&eth0(&pod), &conf);
    // A second ADD keeps the first backup.
    ctx.add(&eth0(&pod), &conf);
    pod.sh("ethtool -K eth0 gro off").unwrap();
    let error = ctx.fail("CHECK", &eth0(&pod), &conf);
    assert_eq!(error.msg, "Error: Tuning configured offload rx-gro of eth0 is true, current value is false");
    ctx.del(&eth0(&pod), &network_config("tuning", "1.1.0", &json!({"offload": 7})));
    assert_eq!(features(&pod), [true, false, true]);
}

#[test]
fn a_failed_add_changes_nothing() {
    let (ctx, pod) = attached();
    for (keys, msg) in [
        (
            json!({"mtu": 1400, "offload": {"gro": false, "nonsense": true}}),
            "offload: \"eth0\" has no feature \"nonsense\" that can be changed",
        ),
        (
            json!({"mtu": 1400, "offload": {"tx": false, TSO: true}}),
            "Error: Tuning configured offload tx-tcp-segmentation of eth0 is true, current value is false",
        ),
        (json!({"mtu": 99999, "offload": {"gro": false}}), "set the MTU 99999"),
    ] {
        let before = features(&pod);
        let error = ctx.fail("ADD", &eth0(&pod), &config("1.1.0", &keys));
        assert!(error.msg.starts_with(msg), "{keys}: {error:?}");
        assert_eq!(features(&pod), before, "{keys}");
        assert!(ctx.node.read_file(BACKUP).is_err(), "{keys}");
    }
}
