//! Against dnsmasq with router advertisements, as the plugin of an interface plugin.

use cni_lab::testing::{
    self, DNSMASQ_LEASES as LEASES, Origin, PluginDir, addresses, network_config, with_prev,
};
use cni_lab::{Background, Place as _, TIMEOUT, eventually};
use serde_json::json;

use super::{file6, only_ipv6, rewrite6};
use crate::lab::Lab;

fn dnsmasq(lab: &Lab) -> Background {
    let options = [
        "--dhcp-range=10.9.0.50,10.9.0.59,255.255.255.0,1h",
        "--dhcp-range=fd00:9::50,fd00:9::59,64,1h",
        "--enable-ra",
        "--dhcp-option=option6:dns-server,[fd00:9::2]",
        "--dhcp-option=option6:domain-search,b.example",
    ];
    testing::dnsmasq(&lab.ctx.node, "br0", &options)
}

fn lab() -> Lab {
    let lab = Lab::new();
    lab.ctx.node.sh("ip addr add fd00:9::1/64 dev br0 nodad").unwrap();
    lab
}

/// How many leases dnsmasq has.
fn leases(lab: &Lab) -> usize {
    let text = lab.ctx.node.read_file(LEASES).unwrap_or_default();
    text.lines().filter(|line| !line.starts_with("duid")).count()
}

#[test]
fn both_families_and_a_router() {
    let lab = lab();
    let _server = dnsmasq(&lab);
    let _daemon = lab.daemon(&[]);
    let bridge =
        lab.ctx.with_plugins(PluginDir::installed(Origin::Ours, "bridge").with(Origin::Ours, &["dhcp"]));
    let pod = lab.ctx.pod("one");
    let ipam = json!({"type": "dhcp", "families": ["ipv4", "ipv6"]});
    let conf = network_config("bridge", "1.1.0", &json!({"bridge": "br0", "ipam": ipam}));
    let attachment = pod.attachment("eth0");
    let result = bridge.add(&attachment, &conf);
    let ips: Vec<_> = (0..2).map(|index| result["ips"][index]["address"].as_str().unwrap()).collect();
    assert!(ips[0].starts_with("10.9.0.5") && ips[1].starts_with("fd00:9::5"), "{result}");
    assert_eq!(result["dns"]["nameservers"].as_array().unwrap().last(), Some(&json!("fd00:9::2")));
    assert_eq!(result["dns"]["search"], json!(["b.example"]));
    let found = addresses(&pod, "eth0");
    assert!(ips.iter().all(|ip| found.iter().any(|found| found == ip)), "{found:?}");
    // The router comes by advertisement, and the prefix of the link too.
    let has_route = || pod.sh("ip -6 route show default").unwrap().contains("proto ra");
    assert!(eventually(TIMEOUT, has_route), "{}", pod.sh("ip -6 route; sysctl -a -r accept_ra").unwrap());
    pod.sh(&format!("ping -6 -c 1 -w 20 -I {} fd00:9::1", ips[1].trim_end_matches("/128"))).unwrap();
    assert_eq!(leases(&lab), 2);
    bridge.check(&attachment, &with_prev(&conf, &result));
    bridge.del(&attachment, &with_prev(&conf, &result));
    assert!(eventually(TIMEOUT, || leases(&lab) == 0), "not released: {}", lab.log());
    assert!(lab.files().is_empty());
}

/// Rapid commit, Confirm after a restart, Renew, Rebind and Release, as dnsmasq understands them.
#[test]
fn every_message() {
    let lab = lab();
    let server = dnsmasq(&lab);
    let mut daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let attachment = pod.attachment("eth0");
    let conf = crate::lab::config(&json!({"families": ["ipv6"], "rapidCommit": true}));
    let result = lab.ctx.add(&attachment, &conf);
    lab.configure(&pod, &result);
    daemon.end("KILL");
    daemon = lab.daemon(&[]);
    lab.says("confirms the address");
    for times in [&["renew_at"][..], &["renew_at", "rebind_at"], &["renew_at", "rebind_at", "expires_at"]] {
        daemon.end("KILL");
        rewrite6(&lab, &attachment, times);
        daemon = lab.daemon(&[]);
        let is_renewed = || file6(&lab, &attachment)["lease"]["renew_at"] != json!(1);
        assert!(eventually(TIMEOUT, is_renewed), "{times:?}: {}", lab.log());
        lab.ctx.check(&attachment, &with_prev(&conf, &result));
    }
    // Without its memory. It knows only its own DUID.
    drop(server);
    daemon.end("KILL");
    lab.ctx.node.sh(&format!("sed -i '/^duid/!d' {LEASES}")).unwrap();
    let _server = dnsmasq(&lab);
    rewrite6(&lab, &attachment, &["renew_at"]);
    let _daemon = lab.daemon(&[]);
    assert!(eventually(TIMEOUT, || leases(&lab) == 1), "{}", lab.log());
    assert!(
        eventually(TIMEOUT, || file6(&lab, &attachment)["lease"]["renew_at"] != json!(1)),
        "{}",
        lab.log()
    );
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    lab.ctx.del(&attachment, &only_ipv6());
    assert!(eventually(TIMEOUT, || leases(&lab) == 0), "not released: {}", lab.log());
}
