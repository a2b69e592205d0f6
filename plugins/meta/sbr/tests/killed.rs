//! A runtime may kill the plugin at any time. After that, DEL must restore the routes and leave nothing. Needs
//! `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Snapshot;
use cni_lab::testing::assert_unchanged;
use common::{attached, config};
use serde_json::json;

#[test]
fn del_cleans_up_after_killed_calls() {
    let (ctx, pod) = attached();
    let before = Snapshot::take(&pod).unwrap();
    let (net, conf) = (pod.attachment("net1"), config("1.1.0", &json!({"addSourceHints": true})));
    let detach = |what: &str| {
        ctx.del(&net, &conf);
        assert_unchanged(&pod, &before, what);
    };
    for verb in ["ADD", "DEL"] {
        let points = ctx.kill_points(verb, &net, &conf);
        assert!(!points.is_empty(), "{verb}");
        detach(verb);
        for point in points {
            if verb == "DEL" {
                ctx.add(&net, &conf);
            }
            ctx.kill(&point, verb, &net, &conf);
            detach(&format!("{verb} killed {point}"));
        }
    }
}
