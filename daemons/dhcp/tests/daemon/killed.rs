//! The daemon is killed before each system call by which others see its work: messages to the server and to the plugin, and
//! files. Needs strace.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use cni_lab::testing::with_prev;
use cni_lab::{TIMEOUT, eventually};
use serde_json::json;

use crate::lab::{Lab, config};
use crate::server::Server;

const VISIBLE: &str = "sendto,write,openat,rename,unlink,setns,bind";

/// How often the thread with the most calls has made each of these system calls.
fn counts(log: &Path) -> BTreeMap<String, usize> {
    let mut threads: BTreeMap<(String, String), usize> = BTreeMap::new();
    for line in fs::read_to_string(log).unwrap().lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let Some((name, _)) = call.trim_start().split_once('(') else { continue };
        *threads.entry((thread.to_owned(), name.to_owned())).or_default() += 1;
    }
    let mut counts = BTreeMap::new();
    for ((_, name), count) in threads {
        let most = counts.entry(name).or_default();
        *most = count.max(*most);
    }
    counts
}

#[test]
fn a_daemon_that_is_killed_at_any_point() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let log = tempfile::NamedTempFile::new().unwrap();
    // All daemons of this test find the socket of a killed one.
    lab.daemon(&[]).end("KILL");
    let strace = format!("strace -D -f -qq -o {} -e trace={VISIBLE}", log.path().display());
    let mut daemon = lab.daemon_under(&strace, &[]);
    // strace has written the calls of the first answer when there is a second one.
    assert!(lab.answers());
    let before = counts(log.path());
    lab.ctx.add(&attachment, &conf);
    lab.ctx.del(&attachment, &conf);
    let after = counts(log.path());
    daemon.end("KILL");
    assert!(eventually(TIMEOUT, || !lab.answers()));
    let mut killed = 0;
    assert!(after.len() > before.len(), "strace saw nothing: {before:?}");
    for (name, count) in &after {
        for nth in before.get(name).copied().unwrap_or(0) + 1..=*count {
            let strace = format!(
                "strace -D -f -qq -o /dev/null -e trace={name} -e inject={name}:signal=KILL:when={nth}"
            );
            let mut victim = lab.daemon_under(&strace, &[]);
            for verb in ["ADD", "DEL"] {
                lab.ctx.call(verb, &attachment, &conf);
            }
            killed += usize::from(!lab.answers());
            victim.end("KILL");
            assert!(eventually(TIMEOUT, || !lab.answers()));
            // The next daemon knows what the killed one had.
            let mut next = lab.daemon(&[]);
            let what = format!("killed before {name} {nth}");
            let result = lab.ctx.add(&attachment, &conf);
            lab.ctx.check(&attachment, &with_prev(&conf, &result));
            lab.ctx.del(&attachment, &conf);
            assert!(eventually(TIMEOUT, || server.leased().is_empty()), "{what}: {:?}", server.leased());
            assert!(lab.files().is_empty(), "{what}: {:?}", lab.files());
            next.end("KILL");
            assert!(eventually(TIMEOUT, || !lab.answers()));
        }
    }
    // Threads of the pool may share their work otherwise than in the recorded run.
    assert!(killed >= 8, "only {killed} daemons were killed");
}
