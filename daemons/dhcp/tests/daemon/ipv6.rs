//! DHCPv6, alone and beside DHCPv4.

mod dnsmasq;
mod expiry;
mod hostile;
mod restart;

use std::net::Ipv6Addr;

use cni_lab::testing::{addresses, is_up, overlay, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use serde_json::{Value, json};

use crate::lab::{Lab, config};
use crate::{server, server6};

/// The first address that the server gives.
const FIRST: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 0x10);

fn only_ipv6() -> Value {
    config(&json!({"families": ["ipv6"]}))
}

fn both() -> Value {
    config(&json!({"families": ["ipv4", "ipv6"]}))
}

/// The content of the file of an IPv6 lease.
fn file6(lab: &Lab, attachment: &Attachment) -> Value {
    let text = lab.ctx.node.read_file(format!("{}:ipv6", lab.path(attachment))).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Lets these times of an IPv6 lease have come. No daemon runs meanwhile.
fn rewrite6(lab: &Lab, attachment: &Attachment, times: &[&str]) {
    let mut file = file6(lab, attachment);
    times.iter().for_each(|time| file["lease"][time] = json!(1));
    lab.ctx.node.write_file(format!("{}:ipv6", lab.path(attachment)), &file.to_string()).unwrap();
}

#[test]
fn both_families_from_add_to_del() {
    let lab = Lab::new();
    let (v4, v6) = (server::Server::start(&lab, 3600), server6::Server::start(&lab, 3600));
    let mut daemon = lab.daemon(&[]);
    let size = daemon.size();
    let (pod, conf) = (lab.pod("one"), both());
    let attachment = pod.attachment("eth0");
    v4.option(6, &[10, 9, 0, 2]);
    v4.option(119, b"\x01a\x07example\0");
    v6.option(23, &"fd00:9::2".parse::<Ipv6Addr>().unwrap().octets());
    v6.option(24, b"\x01a\x07example\0\x01b\x07example\0");
    let result = lab.ctx.add(&attachment, &conf);
    let expected = json!({
        "cniVersion": "1.1.0",
        "ips": [{"address": "10.9.0.10/24"}, {"address": "fd00:9::10/128"}],
        "dns": {"nameservers": ["10.9.0.2", "fd00:9::2"], "search": ["a.example", "b.example"]},
    });
    assert_eq!(result, expected);
    assert_eq!(v6.sequence(), ["Solicit", "Request"]);
    assert_eq!(lab.files(), ["one:eth0:net", "one:eth0:net:ipv6"]);
    // The search for duplicates leaves nothing.
    assert!(addresses(&pod, "eth0").iter().all(|address| !address.starts_with("fd00")));

    // A second ADD and CHECK ask no server.
    v4.log();
    assert_eq!(lab.ctx.add(&attachment, &conf), result);
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    for (index, address) in ["10.9.0.10/24", "fd00:9::10/128"].into_iter().enumerate() {
        let mut other = result.clone();
        other["ips"].as_array_mut().unwrap().remove(index);
        let error = lab.ctx.fail("CHECK", &attachment, &with_prev(&conf, &other));
        error.expect(999, &format!("does not have the leased address {address} of eth0"));
    }
    assert!(v4.log().is_empty() && v6.log().is_empty());

    // Between exchanges the daemon has no socket in the namespace.
    assert!(eventually(TIMEOUT, || daemon.size().0 <= size.0), "{size:?}, then {:?}", daemon.size());
    assert_eq!(pod.sh("ss -Haun | wc -l").unwrap().trim(), "0");

    lab.ctx.del(&attachment, &conf);
    assert_eq!(v6.sequence(), ["Release"]);
    assert!(lab.files().is_empty() && v6.leased().is_empty());
    assert!(eventually(TIMEOUT, || v4.leased().is_empty()));
    lab.ctx.fail("CHECK", &attachment, &with_prev(&conf, &result)).expect(999, "no lease for one/net/eth0");
    assert!(eventually(TIMEOUT, || daemon.size() <= size), "{size:?}, then {:?}", daemon.size());
}

/// Without the key nothing asks for IPv6, and with `["ipv6"]` nothing for IPv4.
#[test]
fn one_family() {
    let lab = Lab::new();
    let (v4, v6) = (server::Server::start(&lab, 3600), server6::Server::start(&lab, 3600));
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &config(&json!({})));
    assert_eq!(result["ips"], json!([{"address": "10.9.0.10/24"}]));
    lab.ctx.del(&attachment, &config(&json!({})));
    assert!(v6.log().is_empty());
    // A release has no answer, so it may come after the end of DEL.
    v4.wait_for("Release from 10.9.0.10", 1);
    v4.log();
    // Old layouts have a place for the address too.
    let old = overlay(&only_ipv6(), &json!({"cniVersion": "0.2.0"}));
    let result = lab.ctx.add(&attachment, &old);
    assert_eq!(result["ip6"], json!({"ip": "fd00:9::10/128"}));
    assert_eq!(lab.files(), ["one:eth0:net:ipv6"]);
    // The daemon lists the lease by the address, for operators.
    assert_eq!(file6(&lab, &attachment)["lease"]["address"], json!("fd00:9::10"));
    assert_eq!(file6(&lab, &attachment)["lease"]["server"], json!("00:03:00:01:02:00:00:00:00:09"));
    lab.ctx.del(&attachment, &old);
    assert!(v4.log().is_empty() && v6.leased().is_empty());
}

/// IPv6 is switched off in the container, as some runtimes do.
#[test]
fn ipv6_that_is_switched_off() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    pod.sh("sysctl -qw net.ipv6.conf.eth0.disable_ipv6=1").unwrap();
    lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    assert_eq!(server.leased(), [FIRST]);
}

/// The interface has no link-local address, and none comes.
#[test]
fn no_link_local_address() {
    let lab = Lab::new();
    let _server = server6::Server::start(&lab, 3600);
    let _daemon = lab.daemon(&["-resendtimeout", "1s"]);
    let pod = lab.pod("one");
    pod.sh("sysctl -qw net.ipv6.conf.eth0.addr_gen_mode=1").unwrap();
    let error = lab.ctx.fail("ADD", &pod.attachment("eth0"), &only_ipv6());
    error.expect(
        11,
        "no more tries for an IPv6 address; cannot open the sockets: eth0 has no link-local IPv6 address",
    );
    assert!(lab.files().is_empty());
}

/// Without the highest preference the daemon waits a second for other offers.
#[test]
fn a_server_with_a_low_preference() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    server.preference(0);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    assert_eq!(server.sequence(), ["Solicit", "Request"]);
}

#[test]
fn rapid_commit_takes_two_messages() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let conf = config(&json!({"families": ["ipv6"], "rapidCommit": true}));
    lab.ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(server.sequence(), ["Solicit"]);
    lab.ctx.del(&pod.attachment("eth0"), &conf);
    assert!(server.leased().is_empty());
}

/// The container is known by one DUID, and each of its interfaces by an IAID; both survive a new lease.
#[test]
fn identities_are_stable() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    lab.ctx.node.sh("ip link add vb master br0 up type veth peer name eth1 netns one").unwrap();
    let add = || ["eth0", "eth1"].map(|name| lab.ctx.add(&pod.attachment(name), &only_ipv6()));
    add();
    let clients = server.clients();
    let [(duid, one), (same, other)] = &clients[..] else { panic!("{clients:?}") };
    assert!(duid == same && one != other && duid.starts_with(&[0, 4]) && duid.len() == 18);
    for name in ["eth0", "eth1"] {
        lab.ctx.del(&pod.attachment(name), &only_ipv6());
    }
    add();
    assert_eq!(server.clients(), clients);
}

/// The kernel finds that another host has the address.
#[test]
fn a_duplicate_is_declined() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let [pod, other] = ["one", "other"].map(|name| lab.pod(name));
    other.sh(&format!("ip link set eth0 up; ip addr add {FIRST}/64 dev eth0 nodad")).unwrap();
    let result = lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    assert_eq!(result["ips"][0]["address"], json!("fd00:9::11/128"));
    assert_eq!(server.sequence(), ["Solicit", "Request", "Decline", "Solicit", "Request"]);
    lab.says(&format!("gives {FIRST}, which another host has: declined"));
    assert!(!lab.log().contains("cannot look for other hosts"), "{}", lab.log());
}

/// One family has no server: ADD fails, and the other lease is given back.
#[test]
fn all_or_nothing() {
    let lab = Lab::new();
    let _daemon = lab.daemon(&["-resendtimeout", "4s"]);
    let pod = lab.pod("one");
    let v4 = server::Server::start(&lab, 3600);
    let error = lab.ctx.fail("ADD", &pod.attachment("eth0"), &both());
    error.expect(11, "DHCP.Allocate: no more tries for an IPv6 address");
    assert!(eventually(TIMEOUT, || v4.leased().is_empty()), "{}", lab.log());
    assert!(lab.files().is_empty());
    drop(v4);
    let v6 = server6::Server::start(&lab, 3600);
    let (code, msg) = lab.ctx.fail("ADD", &pod.attachment("eth0"), &both()).pair();
    assert_eq!((code, msg.as_str()), (11, "error calling DHCP.Allocate: no more tries"));
    assert!(v6.leased().is_empty() && v6.log().last().unwrap() == "Release", "{}", lab.log());
    assert!(lab.files().is_empty() && is_up(&pod, "eth0"));
}

#[test]
fn gc_and_del_without_a_daemon() {
    let lab = Lab::new();
    let (_v4, v6) = (server::Server::start(&lab, 3600), server6::Server::start(&lab, 3600));
    let mut daemon = lab.daemon(&[]);
    let [kept, lost] = ["kept", "lost"].map(|name| lab.pod(name));
    for pod in [&kept, &lost] {
        lab.ctx.add(&pod.attachment("eth0"), &both());
    }
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "kept", "ifname": "eth0"}]});
    lab.ctx.succeed("GC", &Attachment::default(), &overlay(&both(), &valid));
    assert_eq!(lab.files(), ["kept:eth0:net", "kept:eth0:net:ipv6"]);
    assert_eq!(v6.leased(), [FIRST]);
    daemon.end("KILL");
    lab.ctx.del(&kept.attachment("eth0"), &both());
    assert!(lab.files().is_empty());
}
