//! T1, T2 and the expiry of leases that last seconds.

use cni_lab::testing::is_up;
use cni_lab::{Place as _, TIMEOUT, eventually};
use dhcproto::v4::MessageType::Request;
use serde_json::json;

use crate::lab::{Lab, config};
use crate::server::{Reaction, Server};

#[test]
fn unicast_then_broadcast_then_the_end() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    server.times([9, 1, 5]);
    let _daemon = lab.daemon(&["-timeout", "2s"]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    lab.configure(&pod, &result);
    server.log();
    // T1: from the leased address to the server.
    server.wait_for("Request from 10.9.0.10", 3);
    assert!(!server.log().contains(&"Request from 0.0.0.0".to_owned()));
    // The server does not answer before T2.
    let mut unicast = 0;
    server.rule(move |_, _| {
        unicast += 1;
        if unicast < 4 { Reaction::Lose } else { Reaction::Answer }
    });
    lab.says("renewal time expired, rebinding");
    server.wait_for("Request from 0.0.0.0", 1);
    // A server that has lost its memory refuses, and then gives another address, which is of no use.
    assert!(is_up(&pod, "eth0"));
    server.forget();
    lab.says("refuses 10.9.0.10");
    lab.says("lease expired, bringing interface DOWN");
    assert!(eventually(TIMEOUT, || !is_up(&pod, "eth0")));
    assert!(eventually(TIMEOUT, || lab.files().is_empty()));
    // Nothing hangs afterwards.
    let conf_with_result = cni_lab::testing::with_prev(&conf, &result);
    lab.ctx.fail("CHECK", &attachment, &conf_with_result).expect(999, "no lease for one/net/eth0");
    lab.ctx.add(&attachment, &conf);
    lab.ctx.del(&attachment, &conf);
}

#[test]
fn a_server_that_has_lost_its_memory_gives_the_same_address_again() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    server.times([3600, 1, 1800]);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let result = lab.ctx.add(&pod.attachment("eth0"), &config(&json!({})));
    lab.configure(&pod, &result);
    server
        .rule(|kind, count| if kind == Request && count == 1 { Reaction::Refuse } else { Reaction::Answer });
    lab.says("refuses 10.9.0.10");
    server.wait_for("Request from 10.9.0.10", 3);
    assert!(is_up(&pod, "eth0") && !lab.log().contains("expired"), "{}", lab.log());
}

/// The address is not on the interface: the daemon sends the frames itself.
#[test]
fn renewals_need_no_address_on_the_interface() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    server.times([8, 1, 7]);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    lab.ctx.add(&pod.attachment("eth0"), &config(&json!({})));
    server.wait_for("Request from 10.9.0.10", 2);
    assert!(!lab.log().contains("rebinding"));
}

/// The daemon drops leases of containers that are gone, and keeps no namespace alive.
#[test]
fn a_namespace_that_is_gone() {
    let lab = Lab::new();
    let server = Server::start(&lab, 2);
    let _daemon = lab.daemon(&["-timeout", "200ms"]);
    let (pod, link) = (lab.pod("pod"), lab.pod("link"));
    for one in [&pod, &link] {
        lab.ctx.add(&one.attachment("eth0"), &config(&json!({})));
    }
    pod.delete().unwrap();
    // The kernel removes the node's end with the namespace.
    let gone = || lab.ctx.node.sh("ip link show vpod").is_err();
    assert!(eventually(TIMEOUT, gone), "something keeps the namespace alive");
    lab.says("pod/net/eth0: the namespace is gone, dropping the lease");
    link.sh("ip link del eth0").unwrap();
    lab.says("link/net/eth0: the link eth0 is gone, dropping the lease");
    assert!(eventually(TIMEOUT, || lab.files().is_empty()));
    drop(server);
}
