//! What the lines say.

use cni_lab::Place as _;
use cni_lab::testing::{Expect as _, host_local, network_config, with_prev};
use serde_json::json;

use crate::fixture::{LOG, lines, node, with_log};

#[test]
fn a_line_for_each_call() {
    let ctx = with_log(&node("bridge"), LOG);
    let pod = ctx.pod("call-log");
    let attachment =
        pod.attachment("eth0").with_args("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0");
    let conf = network_config(
        "bridge",
        "1.1.0",
        &json!({"isGateway": true, "ipMasq": true, "token": "confsecret7", "ipam": host_local(&["10.1.2.0/24"])}),
    );
    let result = ctx.add(&attachment, &conf);
    let conf = with_prev(&conf, &result);
    ctx.check(&attachment, &conf);
    let error = ctx.fail("ADD", &attachment, &conf);
    // Runtimes call these two for no container.
    ctx.succeed("STATUS", &attachment, &conf);
    ctx.call("VERSION", &attachment, &conf).result();
    ctx.del(&attachment, &conf);

    // The configuration may have secrets.
    ctx.node.sh(&format!("! grep -q confsecret7 {LOG}")).unwrap();
    let lines = lines(&ctx, LOG);
    let verbs: Vec<_> = lines.iter().map(|line| line["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["ADD", "CHECK", "ADD", "DEL"]);
    for line in &lines {
        assert_eq!(
            json!([line["plugin"], line["network"], line["container"], line["ifname"], line["pod"]]),
            json!(["bridge", "net", attachment.container_id, "eth0", "shop/web-0"])
        );
        let steps = line["steps"].as_array().unwrap();
        let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
        let is_failed = line == &lines[2];
        for (name, is_step) in [
            ("request", true),
            ("rtnetlink", true),
            ("host-local", !is_failed),
            ("close nfnetlink", !is_failed),
        ] {
            assert_eq!(names.contains(&name), is_step, "{name}: {line}");
        }
        assert!(steps.iter().all(|step| step["us"].as_u64() <= line["us"].as_u64()), "{line}");
        assert_eq!(line.get("error").is_some(), is_failed, "{line}");
    }
    assert_eq!(lines[0]["result"], result);
    // ADD looks for the bridge, and then makes it.
    assert_eq!(lines[0]["netlink_errors"][0], "rtnetlink: ENODEV: no such device");
    let logged = &lines[2]["error"];
    assert_eq!((&logged["code"], &logged["msg"]), (&json!(error.code), &json!(error.msg)));
}

/// The configuration file, and the variable that overrides it.
#[test]
fn switches() {
    let ctx = node("loopback");
    ctx.node.sh("mount -t tmpfs tmpfs /var/log").unwrap();
    let attachment = ctx.pod("call-log-switches").attachment("lo");
    let conf = network_config("loopback", "1.0.0", &json!({}));
    let is_logged = |value: Option<&str>| {
        value.map_or(ctx.clone(), |value| with_log(&ctx, value)).add(&attachment, &conf);
        let before = ctx.node.list_dir("/var/log").unwrap();
        ctx.node.sh("rm -f /var/log/*").unwrap();
        !before.is_empty()
    };
    assert!(!is_logged(None));
    ctx.node.write_file("/etc/cni/ferrule.conf", "# calls\nlog = file 1M\n").unwrap();
    assert!(is_logged(None) && !is_logged(Some("off")) && !is_logged(Some("")));
    ctx.node.write_file("/etc/cni/ferrule.conf", "log = off\n").unwrap();
    assert!(!is_logged(None) && is_logged(Some("file")));
}
