//! What the delegate gets, and errors: of flannel's file, of the configuration and of the delegate. The delegate is a stub.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_lab::testing::{StubIpam, assert_unchanged, overlay, with_prev};
use cni_runner::Attachment;
use common::{SUBNET_ENV, states, to_stub, with_stub, write_env};
use serde_json::{Value, json};

fn read(stub: &StubIpam, verb: &str) -> Value {
    serde_json::from_str(&stub.stdin(verb)).unwrap()
}

#[test]
fn each_verb_passes_what_the_runtime_says() {
    let stub = StubIpam::assigning("1.1.0", &["10.1.9.2/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("c1");
    let ports = json!({"portMappings": [{"hostPort": 80, "containerPort": 8080, "protocol": "tcp"}]});
    let ipam = json!({"type": "x", "routes": [{"dst": "0.0.0.0/0"}]});
    let conf = to_stub(&json!({"runtimeConfig": ports, "ipam": ipam, "dataDir": "/run/flannel-state"}));
    let result = ctx.add(&pod.attachment("eth0"), &conf);
    let added = read(&stub, "ADD");
    let routes = json!([{"dst": "0.0.0.0/0"}, {"dst": "10.1.0.0/16"}, {"dst": "fd00:1::/48"}]);
    assert_eq!((&added["ipam"]["type"], &added["ipam"]["routes"]), (&json!("x"), &routes));
    assert_eq!(
        (&added["runtimeConfig"], &added["mtu"], &added["ipMasq"]),
        (&ports, &json!(1450), &json!(false))
    );
    assert!(added.get("isGateway").is_none() && added.get("delegate").is_none(), "{added}");
    assert_eq!(ctx.node.list_dir("/run/flannel-state").unwrap(), ["c1"]);

    let checked = with_prev(&conf, &result);
    let with_result = overlay(&added, &json!({"prevResult": result}));
    ctx.check(&pod.attachment("eth0"), &checked);
    assert_eq!(read(&stub, "CHECK"), with_result);
    // The runtime sends no runtimeConfig at DEL: that of ADD counts.
    ctx.del(&pod.attachment("eth0"), &overlay(&checked, &json!({"runtimeConfig": null})));
    assert_eq!(read(&stub, "DEL"), with_result);
    assert!(ctx.node.list_dir("/run/flannel-state").unwrap().is_empty());

    ctx.succeed("STATUS", &Attachment::default(), &conf);
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]});
    ctx.succeed("GC", &Attachment::default(), &overlay(&conf, &valid));
    let mut passed = overlay(&added, &valid);
    passed["cni.dev/attachments"] = passed["cni.dev/valid-attachments"].clone();
    assert_eq!(read(&stub, "GC"), passed);
    assert_eq!(stub.calls(), ["ADD", "CHECK", "DEL", "STATUS", "GC"]);
    // Without flannel's file, only a plugin of this program can do without the subnets.
    ctx.node.sh("rm /run/flannel/subnet.env").unwrap();
    ctx.del(&pod.attachment("eth0"), &conf);
    ctx.succeed("GC", &Attachment::default(), &conf);
    assert!(stub.calls().is_empty());
}

#[test]
fn a_missing_or_broken_file_is_one_clear_error() {
    let stub = StubIpam::assigning("1.1.0", &["10.1.9.2/24"]);
    let ctx = with_stub(&stub);
    let pod = ctx.pod("c1");
    let file = "/run/flannel/subnet.env";
    for (content, code, why) in [
        (None, 11, format!("open {file}: no such file or directory")),
        (
            Some("FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.9.1/24\n".to_owned()),
            6,
            format!("{file} is missing FLANNEL_MTU, FLANNEL_IPMASQ"),
        ),
        (
            Some(SUBNET_ENV.replace("9.1/24", "9.1")),
            6,
            "FLANNEL_SUBNET: invalid CIDR address: 10.1.9.1".to_owned(),
        ),
        (
            Some("\u{1}nonsense".repeat(1000)),
            6,
            format!(
                "{file} is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, \
            FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ"
            ),
        ),
    ] {
        match content {
            None => ctx.node.sh(&format!("rm {file}")).map(drop).unwrap(),
            Some(text) => write_env(&ctx, &text),
        }
        let before = ctx.snapshot();
        let text = format!(
            "failed to load flannel 'subnet.env' file: {why}. Check the flannel pod log for this node."
        );
        let error = ctx.fail("ADD", &pod.attachment("eth0"), &to_stub(&json!({})));
        assert_eq!(error.pair(), (code, text.clone()));
        let error = ctx.fail("STATUS", &Attachment::default(), &to_stub(&json!({})));
        assert_eq!(error.pair(), (50, text));
        assert_unchanged(&ctx.node, &before, &why);
        assert!(stub.calls().is_empty());
    }
    // Another file is there.
    ctx.node.write_file("/run/other.env", SUBNET_ENV).unwrap();
    ctx.add(&pod.attachment("eth0"), &to_stub(&json!({"subnetFile": "/run/other.env"})));
}

#[test]
fn a_failed_add_leaves_the_state_as_it_was() {
    let stub = StubIpam::new();
    let ctx = with_stub(&stub);
    let pod = ctx.pod("c1");
    stub.fail("ADD", 130, "not today");
    ctx.fail("ADD", &pod.attachment("eth0"), &to_stub(&json!({}))).expect(130, "not today");
    assert_eq!((stub.calls(), states(&ctx).len()), (vec!["ADD".to_owned()], 0));
    ctx.node.sh("echo earlier >/var/lib/cni/flannel/c1").unwrap();
    ctx.fail("ADD", &pod.attachment("eth0"), &to_stub(&json!({}))).expect(130, "not today");
    assert_eq!(ctx.node.read_file("/var/lib/cni/flannel/c1").unwrap(), "earlier\n");
    // A DEL that fails keeps the file for the next one.
    stub.assign("1.1.0", &["10.1.9.2/24"]);
    ctx.add(&pod.attachment("eth0"), &to_stub(&json!({})));
    stub.fail("DEL", 131, "nor now");
    ctx.fail("DEL", &pod.attachment("eth0"), &to_stub(&json!({}))).expect(131, "nor now");
    assert_eq!(states(&ctx), ["c1"]);
    stub.answer("DEL", "true");
    ctx.del(&pod.attachment("eth0"), &to_stub(&json!({"delegate": "broken"})));
    assert!(states(&ctx).is_empty());
    for (keys, code, text) in [
        (json!({"delegate": {"type": "flannel"}}), 7, "flannel cannot be its own delegate"),
        (json!({"delegate": {"type": "no-such"}}), 999, "failed to find plugin \"no-such\""),
        (json!({"delegate": {"name": "x"}}), 7, "must not have 'name' field, it'll be set by flannel"),
        (json!({"delegate": 7}), 6, "delegate"),
    ] {
        let conf = overlay(&to_stub(&json!({})), &keys);
        ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(code, text);
        assert!(states(&ctx).is_empty(), "{text}");
    }
}

#[test]
fn del_and_gc_clean_up_after_killed_calls() {
    let stub = StubIpam::assigning("1.1.0", &["10.1.9.2/24"]);
    let ctx = with_stub(&stub);
    let (pod, conf) = (ctx.pod("c1"), to_stub(&json!({})));
    // Makes the folder.
    ctx.add(&pod.attachment("eth0"), &conf);
    ctx.del(&pod.attachment("eth0"), &conf);
    let before = ctx.snapshot();
    for verb in ["ADD", "DEL"] {
        if verb == "DEL" {
            ctx.add(&pod.attachment("eth0"), &conf);
        }
        let points = ctx.kill_points(verb, &pod.attachment("eth0"), &conf);
        ctx.del(&pod.attachment("eth0"), &conf);
        assert!(points.len() > 1, "{points:?}");
        for (number, point) in points.iter().enumerate() {
            let ends_by = if number % 2 == 0 { "DEL" } else { "GC" };
            if verb == "DEL" {
                ctx.add(&pod.attachment("eth0"), &conf);
            }
            ctx.kill(point, verb, &pod.attachment("eth0"), &conf);
            ctx.succeed(ends_by, &pod.attachment("eth0"), &conf);
            assert_eq!(stub.calls().last().unwrap(), ends_by);
            assert_unchanged(&ctx.node, &before, &format!("{verb} killed {point}, {ends_by}"));
        }
    }
}
