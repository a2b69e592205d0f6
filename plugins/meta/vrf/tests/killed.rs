//! A runtime may kill the plugin at any time. After that, DEL must leave neither the VRF nor a port of it. Needs `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{assert_unchanged, link, try_link};
use cni_lab::{Place as _, Snapshot};
use common::{attached, config, net};
use serde_json::{Value, json};

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn del_cleans_up_after_killed_calls() {
    let (ctx, pod, routers) = attached();
    let before = Snapshot::take(&pod).unwrap();
    let (one, conf) = (pod.attachment("net1"), config("1.1.0", "net1", &json!({"vrfname": "red"})));
    let detach = |what: &str| {
        ctx.del(&one, &conf);
        assert_eq!((try_link(&pod, "red"), &link(&pod, "net1")["master"]), (None, &Value::Null), "{what}");
        pod.sh("ip link del net1").unwrap();
        net(&pod, &routers[0], "1");
        assert_unchanged(&pod, &before, what);
    };
    for verb in ["ADD", "DEL"] {
        let points = ctx.kill_points(verb, &one, &conf);
        assert!(!points.is_empty(), "{verb}");
        detach(verb);
        for point in points {
            if verb == "DEL" {
                ctx.add(&one, &conf);
            }
            ctx.kill(&point, verb, &one, &conf);
            detach(&format!("{verb} killed {point}"));
        }
    }
}
