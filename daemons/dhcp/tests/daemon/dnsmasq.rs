//! Against dnsmasq, as the plugin of an interface plugin.

use cni_lab::testing::{
    self, DNSMASQ_LEASES as LEASES, Origin, PluginDir, addresses, network_config, routes, with_prev,
};
use cni_lab::{Background, Place as _, TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{Lab, config};

fn dnsmasq(lab: &Lab) -> Background {
    let options = [
        "--dhcp-range=10.9.0.50,10.9.0.59,255.255.255.0,1h",
        "--dhcp-option=3,10.9.0.1",
        "--dhcp-option=6,10.9.0.2",
        "--dhcp-option=119,a.example",
        "--dhcp-option=26,1400",
        "--dhcp-option=121,10.8.0.0/16,10.9.0.7,0.0.0.0/0,10.9.0.1",
    ];
    testing::dnsmasq(&lab.ctx.node, "br0", &options)
}

/// The lines of dnsmasq's leases.
fn leases(lab: &Lab) -> usize {
    lab.ctx.node.read_file(LEASES).unwrap_or_default().lines().count()
}

/// A bridge plugin asks for the address, and releases it before it removes the link.
#[test]
fn the_bridge_plugin_with_dnsmasq() {
    let lab = Lab::new();
    let _server = dnsmasq(&lab);
    let _daemon = lab.daemon(&[]);
    let bridge =
        lab.ctx.with_plugins(PluginDir::installed(Origin::Ours, "bridge").with(Origin::Ours, &["dhcp"]));
    let pod = lab.ctx.pod("one");
    let provide = json!([{"option": "host-name", "value": "web-0"}]);
    let conf = network_config(
        "bridge",
        "1.1.0",
        &json!({
        "bridge": "br0", "ipam": {"type": "dhcp", "provide": provide}}),
    );
    let attachment = pod.attachment("eth0");
    let result = bridge.add(&attachment, &conf);
    let address = result["ips"][0]["address"].as_str().unwrap();
    assert!(address.starts_with("10.9.0.5") && address.ends_with("/24"), "{result}");
    assert_eq!(addresses(&pod, "eth0").join(" "), address);
    assert_eq!(result["dns"], json!({"nameservers": ["10.9.0.2"], "search": ["a.example"]}));
    let found = routes(&pod, "10.8.0.0/16");
    assert_eq!((&found[0]["gateway"], &found[0]["metrics"][0]["mtu"]), (&json!("10.9.0.7"), &json!(1400)));
    let line = lab.ctx.node.read_file(LEASES).unwrap();
    assert!(line.contains("web-0") && line.contains("00:6f:6e:65:2f:6e:65:74:2f:65:74:68:30"), "{line}");
    bridge.check(&attachment, &with_prev(&conf, &result));
    bridge.del(&attachment, &with_prev(&conf, &result));
    assert!(eventually(TIMEOUT, || leases(&lab) == 0), "not released: {}", lab.log());
    assert!(lab.files().is_empty());
}

/// A server that has restarted without its memory knows no lease, and gives the same address again.
#[test]
fn dnsmasq_loses_its_leases() {
    let lab = Lab::new();
    let server = dnsmasq(&lab);
    let mut daemon = lab.daemon(&[]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    lab.configure(&pod, &result);
    drop(server);
    daemon.end("KILL");
    lab.ctx.node.sh(&format!("rm {LEASES}")).unwrap();
    let _server = dnsmasq(&lab);
    // T1 has come.
    lab.rewrite(&attachment, &["renew_at"]);
    let _daemon = lab.daemon(&[]);
    assert!(eventually(TIMEOUT, || leases(&lab) == 1), "{}", lab.log());
    assert!(eventually(TIMEOUT, || lab.file(&attachment)["lease"]["renew_at"] != json!(1)), "{}", lab.log());
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    lab.ctx.del(&attachment, &conf);
    assert!(eventually(TIMEOUT, || leases(&lab) == 0), "not released: {}", lab.log());
}
