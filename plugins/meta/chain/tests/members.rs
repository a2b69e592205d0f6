//! Members of another project, failures between members, and calls that are killed.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use cni_lab::testing::{
    ErrorObject, Origin, PluginDir, StubIpam, TestContext, Trace, host_local, network_config, overlay,
    try_link, with_prev,
};
use cni_lab::{Place as _, Pod, Snapshot};
use cni_runner::Attachment;
use serde_json::{Value, json};

fn bridge() -> Value {
    json!({"type": "bridge", "bridge": "br0", "isDefaultGateway": true, "ipMasq": true, "ipam": host_local(&["10.1.0.0/24"])})
}

fn portmap() -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}})
}

fn bandwidth() -> Value {
    json!({"type": "bandwidth", "ingressRate": 10_000_000, "ingressBurst": 10_000_000, "egressRate": 10_000_000, "egressBurst": 10_000_000})
}

fn chain(plugins: &[Value]) -> Value {
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    network_config(
        "chain",
        "1.1.0",
        &json!({"plugins": plugins, "capabilities": {"portMappings": true, "other": true},
        "runtimeConfig": {"portMappings": ports, "other": 1}}),
    )
}

/// A node whose first pod has made everything that the pods share.
fn ctx() -> (TestContext, Snapshot) {
    let others = ["bridge", "host-local", "portmap", "bandwidth"];
    let ctx = TestContext::new(PluginDir::installed(Origin::Ours, "chain").with(Origin::Ours, &others));
    let conf = chain(&[bridge(), portmap(), bandwidth()]);
    let first = ctx.pod("first");
    ctx.add(&first.attachment("eth0"), &conf);
    ctx.del(&first.attachment("eth0"), &conf);
    let before = snapshot(&ctx);
    (ctx, before)
}

fn snapshot(ctx: &TestContext) -> Snapshot {
    ctx.snapshot().ignoring(&["last_reserved_ip"])
}

/// A chain with the plugin `stub` in the middle, whose ADD returns what it gets.
struct WithStub {
    ctx: TestContext,
    before: Snapshot,
    stub: StubIpam,
    pod: Pod,
    conf: Value,
}

impl WithStub {
    fn new() -> WithStub {
        let (mut ctx, before) = ctx();
        let stub = StubIpam::new();
        stub.answer("ADD", "jq .prevResult \"$dir/ADD.stdin\"");
        ctx.path = format!("{}:{}", ctx.path, stub.dir().display());
        let pod = ctx.pod("pod");
        let conf = chain(&[
            bridge(),
            json!({"type": "stub", "capabilities": {"other": true}}),
            portmap(),
            bandwidth(),
        ]);
        WithStub { ctx, before, stub, pod, conf }
    }

    fn attachment(&self) -> Attachment {
        self.pod.attachment("eth0").with_args("IgnoreUnknown=1")
    }

    /// ADD fails, and nothing is left. Returns the error and the calls of the stub.
    fn undone(&self, conf: &Value) -> (ErrorObject, Vec<String>) {
        let error = self.ctx.fail("ADD", &self.attachment(), conf);
        self.assert_clean(&error.msg);
        (error, self.stub.calls())
    }

    fn assert_clean(&self, what: &str) {
        assert!(try_link(&self.pod, "eth0").is_none(), "{what}");
        assert_eq!(self.before.diff(&snapshot(&self.ctx)), "", "{what}");
        assert_eq!(self.ctx.reservations("net"), Vec::<String>::new(), "{what}");
    }
}

#[test]
fn a_member_of_another_project_is_called_as_by_a_runtime() {
    let own = WithStub::new();
    let (ctx, conf, attachment) = (&own.ctx, &own.conf, own.attachment());
    let result = ctx.add(&attachment, conf);
    let sent: Value = serde_json::from_str(&own.stub.stdin("ADD")).unwrap();
    let expected = json!({"type": "stub", "name": "net", "cniVersion": "1.1.0", "capabilities": {"other": true},
        "runtimeConfig": {"other": 1}});
    assert_eq!(
        overlay(&sent, &json!({"prevResult": null})),
        overlay(&expected, &json!({"prevResult": null}))
    );
    assert_eq!(sent["prevResult"]["ips"], result["ips"]);
    assert!(own.stub.env("ADD").contains(&"CNI_ARGS=IgnoreUnknown=1".to_owned()));
    let checked = with_prev(conf, &result);
    ctx.check(&attachment, &checked);
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "pod", "ifname": "eth0"}]});
    ctx.succeed("GC", &Attachment::default(), &overlay(conf, &valid));
    ctx.check(&attachment, &checked);
    ctx.succeed("STATUS", &Attachment::default(), conf);
    // A failed DEL of one member stops no other.
    own.stub.answer("DEL", "echo '{\"code\": 111, \"msg\": \"busy\"}'; exit 1");
    let error = ctx.fail("DEL", &attachment, &checked);
    assert_eq!((error.code, error.msg.as_str()), (111, "plugin type=\"stub\" failed (delete): busy"));
    own.assert_clean("DEL");
    own.stub.answer("DEL", "");
    ctx.del(&attachment, &checked);
    let deleted: Value = serde_json::from_str(&own.stub.stdin("DEL")).unwrap();
    assert_eq!(deleted["prevResult"], result);
    assert_eq!(own.stub.calls(), ["ADD", "CHECK", "GC", "CHECK", "STATUS", "DEL", "DEL"]);
}

#[test]
fn a_failed_member_undoes_the_earlier_ones() {
    let own = WithStub::new();
    for (script, code, why) in [
        ("echo '{\"code\": 111, \"msg\": \"no\"}'; exit 1", 111, "plugin type=\"stub\" failed (add): no"),
        ("", 999, "failed to decode the result of"),
        ("cat /dev/zero", 999, "prints more than"),
        ("cat /dev/zero >&2", 999, "prints more than"),
        ("kill -9 $$", 999, "signal: 9"),
    ] {
        own.stub.answer("ADD", script);
        let (error, calls) = own.undone(&own.conf);
        assert!(error.code == code && error.msg.contains(why), "{script}: {error:?}");
        assert_eq!(calls, ["ADD", "DEL"], "{script}");
    }
    let missing = chain(&[bridge(), json!({"type": "nowhere"})]);
    let (error, _) = own.undone(&missing);
    assert!(
        error.msg.starts_with("plugin type=\"nowhere\" failed (add): failed to find plugin"),
        "{error:?}"
    );
    assert_eq!(own.ctx.fail("STATUS", &Attachment::default(), &missing).code, 50);
    // One of this program, behind the stub.
    own.stub.answer("ADD", "jq .prevResult \"$dir/ADD.stdin\"");
    let mut conf = own.conf.clone();
    conf["plugins"][3]["ingressBurst"] = json!(0);
    let (error, calls) = own.undone(&conf);
    assert!(error.msg.starts_with("plugin type=\"bandwidth\" failed (add): "), "{error:?}");
    assert_eq!(calls, ["ADD", "DEL"]);
    // The interface of an earlier ADD stays.
    own.ctx.add(&own.attachment(), &own.conf);
    own.ctx.fail("ADD", &own.attachment(), &own.conf);
    assert!(try_link(&own.pod, "eth0").is_some());
    let nested = chain(&[bridge(), chain(&[portmap()])]);
    let error = own.ctx.fail("ADD", &own.attachment(), &nested);
    assert_eq!((error.code, error.msg.as_str()), (7, "a chain cannot be in a chain"));
    own.ctx.del(&own.attachment(), &nested);
    own.ctx.del(&own.attachment(), &own.conf);
    own.assert_clean("DEL");
}

#[test]
fn a_runtime_kills_a_call_that_hangs() {
    let own = WithStub::new();
    own.stub.answer("ADD", "exec sleep 5");
    let exec = own.ctx.exec("ADD", &own.attachment(), &own.conf).timeout(Duration::from_secs(2));
    own.ctx.node.call(&exec).expect_err("it hangs");
    own.ctx.del(&own.attachment(), &own.conf);
    own.assert_clean("DEL");
}

#[test]
fn the_log_has_a_line_for_each_member() {
    let (mut ctx, _) = ctx();
    ctx.env.push(("CNI_FERRULE_LOG".to_owned(), "/run/log".to_owned()));
    let (pod, mut conf) = (ctx.pod("pod"), chain(&[bridge(), portmap(), bandwidth()]));
    let lines = || -> Vec<Value> {
        let log = ctx.node.read_file("/run/log").unwrap();
        ctx.node.sh("rm /run/log").unwrap();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let shown = |lines: &[Value]| -> Vec<String> {
        lines
            .iter()
            .map(|line| format!("{} {}", line["plugin"].as_str().unwrap(), line["verb"].as_str().unwrap()))
            .collect()
    };
    ctx.add(&pod.attachment("eth0"), &conf);
    let added = lines();
    assert_eq!(shown(&added), ["bridge ADD", "portmap ADD", "bandwidth ADD", "chain ADD"]);
    assert!(
        added.iter().all(|line| line["network"] == "net" && line["result"]["ips"].is_array()),
        "{added:?}"
    );
    let steps = |line: &Value| {
        line["steps"].as_array().unwrap().iter().map(|step| step["step"].clone()).collect::<Vec<_>>()
    };
    assert!(
        steps(&added[0]).contains(&json!("host-local")) && steps(&added[3]).contains(&json!("portmap")),
        "{added:?}"
    );
    ctx.del(&pod.attachment("eth0"), &conf);
    assert_eq!(shown(&lines()), ["bandwidth DEL", "portmap DEL", "bridge DEL", "chain DEL"]);
    conf["plugins"][2]["ingressBurst"] = json!(0);
    ctx.fail("ADD", &pod.attachment("eth0"), &conf);
    let failed = lines();
    assert_eq!(
        shown(&failed),
        ["bridge ADD", "portmap ADD", "bandwidth ADD", "portmap DEL", "bridge DEL", "chain ADD"]
    );
    assert!(
        failed[2]["error"].is_object() && failed[5]["error"].is_object() && failed[4].get("error").is_none()
    );
}

#[test]
fn the_members_share_one_namespace() {
    let (ctx, _) = ctx();
    let (pod, conf) = (ctx.pod("pod"), chain(&[bridge(), portmap(), bandwidth()]));
    let attachment = pod.attachment("eth0");
    let opens = |verb, conf: &Value| {
        Trace::of(&ctx.node, &ctx.exec(verb, &attachment, conf), "?open,openat").naming(&attachment.netns)
    };
    assert_eq!(opens("ADD", &conf), 1);
    ctx.del(&attachment, &conf);
    let checked = with_prev(&conf, &ctx.add(&attachment, &conf));
    assert_eq!((opens("CHECK", &checked), opens("DEL", &checked)), (1, 1));
}

/// Kills a call before each second system call that others see; DEL removes everything.
#[test]
fn del_cleans_up_after_killed_calls() {
    let (ctx, before) = ctx();
    let conf = chain(&[bridge(), portmap(), bandwidth()]);
    for verb in ["ADD", "DEL"] {
        let pod = ctx.pod(&format!("{verb}-pod").to_lowercase());
        let attachment = pod.attachment("eth0");
        let prepare = || {
            if verb == "DEL" {
                drop(ctx.add(&attachment, &conf))
            }
        };
        prepare();
        let points = ctx.kill_points(verb, &attachment, &conf);
        ctx.del(&attachment, &conf);
        assert!(points.len() > 10, "{points:?}");
        for point in points.iter().step_by(2) {
            prepare();
            ctx.kill(point, verb, &attachment, &conf);
            ctx.del(&attachment, &conf);
            assert!(try_link(&pod, "eth0").is_none(), "{verb} killed {point}");
            assert_eq!(before.diff(&snapshot(&ctx)), "", "{verb} killed {point}");
            assert_eq!(ctx.reservations("net"), Vec::<String>::new(), "{verb} killed {point}");
        }
    }
}
