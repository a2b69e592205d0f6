//! The daemon ends and starts again.

use cni_lab::testing::{is_up, with_prev};
use cni_lab::{TIMEOUT, eventually};
use dhcproto::v6::{MessageType, Status};
use serde_json::json;

use super::{FIRST, both, file6, only_ipv6, rewrite6};
use crate::lab::{Lab, config};
use crate::server6::Reaction;
use crate::{server, server6};

#[test]
fn leases_are_confirmed_and_taken_up_again() {
    let lab = Lab::new();
    let (v4, v6) = (server::Server::start(&lab, 3600), server6::Server::start(&lab, 3600));
    let mut daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &both());
    for (signal, times) in [("TERM", 1), ("KILL", 2)] {
        daemon.end(signal);
        v4.log();
        v6.log();
        daemon = lab.daemon(&[]);
        lab.ctx.check(&attachment, &with_prev(&both(), &result));
        assert_eq!(lab.ctx.add(&attachment, &both()), result);
        let confirmed = || lab.log().matches("confirms the address").count() == times;
        assert!(eventually(TIMEOUT, confirmed), "{}", lab.log());
        let (v4, v6) = (v4.log(), v6.sequence());
        assert!(v4.is_empty() && v6 == ["Confirm"], "after {signal}: {v4:?} {v6:?}");
    }
    lab.ctx.del(&attachment, &both());
    assert!(v6.leased().is_empty() && lab.files().is_empty());
}

/// T1, T2 or the expiry came while no daemon ran.
#[test]
fn times_that_came_meanwhile() {
    for (times, message) in [
        (&["renew_at"][..], "Renew"),
        (&["renew_at", "rebind_at"], "Rebind"),
        (&["renew_at", "rebind_at", "expires_at"], "Solicit"),
    ] {
        let lab = Lab::new();
        let server = server6::Server::start(&lab, 3600);
        let mut daemon = lab.daemon(&[]);
        let pod = lab.pod("one");
        let attachment = pod.attachment("eth0");
        lab.ctx.add(&attachment, &only_ipv6());
        daemon.end("KILL");
        rewrite6(&lab, &attachment, times);
        server.log();
        let _daemon = lab.daemon(&[]);
        let is_renewed = || file6(&lab, &attachment)["lease"]["renew_at"] != json!(1);
        assert!(eventually(TIMEOUT, is_renewed), "{message}: {}", lab.log());
        assert_eq!((server.log()[0].as_str(), server.leased()), (message, vec![FIRST]));
        assert!(is_up(&pod, "eth0"));
    }
}

/// The link leads to another network now.
#[test]
fn an_address_of_another_link_is_taken_from_the_container() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    daemon.end("KILL");
    server.rule(|_| Reaction::Refuse(Status::NotOnLink));
    let _daemon = lab.daemon(&["-timeout", "2s"]);
    lab.says("lease expired, bringing interface DOWN");
    assert!(eventually(TIMEOUT, || !is_up(&pod, "eth0")));
}

/// The next daemon releases what the server may have given.
#[test]
fn killed_during_add() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    server.rule(|kind| if kind == MessageType::Request { Reaction::Lose } else { Reaction::Answer });
    std::thread::scope(|scope| {
        scope.spawn(|| lab.ctx.fail("ADD", &pod.attachment("eth0"), &only_ipv6()).expect(5, "DHCP.Allocate"));
        server.wait_for("Request", 1);
        daemon.end("KILL");
    });
    assert_eq!((lab.files().len(), server.leased()), (1, vec![FIRST]));
    let _daemon = lab.daemon(&[]);
    server.wait_for("Release", 1);
    assert!(eventually(TIMEOUT, || lab.files().is_empty()));
    assert!(server.leased().is_empty());
}

/// A node that is updated: the files of the daemon before DHCPv6, and a plugin that knows no families.
#[test]
fn an_update_on_a_live_node() {
    let lab = Lab::new();
    let server = server::Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    let file = lab.file(&attachment);
    let mut names: Vec<_> = file.as_object().unwrap().keys().map(String::as_str).collect();
    names.sort_unstable();
    assert_eq!(names, ["boot_id", "client", "confirmed", "format", "key", "lease", "sandbox"]);
    daemon.end("KILL");
    let _daemon = lab.daemon(&[]);
    let request = json!({
        "ferruleDhcp": 1, "operation": "show", "netns": attachment.netns,
        "key": {"network": "net", "containerId": "one", "ifname": "eth0"}
    });
    let answer = lab.ask(&request.to_string());
    assert_eq!(answer["lease"]["address"], result["ips"][0]["address"], "{answer}");
    assert!(answer.get("lease6").is_none());
    drop(server);
}
