//! The daemon is killed, started twice and started anew.

use std::collections::BTreeMap;
use std::fs;

use cni_lab::Place as _;

use crate::lab::{Cluster, node_object, node_path, wait};
use crate::member::{CONFLIST, Member};

/// System calls whose effect others can see.
const VISIBLE: &str = "sendto,sendmsg,rename,renameat2,fsync,openat,unlink,write,writev,connect";

fn counts(log: &str) -> BTreeMap<String, usize> {
    let mut counts = BTreeMap::new();
    for line in log.lines() {
        let Some((_, call)) = line.split_once(' ') else { continue };
        let Some((name, _)) = call.trim_start().split_once('(') else { continue };
        *counts.entry(name.to_owned()).or_default() += 1;
    }
    counts
}

fn clean(member: &Member) {
    let cleaned = member.run("cleanup");
    assert!(cleaned.status.success(), "{}", member.log());
}

#[test]
fn a_daemon_that_is_killed_at_any_point() {
    let mut cluster = Cluster::started("");
    let expected = cluster.a.routes();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    cluster.a.end("KILL");
    clean(&cluster.a);
    cluster.a.start_under(&format!("strace -D -f -qq -o {} -e trace={VISIBLE}", trace.display()), "");
    cluster.a.until("a conflist", || cluster.a.conflist().is_some());
    cluster.a.end("TERM");
    let calls = counts(&fs::read_to_string(&trace).unwrap());
    assert!(calls.len() >= 3, "strace saw nothing: {calls:?}");
    let mut hit = 0;
    for (name, count) in &calls {
        // The first ones, and some of the rest.
        let points = (1..=*count).filter(|nth| *nth <= 2 || nth % 1.max(count / 4) == 0);
        for nth in points {
            let strace = format!(
                "strace -D -f -qq -o /dev/null -e trace={name} -e inject={name}:signal=KILL:when={nth}"
            );
            cluster.a.start_under(&strace, "");
            let a = &mut cluster.a;
            wait(
                "a conflist or its end",
                || a.node.read_file(CONFLIST).is_ok() || !a.is_running(),
                |done| *done,
            );
            // A process that a signal has killed has no exit status.
            hit += usize::from(cluster.a.end("TERM").is_none());
            // A conflist is complete or absent.
            let _ = cluster.a.conflist();
            cluster.a.start("");
            cluster.a.has_routes(&expected);
            cluster.a.until("a conflist", || cluster.a.conflist().is_some());
            // No other file there has a name that a runtime reads.
            let names = cluster.a.node.list_dir("/run/cni/net.d").unwrap();
            assert!(names[1..].iter().all(|name| name.ends_with(".new")), "{names:?}");
            cluster.a.end("KILL");
            clean(&cluster.a);
            assert_eq!(cluster.a.node.list_dir("/run/cni/net.d").unwrap(), Vec::<String>::new());
        }
    }
    assert!(hit >= 6, "killed {hit} times only: {calls:?}");
}

/// The process for the health endpoint has inherited the daemon's lock until its exec, and has to wait for a lock of its own then.
#[test]
fn a_daemon_that_is_killed_beside_its_process_for_the_health_endpoint() {
    let mut cluster = Cluster::started("");
    cluster.a.end("KILL");
    clean(&cluster.a);
    for (call, sign) in
        [("execve", "ls /run/cni/net.d/*.conflist"), ("flock", "ls /run/ferrule/node/health.lock")]
    {
        let a = &mut cluster.a;
        let slow =
            format!("strace -D -f -qq -o /dev/null -e trace={call} -e inject={call}:delay_enter=2000000");
        a.start_under(&slow, "");
        let find = format!("{sign} && pgrep --parent {} >/run/child", a.pid());
        a.until(call, || a.node.sh(&find).is_ok());
        a.end("KILL");
        clean(a);
        a.until("the end of the process", || a.node.sh("! readlink /proc/$(cat /run/child)/exe").is_ok());
        a.sh("for gone in /run/netns/ferrule-health /run/ferrule/node /var/lib/cni/networks/*/*; do test ! -e $gone || exit 1; done");
    }
}

#[test]
fn nodes_that_went_while_the_daemon_was_dead() {
    let mut cluster = Cluster::started("");
    cluster.a.end("KILL");
    cluster.store.delete(&node_path("b"));
    cluster.store.put(&node_path("new"), node_object(&["192.0.2.9"], &["10.244.9.0/24"]));
    // A route of another program, which stays, and one with our protocol, which goes.
    let foreign = "10.244.70.0/24 via 192.0.2.254 dev eth0 proto static";
    cluster.a.sh(&format!("ip route add {foreign}; ip route add 10.244.71.0/24 via 192.0.2.254 proto 79"));
    // Until the first complete list all routes stay.
    cluster.server.faults(|faults| faults.slow_list = std::time::Duration::from_secs(2));
    let before = cluster.a.routes();
    cluster.a.start("");
    wait(
        "the list's beginning",
        || cluster.server.requests().iter().filter(|request| request.verb == "list").count(),
        |lists| *lists >= 4,
    );
    assert_eq!(cluster.a.routes(), before);
    let to_c = cluster.a.ways_to(&cluster.c).to_vec();
    let to_new = vec!["10.244.9.0/24 via 192.0.2.9 dev eth0".to_owned()];
    cluster.a.has_routes(&[to_c, to_new].concat());
    cluster.a.sh(&format!("ip route show {} | grep -q static", foreign.split(' ').next().unwrap()));
}

#[test]
fn started_twice_or_by_another_version() {
    let mut cluster = Cluster::started("");
    let a = &mut cluster.a;
    let before = a.routes();
    // The second one waits for the end of the first one, as in a rolling update.
    let mut second = a.node.spawn(a.command("", "")).unwrap();
    a.until("a word of the second one", || a.log().contains("another ferrule-node runs"));
    assert_eq!(a.routes(), before);
    assert!(a.is_running());
    assert_eq!(a.end("TERM"), Some(0));
    assert_eq!(a.routes(), before);
    cluster.store.put(&node_path("new"), node_object(&["192.0.2.9"], &["10.244.9.0/24"]));
    let new = vec!["10.244.9.0/24 via 192.0.2.9 dev eth0".to_owned()];
    a.has_routes(&[&before[..], &new].concat());
    cluster.store.delete(&node_path("new"));
    a.has_routes(&before);
    // It ends by itself, not by the signal.
    let pid = second.id().to_string();
    a.sh(&format!("kill -TERM {pid}"));
    assert_eq!(second.child().wait().unwrap().code(), Some(0));
    // Files that it cannot parse do not stop a daemon.
    a.sh("for file in /run/ferrule/node/*; do test -d $file || echo '{\"version\": 99, \"nodes\": [' >$file; done");
    a.start("");
    a.until("ready", || a.http("/readyz").0 == 200);
    a.has_routes(&before);
}
