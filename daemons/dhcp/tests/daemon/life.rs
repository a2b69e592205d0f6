//! One lease from ADD to DEL.

use cni_lab::testing::{link, overlay, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use serde_json::json;

use crate::lab::{Lab, config};
use crate::server::Server;

#[test]
fn from_add_to_del() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let size = daemon.size();
    let (pod, conf) = (
        lab.pod("one"),
        config(&json!({"priority": 7, "provide": [{"option": "host-name", "fromArg": "K8S_POD_NAME"}]})),
    );
    let attachment = pod.attachment("eth0").with_args("K8S_POD_NAME=web-0");
    server.option(3, &[10, 9, 0, 1]);
    server.option(6, &[10, 9, 0, 2, 10, 9, 0, 3]);
    server.option(15, b"example.com");
    server.option(26, &1400_u16.to_be_bytes());
    server.option(33, &[192, 168, 7, 9, 10, 9, 0, 4]);
    server.option(42, &[10, 9, 0, 5]);
    server.option(119, b"\x01a\x07example\0");
    lab.ctx.succeed("STATUS", &Attachment::default(), &conf);
    let result = lab.ctx.add(&attachment, &conf);
    let expected = json!({
        "cniVersion": "1.1.0",
        "ips": [{"address": "10.9.0.10/24", "gateway": "10.9.0.1"}],
        "routes": [
            {"dst": "192.168.7.0/24", "gw": "10.9.0.4", "mtu": 1400, "priority": 7},
            {"dst": "0.0.0.0/0", "gw": "10.9.0.1", "mtu": 1400, "priority": 7},
        ],
        "dns": {"nameservers": ["10.9.0.2", "10.9.0.3"], "domain": "example.com", "search": ["a.example"]},
    });
    assert_eq!(result, expected);
    assert_eq!(server.last_option(12), Some(b"web-0".to_vec()));
    assert_eq!(server.last_option(61), Some(b"\0one/net/eth0".to_vec()));
    assert!(!server.last_is_broadcast());
    assert_eq!(server.sequence(), ["Discover from 0.0.0.0", "Request from 0.0.0.0"]);
    assert_eq!(lab.files(), ["one:eth0:net"]);
    assert_eq!(lab.file(&attachment)["lease"]["settings"]["ntp"], json!(["10.9.0.5"]));

    // A second ADD and CHECK ask no server.
    assert_eq!(lab.ctx.add(&attachment, &conf), result);
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    let mut other = result.clone();
    other["ips"][0]["address"] = json!("10.9.0.99/24");
    let error = lab.ctx.fail("CHECK", &attachment, &with_prev(&conf, &other));
    error.expect(999, "does not have the leased address 10.9.0.10/24 of eth0");
    assert!(!server.log().contains(&"Discover from 0.0.0.0".to_owned()));

    // Between exchanges the daemon has no socket in the namespace.
    assert!(eventually(TIMEOUT, || daemon.size().0 <= size.0), "{size:?}, then {:?}", daemon.size());
    let packet_sockets = || pod.read_file("/proc/thread-self/net/packet").unwrap().lines().count() - 1;
    assert!(eventually(TIMEOUT, || packet_sockets() == 0));

    lab.ctx.del(&attachment, &conf);
    server.wait_for("Release from 10.9.0.10", 1);
    assert!(lab.files().is_empty() && server.leased().is_empty());
    lab.ctx.del(&attachment, &conf);
    lab.ctx.fail("CHECK", &attachment, &with_prev(&conf, &result)).expect(999, "no lease for one/net/eth0");
    assert!(eventually(TIMEOUT, || daemon.size() <= size), "{size:?}, then {:?}", daemon.size());
}

#[test]
fn results_of_old_versions_lack_the_mtu() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&["-broadcast"]);
    server.option(26, &1400_u16.to_be_bytes());
    // RFC 3442: nothing else counts.
    server.option(3, &[10, 9, 0, 1]);
    server.option(121, &[16, 10, 8, 10, 9, 0, 7, 24, 10, 7, 0, 0, 0, 0, 0]);
    let pod = lab.pod("old");
    let conf = overlay(&config(&json!({})), &json!({"cniVersion": "0.4.0"}));
    let result = lab.ctx.add(&pod.attachment("eth0"), &conf);
    assert_eq!(
        result["routes"],
        json!([{"dst": "10.8.0.0/16", "gw": "10.9.0.7"}, {"dst": "10.7.0.0/24", "gw": "0.0.0.0"}])
    );
    assert!(server.last_is_broadcast());
    lab.ctx.del(&pod.attachment("eth0"), &conf);
}

#[test]
fn gc_releases_what_is_not_valid() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let conf = config(&json!({}));
    let [kept, lost, foreign] = ["kept", "lost", "foreign"].map(|name| lab.pod(name));
    let elsewhere = overlay(&conf, &json!({"name": "elsewhere"}));
    lab.ctx.add(&kept.attachment("eth0"), &conf);
    lab.ctx.add(&lost.attachment("eth0"), &conf);
    lab.ctx.add(&foreign.attachment("eth0"), &elsewhere);
    let valid = json!({"cni.dev/valid-attachments": [{"containerID": "kept", "ifname": "eth0"}]});
    lab.ctx.succeed("GC", &Attachment::default(), &overlay(&conf, &valid));
    server.wait_for("Release from 10.9.0.11", 1);
    assert_eq!(lab.files(), ["foreign:eth0:elsewhere", "kept:eth0:net"]);
}

/// An interface that was made again under its name does not have the lease of the old one.
#[test]
fn an_interface_that_was_made_again() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    let remake = "ip link del vone; ip link add vone master br0 up type veth peer name eth0 netns one";
    lab.ctx.node.sh(remake).unwrap();
    let error = lab.ctx.fail("CHECK", &attachment, &with_prev(&conf, &result));
    error.expect(999, "belongs to another namespace than /run/netns/one, or to an interface that is gone");
    server.log();
    let result = lab.ctx.add(&attachment, &conf);
    assert!(server.log().contains(&"Discover from 0.0.0.0".to_owned()), "the old lease: {}", lab.log());
    assert_eq!(lab.file(&attachment)["sandbox"]["index"], link(&pod, "eth0")["ifindex"]);
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    lab.ctx.del(&attachment, &conf);
    assert!(eventually(TIMEOUT, || server.leased().is_empty()));
    assert!(lab.files().is_empty());
}
