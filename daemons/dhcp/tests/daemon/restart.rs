//! The daemon ends and starts again; the machine boots.

use std::process::Command;

use cni_lab::testing::with_prev;
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{DAEMON, Lab, SOCKET, config};
use crate::server::Server;

#[test]
fn leases_are_taken_up_again() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    server.times([3600, 1, 1800]);
    let conf = config(&json!({"provide": [{"option": "61", "value": "own-id"}]}));
    let mut daemon = lab.daemon(&[]);
    let [pod, gone] = ["one", "gone"].map(|name| lab.pod(name));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    lab.configure(&pod, &result);
    for signal in ["TERM", "KILL"] {
        daemon.end(signal);
        assert_eq!(lab.ctx.node.run(|| std::path::Path::new(SOCKET).exists()).unwrap(), signal == "KILL");
        assert_eq!(lab.files(), ["one:eth0:net"]);
        server.log();
        daemon = lab.daemon(&[]);
        lab.ctx.check(&attachment, &with_prev(&conf, &result));
        assert_eq!(lab.ctx.add(&attachment, &conf), result);
        server.wait_for("Request from 10.9.0.10", 2);
        assert!(!server.log().iter().any(|line| line.starts_with("Discover")), "a new lease after {signal}");
    }
    // A container that ends while no daemon runs.
    lab.ctx.add(&gone.attachment("eth0"), &config(&json!({})));
    daemon.end("KILL");
    gone.delete().unwrap();
    let _daemon = lab.daemon(&[]);
    lab.says("gone/net/eth0: the namespace is gone, dropping the lease");
    assert_eq!(lab.files(), ["one:eth0:net"]);
    server.log();
    lab.ctx.del(&attachment, &conf);
    server.wait_for("Release from 10.9.0.10", 1);
    assert_eq!(server.last_option(61), Some(b"own-id".to_vec()));
    assert!(lab.files().is_empty());
}

/// The lease ran out while no daemon did. The server still has the address.
#[test]
fn an_expired_lease_is_asked_for_again() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    daemon.end("KILL");
    lab.rewrite(&attachment, &["renew_at", "rebind_at", "expires_at"]);
    server.log();
    let _daemon = lab.daemon(&[]);
    lab.says("asking for it again");
    assert!(eventually(TIMEOUT, || lab.file(&attachment)["lease"]["expires_at"] != json!(1)));
    assert_eq!(server.sequence(), ["Request from 0.0.0.0"], "INIT-REBOOT");
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
}

/// Another boot ID: no container of that boot exists, whatever its path and inode are.
#[test]
fn a_reboot_drops_all_leases() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &conf);
    daemon.end("KILL");
    let mut file = lab.file(&attachment);
    file["boot_id"] = json!("00000000-0000-0000-0000-000000000000");
    lab.ctx.node.write_file(lab.path(&attachment), &file.to_string()).unwrap();
    server.log();
    let _daemon = lab.daemon(&[]);
    // The daemon listens before it has read the files, and answers after that.
    lab.ctx.fail("CHECK", &attachment, &with_prev(&conf, &result)).expect(999, "no lease");
    assert!(lab.files().is_empty());
    lab.ctx.del(&attachment, &conf);
    assert!(server.log().is_empty());
    // The server recognises the client.
    assert_eq!(lab.ctx.add(&attachment, &conf)["ips"], result["ips"]);
}

/// DEL cannot release the lease without a daemon. The next daemon must not renew it.
#[test]
fn del_without_a_daemon() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    lab.ctx.add(&attachment, &conf);
    for signal in ["KILL", "TERM"] {
        daemon.end(signal);
        let output = lab.ctx.call("DEL", &attachment, &conf);
        assert!(output.success(), "{output:?}");
        assert!(lab.files().is_empty());
        daemon = lab.daemon(&[]);
        lab.ctx.del(&attachment, &conf);
        assert!(lab.files().is_empty());
    }
    drop(server);
}

#[test]
fn starting() {
    let lab = Lab::new();
    let run = |arguments: &[&str]| lab.ctx.node.exec(Command::new(DAEMON).args(arguments)).unwrap();
    let said = |arguments: &[&str]| String::from_utf8(run(arguments).stderr).unwrap();
    assert_eq!(run(&["-h"]).status.code(), Some(0));
    assert_eq!(run(&["-bogus"]).status.code(), Some(2));
    assert!(said(&["-pidfile", "/no/such/folder/pid"]).contains("Error writing pidfile"));
    // What stands in the lock's place is neither followed nor waited for.
    for foreign in ["mkfifo /run/cni/dhcp.lock", "ln -s /run/elsewhere /run/cni/dhcp.lock"] {
        lab.ctx.node.sh(&format!("mkdir -p /run/cni; rm -f /run/cni/dhcp.lock; {foreign}")).unwrap();
        let error = said(&[]);
        assert!(error.starts_with("Error getting listener: /run/cni/dhcp.lock: "), "{foreign}: {error}");
        lab.ctx.node.sh("rm /run/cni/dhcp.lock && ! test -e /run/elsewhere").unwrap();
    }
    let mut daemon = lab.daemon(&["-pidfile", "/run/dhcp.pid"]);
    let pid = lab.ctx.node.read_file("/run/dhcp.pid").unwrap();
    assert_eq!(pid.parse::<u32>().unwrap(), daemon.pid());
    assert!(said(&[]).starts_with("Error getting listener: another daemon runs: /run/cni/dhcp.lock"));
    assert_eq!(daemon.end("TERM"), Some(0));
    assert_eq!(lab.ctx.node.list_dir("/run/cni").unwrap(), ["dhcp.leases", "dhcp.lock"]);
    assert!(lab.ctx.node.read_file("/run/dhcp.pid").is_err());
}

/// The prefix stands before the socket and before each namespace.
#[test]
fn a_daemon_in_a_container() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    lab.ctx.node.sh("mkdir /run/host && ln -s /run /run/host/run").unwrap();
    let _daemon = lab.daemon(&["-hostprefix", "/run/host"]);
    let pod = lab.pod("one");
    lab.ctx.add(&pod.attachment("eth0"), &config(&json!({})));
    assert_eq!(lab.file(&pod.attachment("eth0"))["sandbox"]["path"], json!("/run/host/run/netns/one"));
    drop(server);
}

/// systemd passes the socket, and removes it.
#[test]
fn socket_activation() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon_under("systemd-socket-activate -l /run/cni/dhcp.sock", &[]);
    let pod = lab.pod("one");
    lab.ctx.add(&pod.attachment("eth0"), &config(&json!({})));
    daemon.end("TERM");
    assert!(lab.ctx.node.run(|| std::path::Path::new(SOCKET).exists()).unwrap());
    drop(server);
}
