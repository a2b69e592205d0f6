//! Nodes whose kernel answers no ARP request for the gateway. Their containers inherit the sysctl.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{host_local, overlay, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use common::{assert_nothing_left, config, host_end, ours, repairing, snapshot};
use serde_json::json;

fn arp_ignore(value: u32) -> String {
    format!("echo {value} >/proc/sys/net/ipv4/conf/all/arp_ignore")
}

#[test]
fn a_node_that_answers_no_arp_requests() {
    for value in [2, 8] {
        let ctx = ours();
        let repair = repairing(&ctx);
        // Of another subnet: with 2, a container does not answer requests from it.
        ctx.node.sh("ip link add out0 type veth peer name out1; ip addr add 192.0.2.1/24 dev out0; ip link set out0 up").unwrap();
        // Forwarding gives links more IPv6 addresses.
        ctx.node.sh("echo 1 >/proc/sys/net/ipv6/conf/all/forwarding").unwrap();
        let before = snapshot(&ctx);
        let conf = config("1.0.0", &json!({}));
        let pods = ["soft", "strict", "late"].map(|name| ctx.pod(name));
        let (soft, strict, late) = (&pods[0], &pods[1], &pods[2]);
        let soft_result = ctx.add(&soft.attachment("eth0"), &conf);
        let entries = |pod: &cni_lab::Pod| pod.sh("ip neigh show nud permanent").unwrap();
        assert_eq!(entries(soft), "", "no entry without arp_ignore");
        ctx.node.sh(&arp_ignore(value)).unwrap();
        strict.sh(&arp_ignore(value)).unwrap();
        late.sh(&arp_ignore(value)).unwrap();
        let result = ctx.add(&strict.attachment("eth0"), &conf);
        ctx.add(&late.attachment("eth0"), &conf);
        let (attachment, with_result) = (strict.attachment("eth0"), with_prev(&conf, &result));
        ctx.check(&attachment, &with_result);
        let reaches = |wait: f64| {
            let to_node = format!("ping -c 1 -W {wait} 10.1.2.1 && ping -c 1 -W {wait} 10.1.2.4");
            let from_node = format!("ping -c 1 -W {wait} -I 192.0.2.1 10.1.2.3");
            ctx.node.sh(&from_node).is_ok() && strict.sh(&to_node).is_ok()
        };
        assert!(eventually(TIMEOUT, || reaches(1.0)), "arp_ignore {value}");

        let end = host_end(&result);
        for (script, text, is_cut) in [
            (
                "pod:ip neigh del 10.1.2.1 dev eth0",
                "the container has no permanent neighbour entry for 10.1.2.1",
                true,
            ),
            ("ip neigh del 10.1.2.3 dev END", "the host has no permanent neighbour entry for 10.1.2.3", true),
            (
                "ip neigh replace 10.1.2.3 lladdr 02:00:00:00:00:77 nud permanent dev END",
                "arp_ignore of the node is",
                true,
            ),
            ("ip link set END address 02:00:00:00:00:98", "MAC address", false),
        ] {
            match script.strip_prefix("pod:") {
                Some(inside) => strict.sh(inside).unwrap(),
                None => ctx.node.sh(&script.replace("END", end)).unwrap(),
            };
            let error = ctx.fail("CHECK", &attachment, &with_result);
            assert!(error.contains(text), "{script}: {error}");
            assert!(!is_cut || !reaches(0.3), "{script}");
            repair.add(&attachment, &with_result);
            ctx.check(&attachment, &with_result);
            assert!(eventually(TIMEOUT, || reaches(1.0)), "{script}");
        }

        // A container from before the sysctl was set.
        let soft_conf = with_prev(&conf, &soft_result);
        ctx.fail("CHECK", &soft.attachment("eth0"), &soft_conf)
            .expect(999, "no permanent neighbour entry for 10.1.2.1");
        repair.add(&soft.attachment("eth0"), &soft_conf);
        ctx.check(&soft.attachment("eth0"), &soft_conf);
        // IPv6 has no such sysctl.
        let ipv6 = json!({"ipam": host_local(&["fd00:2::/64"])});
        let six = ctx.pod("six");
        ctx.add(&six.attachment("eth0"), &overlay(&conf, &ipv6));
        assert_eq!(entries(&six), "");
        ctx.del(&six.attachment("eth0"), &overlay(&conf, &ipv6));
        for pod in &pods {
            ctx.del(&pod.attachment("eth0"), &conf);
        }
        ctx.node.sh(&arp_ignore(0)).unwrap();
        assert_nothing_left(&ctx, &before, "arp_ignore");
    }
}
