//! Error texts that tests of the reference compare in full: message, and details after "; ". What we have to
//! add goes to standard error.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{Expect as _, Origin, PluginDir, TestContext, network_config, overlay};
use cni_runner::{Attachment, Output};
use serde_json::{Value, json};

/// A plugin, keys of its configuration, the CNI version, and the whole text of ADD's error.
type Row = (&'static str, Value, &'static str, String);

fn row(plugin: &'static str, keys: Value, text: &str) -> Row {
    (plugin, keys, "1.0.0", text.to_owned())
}

fn bandwidth(keys: Value, text: &str) -> Row {
    row("bandwidth", keys, text)
}

/// The reference's tests call its decoder; its program puts this in front.
fn portmap(keys: Value, text: &str) -> Row {
    row("portmap", keys, &format!("failed to parse config: {text}"))
}

/// A port mapping beside conditions that the iptables backend accepts.
fn port(host: i64, container: i64, text: &str) -> Row {
    let mapping = json!({"hostPort": host, "containerPort": container, "protocol": "tcp"});
    portmap(json!({"snat": false, "runtimeConfig": {"portMappings": [mapping]}}), text)
}

fn ranges(sets: Value, text: &str) -> Row {
    row("host-local", json!({"ipam": {"type": "host-local", "ranges": sets}}), text)
}

fn range(range: Value, text: &str) -> Row {
    ranges(json!([[range]]), &format!("invalid range set 0: {text}"))
}

fn static_ips(keys: Value, text: &str) -> Row {
    row("static", overlay(&json!({"ipam": {"type": "static"}}), &keys), text)
}

fn rows() -> Vec<Row> {
    let options = |backend: &str, other: &str, keys: &str| {
        format!(
            "{backend} backend was requested but configuration contains {other}-specific options [{keys}]"
        )
    };
    let no_address = "cannot convert: no valid IP addresses".to_owned();
    let one_each = "CNI version 0.2.0 does not support more than 1 address per family".to_owned();
    let two_sets = json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.4.0/24"}]]);
    vec![
        ("bridge", json!({}), "0.1.0", no_address.clone()),
        ("bridge", json!({}), "0.2.0", no_address),
        row(
            "bridge",
            json!({"hairpinMode": true, "promiscMode": true}),
            "cannot set hairpin mode and promiscuous mode at the same time",
        ),
        bandwidth(json!({"ingressBurst": 123}), "if burst is set, rate must also be set"),
        bandwidth(json!({"egressRate": 0, "egressBurst": 123}), "if burst is set, rate must also be set"),
        bandwidth(json!({"ingressRate": 8}), "if rate is set, burst must also be set"),
        bandwidth(
            json!({"egressRate": 8, "egressBurst": 34_359_738_360_u64}),
            "burst cannot be more than 4GB",
        ),
        bandwidth(json!({"ingressRate": 8, "ingressBurst": 8}), "must be called as chained plugin"),
        port(0, 80, "Invalid host port number: 0"),
        port(80, 0, "Invalid container port number: 0"),
        row("portmap", json!({}), "must be called as chained plugin"),
        portmap(
            json!({"externalSetMarkChain": "A", "markMasqBit": 1}),
            "Cannot specify externalSetMarkChain and markMasqBit",
        ),
        portmap(json!({"markMasqBit": 32}), "MasqMarkBit must be between 0 and 31"),
        portmap(
            json!({"backend": "iptables", "conditionsV4": ["aaa", "bbbb"], "conditionsV6": ["ccc"]}),
            &options("iptables", "nftables", "conditionsV4 conditionsV6"),
        ),
        portmap(
            json!({"backend": "nftables", "externalSetMarkChain": "KUBE-MARK-MASQ",
                "conditionsV4": ["-a", "b"], "conditionsV6": ["-c", "d"]}),
            &options("nftables", "iptables", "externalSetMarkChain conditionsV4 conditionsV6"),
        ),
        ("host-local", json!({"ipam": {"type": "host-local", "ranges": two_sets}}), "0.2.0", one_each),
        ranges(
            json!([[{"subnet": "10.1.2.0/24"}], [{"subnet": "10.1.2.0/24"}]]),
            "range set 0 overlaps with 1",
        ),
        ranges(
            json!([[{"subnet": "10.1.0.0/22"}, {"subnet": "10.1.2.0/24"}]]),
            "invalid range set 0: subnets 10.1.0.1-10.1.3.254 and 10.1.2.1-10.1.2.254 overlap",
        ),
        ranges(
            json!([[{"subnet": "10.1.0.0/22"}, {"subnet": "2001:db8:5::/64"}]]),
            "invalid range set 0: mixed address families",
        ),
        range(json!({"subnet": "192.0.2.0/31"}), "Network 192.0.2.0/31 too small to allocate from"),
        range(
            json!({"subnet": "192.0.2.12/24"}),
            "Network has host bits set. For a subnet mask of length 24 the network address is 192.0.2.0",
        ),
        range(
            json!({"subnet": "192.0.2.0/24", "rangeStart": "192.0.3.0"}),
            "RangeStart 192.0.3.0 not in network 192.0.2.0/24",
        ),
        range(
            json!({"subnet": "192.0.2.0/24", "rangeEnd": "192.0.4.0"}),
            "RangeEnd 192.0.4.0 not in network 192.0.2.0/24",
        ),
        range(
            json!({"subnet": "192.0.2.0/24", "rangeStart": "192.0.2.50", "rangeEnd": "192.0.2.40"}),
            "RangeStart 192.0.2.50 not in network 192.0.2.0/24",
        ),
        static_ips(json!({"ipam": null}), "IPAM config missing 'ipam' key"),
        static_ips(
            json!({"ipam": {"type": "static", "addresses": [{"address": "10.10.0.1asdf"}]}}),
            "the 'address' field is expected to be in CIDR notation, got: '10.10.0.1asdf'",
        ),
        static_ips(
            json!({"runtimeConfig": {"ips": ["10.10.0.1asdf"]}}),
            "an entry in the 'ips' field is NOT in CIDR notation, got: '10.10.0.1asdf'",
        ),
        static_ips(
            json!({"args": {"cni": {"ips": ["10.10.0.1"]}}}),
            "an entry in the 'ips' field is NOT in CIDR notation, got: '10.10.0.1'",
        ),
    ]
}

/// The text that a Go program prints for the error of a call.
fn text(output: &Output) -> String {
    let error = output.error();
    if error.details.is_empty() { error.msg } else { format!("{}; {}", error.msg, error.details) }
}

#[test]
fn pinned_texts_are_exact() {
    let plugins = PluginDir::installed(Origin::Ours, "bridge")
        .with(Origin::Ours, &["bandwidth", "portmap", "host-local", "static"][..]);
    let mut ctx = TestContext::new(plugins);
    let pod = ctx.pod("pod");
    let attachment = pod.attachment("eth0");
    let wrong = rows().into_iter().filter_map(|(plugin, keys, version, expected)| {
        ctx.plugin = ctx.plugins.path().join(plugin);
        let text = text(&ctx.call("ADD", &attachment, &network_config(plugin, version, &keys)));
        (text != expected).then(|| format!("{plugin} {version} {keys}\n  {text}\n  expected: {expected}"))
    });
    assert_eq!(wrong.collect::<Vec<_>>().join("\n"), "");

    // Errors that need an earlier ADD.
    ctx.plugin = ctx.plugins.path().join("host-local");
    let ipam = json!({"ipam": {"type": "host-local", "subnet": "10.1.2.0/24"}});
    let config = network_config("host-local", "1.0.0", &ipam);
    ctx.add(&attachment, &config);
    assert_eq!(
        text(&ctx.call("ADD", &attachment, &config)),
        "failed to allocate for range 0: 10.1.2.2 has been allocated to pod, duplicate allocation is not allowed"
    );
    let other = Attachment::new("other", attachment.netns.clone(), "eth0");
    let asking = overlay(&config, &json!({"args": {"cni": {"ips": ["10.1.2.2"]}}}));
    assert_eq!(
        text(&ctx.call("ADD", &other, &asking)),
        "failed to allocate for range 0: requested IP address 10.1.2.2 is not available in range set \
         10.1.2.1-10.1.2.254"
    );
}
