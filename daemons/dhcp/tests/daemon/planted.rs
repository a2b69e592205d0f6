//! Foreign objects in the folder of leases and in the places of the daemon's files.

use std::process::Command;

use cni_lab::testing::{PLANTED, plant, plant_all, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{DAEMON, Lab, config};
use crate::server::Server;

#[test]
fn the_daemon_passes_over_what_is_no_lease() {
    let lab = Lab::new();
    let _server = Server::start(&lab, 3600);
    let leases = "/run/cni/dhcp.leases";
    plant_all(&lab.ctx.node, &format!("{leases}/%:eth0:net"));
    lab.ctx.node.sh(&format!("mkdir -p {leases}/.pending/full")).unwrap();
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let mut daemon = lab.daemon(&[]);
    let kept =
        ["dangling", "device", "fifo", "folder", "sparse", "zero"].map(|kind| format!("{kind}:eth0:net"));
    lab.says(&format!("{leases}/.pending: stays: "));
    for name in &kept {
        lab.says(&format!("{leases}/{name}: passed over: "));
    }
    let result = lab.ctx.add(&attachment, &conf);
    lab.configure(&pod, &result);
    daemon.end("KILL");
    let mut daemon = lab.daemon(&[]);
    lab.ctx.check(&attachment, &with_prev(&conf, &result));
    lab.ctx.del(&attachment, &conf);
    let mut files = lab.files();
    files.sort();
    assert_eq!(files, kept);
    daemon.end("TERM");
}

/// The daemon starts or ends, and follows nothing.
#[test]
fn nothing_in_the_place_of_a_file_holds_the_daemon() {
    let lab = Lab::new();
    for file in ["/run/cni/dhcp.lock", "/run/cni/dhcp.sock", "/run/dhcp.pid"] {
        for (kind, make) in PLANTED {
            plant(&lab.ctx.node, file, make);
            let mut command = Command::new(DAEMON);
            command.args(["-pidfile", "/run/dhcp.pid"]);
            let mut daemon = lab.ctx.node.spawn(command).unwrap();
            let mut has_ended = false;
            let ready = eventually(TIMEOUT, || {
                has_ended = daemon.child().try_wait().unwrap().is_some();
                has_ended
                    || (lab
                        .ctx
                        .node
                        .run(|| std::fs::metadata("/run/dhcp.pid"))
                        .unwrap()
                        .is_ok_and(|meta| meta.is_file() && meta.len() < 10)
                        && lab.answers())
            });
            assert!(ready, "{kind} as {file}");
            drop(daemon);
            lab.ctx
                .node
                .sh(&format!("rm -rf {file} /run/cni /run/dhcp.pid; test ! -e $(dirname {file})/nowhere"))
                .unwrap();
        }
    }
}
