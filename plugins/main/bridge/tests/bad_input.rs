//! Invalid input fails with one error object, status 1 and the right code, and changes nothing.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Expect as _, StubIpam, assert_unchanged, overlay};
use cni_lab::{Place, Snapshot};
use cni_runner::Exec;
use common::{config, ours, with_stub};
use serde_json::{Value, json};

/// One invalid input and the expected error.
struct BadInput {
    name: &'static str,
    keys: Value,
    change: fn(Exec) -> Exec,
    code: u64,
    text: &'static str,
}

fn keys(name: &'static str, keys: Value, code: u64, text: &'static str) -> BadInput {
    BadInput { name, keys, change: |exec| exec, code, text }
}

fn call(name: &'static str, change: fn(Exec) -> Exec, code: u64, text: &'static str) -> BadInput {
    BadInput { name, keys: json!({}), change, code, text }
}

fn netns(mut exec: Exec, path: &str) -> Exec {
    exec.netns = path.to_owned();
    exec
}

fn ifname(mut exec: Exec, name: &str) -> Exec {
    exec.ifname = name.to_owned();
    exec
}

fn args(mut exec: Exec, args: &str) -> Exec {
    exec.args = args.to_owned();
    exec
}

fn calls() -> Vec<BadInput> {
    vec![
        call("a missing namespace", |exec| netns(exec, "/run/netns/none"), 4, "/run/netns/none"),
        call("a path below a file", |exec| netns(exec, "/etc/passwd/x"), 4, "/etc/passwd/x"),
        call("a file that is not a namespace", |exec| netns(exec, "/etc/passwd"), 4, "unknown FS magic"),
        call("a folder", |exec| netns(exec, "/tmp"), 4, "/tmp"),
        call(
            "a file of /proc that is not a namespace",
            |exec| netns(exec, "/proc/version"),
            999,
            "namespace",
        ),
        call("a namespace of another kind", |exec| netns(exec, "/proc/self/ns/mnt"), 999, "namespace"),
        call(
            "the plugin's own namespace",
            |exec| netns(exec, "/proc/self/ns/net"),
            8,
            "should not be the same",
        ),
        call("no namespace", |exec| netns(exec, ""), 4, "CNI_NETNS"),
        call("a template as a name", |exec| ifname(exec, "a%d"), 4, "CNI_IFNAME=a%d"),
        call("a reserved name", |exec| ifname(exec, "all"), 999, "all"),
        call("another reserved name", |exec| ifname(exec, "default"), 999, "default"),
        call("a name with a slash", |exec| ifname(exec, "a/b"), 4, "CNI_IFNAME"),
        call("a name that is too long", |exec| ifname(exec, "0123456789abcdef"), 4, "too long"),
        call("a name that is taken", |exec| ifname(exec, "lo"), 999, "already exists"),
        call("unknown arguments", |exec| args(exec, "K8S_POD_NAME=x"), 4, "K8S_POD_NAME=x"),
        call("arguments without a value", |exec| args(exec, "IgnoreUnknown=1;MAC"), 4, "MAC"),
        call("an argument with a bad value", |exec| args(exec, "MAC=02:00"), 4, "MAC=02:00"),
        call(
            "CNI_PATH without IPAM in it",
            |exec| exec.path("/nonexistent:/tmp"),
            999,
            "[/nonexistent /tmp]",
        ),
        call("no CNI_PATH", |exec| exec.path(""), 4, "no paths provided"),
        call("no input", |exec| exec.stdin(""), 6, "error unmarshall network config"),
        call(
            "half of the input",
            |exec| exec.stdin(r#"{"name": "net","#),
            6,
            "error unmarshall network config",
        ),
    ]
}

fn configurations() -> Vec<BadInput> {
    let mac = |value: &str| json!({"runtimeConfig": {"mac": value}});
    let earlier = |version: &str| json!({"prevResult": {"cniVersion": version, "ips": []}});
    vec![
        keys("no name", json!({"name": ""}), 7, "missing network name"),
        keys("a bad name", json!({"name": "n/x"}), 7, "invalid characters found in network name"),
        keys("an unknown version", json!({"cniVersion": "1.2.0"}), 1, "incompatible CNI versions"),
        keys("a bridge with a slash", json!({"bridge": "a/b"}), 7, "bridge: "),
        keys("a bridge of two words", json!({"bridge": "a b"}), 7, "bridge: "),
        keys("a bridge as a template", json!({"bridge": "br%d"}), 7, "bridge: "),
        keys("a bridge with a long name", json!({"bridge": "0123456789abcdef"}), 7, "too long"),
        keys("a bridge called ..", json!({"bridge": ".."}), 7, "bridge: "),
        keys("a bridge that is a number", json!({"bridge": 5}), 6, ""),
        keys("a negative mtu", json!({"mtu": -1}), 7, "invalid mtu -1"),
        keys("a small mtu", json!({"mtu": 67}), 7, "invalid mtu 67"),
        keys("a large mtu", json!({"mtu": 65536}), 7, "invalid mtu 65536"),
        keys("a huge mtu", json!({"mtu": 4_294_968_796_u64}), 7, "invalid mtu 4294968796"),
        keys("an mtu as text", json!({"mtu": "1500"}), 6, ""),
        keys("a fractional mtu", json!({"mtu": 1500.5}), 6, ""),
        keys(
            "hairpin and promiscuous",
            json!({"hairpinMode": true, "promiscMode": true}),
            7,
            "cannot set hairpin mode",
        ),
        keys("a boolean as text", json!({"isGateway": "true"}), 6, ""),
        keys("an invalid mac", mac("nonsense"), 7, "nonsense"),
        keys("a mac that is short", mac("02:00:00:00:00"), 7, "02:00:00:00:00"),
        keys("a mac that is long", mac("02:00:00:00:00:00:00:01"), 7, "02:00:00:00:00:00:00:01"),
        keys("a multicast mac", mac("01:00:5e:00:00:01"), 7, "01:00:5e:00:00:01"),
        keys("an all-zero mac", mac("00:00:00:00:00:00"), 7, "00:00:00:00:00:00"),
        keys("a bad mac in args", json!({"args": {"cni": {"mac": "x"}}}), 7, "args.cni.mac"),
        keys("ipam that is a path", json!({"ipam": {"type": "../stub"}}), 7, "invalid plugin name: ../stub"),
        keys(
            "ipam that is missing",
            json!({"ipam": {"type": "missing"}}),
            999,
            "failed to find plugin \"missing\"",
        ),
        keys(
            "ipam that is a folder",
            json!({"ipam": {"type": "folder"}}),
            999,
            "failed to find plugin \"folder\"",
        ),
        keys("ipam that is text", json!({"ipam": "stub"}), 6, ""),
        keys("a prevResult of 0.4.0", earlier("0.4.0"), 7, "0.4.0"),
        keys("a prevResult of 0.2.0", earlier("0.2.0"), 7, "0.2.0"),
        keys("a prevResult that is text", json!({"prevResult": "x"}), 7, "prevResult"),
    ]
}

/// On a node with the bridge and on one without it.
#[test]
fn invalid_input_fails_and_changes_nothing() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.0.2/24"]);
    std::fs::create_dir(stub.dir().join("folder")).unwrap();
    for has_bridge in [false, true] {
        let ctx = with_stub(&stub);
        let pod = ctx.pod("pod1");
        let base = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
        if has_bridge {
            ctx.add(&ctx.pod("first").attachment("eth0"), &base);
        }
        let (before, pod_before) = (ctx.snapshot(), Snapshot::take(&pod).unwrap());
        let links_before = (links(&ctx.node), links(&pod));
        stub.calls();
        for bad in calls().into_iter().chain(configurations()) {
            println!("{}", bad.name);
            let exec = ctx.exec("ADD", &pod.attachment("eth0"), &overlay(&base, &bad.keys));
            let output = ctx.node.call(&(bad.change)(exec)).unwrap();
            output.error().expect(bad.code, bad.text);
            assert_eq!(output.stderr_text(), "", "stderr");
            // Only the kernel refuses the reserved names, after the bridge has been made.
            if bad.name.contains("reserved") && !has_bridge {
                ctx.node.sh("ip link del br0").unwrap();
            }
            // Compare the whole node once for each input, beside a working attachment; compare the links
            // always.
            if has_bridge {
                assert_unchanged(&ctx.node, &before, bad.name);
            }
            assert_eq!((links(&ctx.node), links(&pod)), links_before, "{}", bad.name);
            // IPAM must get back every address that it assigned.
            let calls = stub.calls();
            assert!(calls.is_empty() || calls == ["ADD", "DEL"], "{}: {calls:?}", bad.name);
        }
        assert_unchanged(&ctx.node, &before, "the node after bad input");
        assert_unchanged(&pod, &pod_before, "the pod after bad input");
    }
}

fn links<P: Place>(place: &P) -> String {
    place.sh("ip -o link").unwrap()
}

#[test]
fn without_cni_command_it_prints_its_name() {
    let ctx = ours();
    let output = ctx.node.call(&Exec::new(ctx.plugins.path().join("bridge"), "")).unwrap();
    assert!(output.success());
    assert_eq!(output.stdout_text(), "");
    assert!(output.stderr_text().starts_with("CNI bridge plugin v"), "{}", output.stderr_text());
}

#[test]
fn unknown_verbs() {
    let ctx = ours();
    let pod = ctx.pod("pod1");
    for verb in ["add", "NOPE", "ADD "] {
        let failure = ctx.fail(verb, &pod.attachment("eth0"), &config("1.0.0", &json!({})));
        failure.expect(4, &format!("unknown CNI_COMMAND: {verb}"));
    }
}

/// Standard input may arrive in pieces.
#[test]
fn slow_input_is_read_to_the_end() {
    let ctx = ours();
    ctx.pod("pod1");
    let script = format!(
        "(printf '{{\"cniVersion\": \"1.0.0\", \"name\"'; sleep 0.2; printf ': \"net\", \"type\": \"bridge\"}}') | \
         CNI_COMMAND=ADD CNI_CONTAINERID=pod1 CNI_IFNAME=eth0 CNI_NETNS=/run/netns/pod1 CNI_PATH={} {}",
        ctx.path,
        ctx.plugin.display()
    );
    let result: Value = serde_json::from_str(&ctx.node.sh(&script).unwrap()).unwrap();
    assert_eq!(result["interfaces"][0]["name"], "cni0");
}
