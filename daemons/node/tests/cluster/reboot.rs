//! A node that starts anew while the API server is away: the plan on its disk.

use cni_lab::Place as _;
use serde_json::json;

use crate::lab::{Cluster, node_object, node_path, wait};
use crate::member::{CONFLIST, MACHINE, Member};

const PLAN: &str = "/var/lib/ferrule/node/plan";

/// What a reboot leaves: the disk, and an uplink that the network manager sets up. The conflist's folder may be on the disk too.
fn reboot(member: &mut Member) {
    member.end("KILL");
    member.sh("for family in -4 -6; do ip $family route flush proto 79; done
        for link in ferrule.vxlan ferrule0; do ip link del $link 2>/dev/null || true; done
        nft flush ruleset; rm -r /run/ferrule");
}

fn ways(cluster: &Cluster) -> Vec<String> {
    [cluster.a.ways_to(&cluster.b), cluster.a.ways_to(&cluster.c)].concat()
}

#[test]
fn the_ways_come_back_while_the_api_server_is_away() {
    let mut cluster = Cluster::started("");
    let expected = ways(&cluster);
    let before = cluster.a.conflist();
    cluster.a.until("a plan", || cluster.a.node.read_file(PLAN).is_ok());
    let plan = cluster.a.node.read_file(PLAN).unwrap();
    // The API server accepts connections, and says nothing.
    cluster.server.faults(|faults| faults.hang = true);
    cluster.server.kill();
    cluster.server.revive();
    reboot(&mut cluster.a);
    cluster.a.sh(&format!("rm {CONFLIST}"));
    cluster.a.start("");
    cluster.a.has_routes(&expected);
    wait("the conflist", || cluster.a.conflist(), |conflist| *conflist == before);
    wait("ready", || cluster.a.http("/readyz"), |answer| answer.0 == 200);
    let a = &cluster.a;
    let text = String::from_utf8(a.run("status --no-probe").stdout).unwrap();
    let time = plan.split_whitespace().nth(2).unwrap();
    assert!(text.contains(&format!("nodes: by the file of {time}")), "{text}");
    a.sh("nft list table inet ferrule_node");
    let (one, two, three) = (a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three"));
    one.reaches(&two);
    one.reaches(&three);
    one.end();
    cluster.server.kill();
    cluster.server.faults(|faults| faults.hang = false);

    // Another machine, a damaged file, none: the conflist stays, and nothing else is known.
    let damaged = plan.replacen("10.244.2.0", "10.244.2.8", 1);
    for (machine, plan, said) in [
        ("other", Some(&plan), "passed over: it is that of another machine"),
        ("a", Some(&damaged), "passed over: it is damaged"),
        ("a", None, "API server: "),
    ] {
        reboot(&mut cluster.a);
        cluster.a.node.write_file(MACHINE, machine).unwrap();
        match plan {
            Some(plan) => cluster.a.node.write_file(PLAN, plan).unwrap(),
            None => drop(cluster.a.sh(&format!("rm {PLAN}"))),
        }
        let lines = cluster.a.log().len();
        cluster.a.start("");
        let a = &cluster.a;
        a.until(said, || a.log()[lines..].contains(said));
        let answer = wait("an answer", || a.http("/readyz"), |answer| answer.0 != 0);
        assert!(
            answer.0 == 503 && answer.1.contains("the API server has not answered yet"),
            "{said}: {answer:?}"
        );
        assert!(a.routes().is_empty() && a.conflist() == before, "{said}");
    }
    cluster.server.revive();
    cluster.a.has_routes(&expected);
    wait("ready", || cluster.a.http("/readyz"), |answer| answer.0 == 200);
    cluster.a.until("a plan", || cluster.a.node.read_file(PLAN).is_ok());
    cluster.a.end("TERM");
    assert!(cluster.a.run("cleanup").status.success());
    assert!(cluster.a.node.read_file(PLAN).is_err());
}

/// Each step of writing the plan fails once, and the daemon is killed at each one. The file has the old nodes or the new ones.
/// Needs strace.
#[test]
fn each_step_of_writing_the_plan_fails() {
    let mut cluster = Cluster::new();
    let nodes = |member: &Member| {
        let plan = member.node.read_file(PLAN).unwrap_or_default();
        let json: serde_json::Value = serde_json::from_str(plan.lines().nth(1).unwrap_or("{}")).unwrap();
        json["items"].as_array().map_or(0, Vec::len)
    };
    let mut count = 3;
    for calls in ["openat", "write", "fsync", "rename,renameat2"] {
        for fault in ["error=ENOSPC", "error=EIO", "signal=KILL"] {
            let name = format!("n{count}");
            cluster
                .store
                .put(&node_path(&name), node_object(&["192.0.2.50"], &[&format!("10.245.{count}.0/24")]));
            count += 1;
            let strace = format!(
                "strace -D -f -qq -o /dev/null -P {PLAN}.new -e trace={calls} -e inject={calls}:{fault}:when=1"
            );
            let lines = cluster.a.log().len();
            cluster.a.start_under(&strace, "");
            let a = &mut cluster.a;
            wait(
                "a failure",
                || a.log()[lines..].contains("plan file") || !a.is_running(),
                |has_failed| *has_failed,
            );
            let found = nodes(&cluster.a);
            assert!([0, count - 1].contains(&found), "{calls} {fault}: {found}");
            if cluster.a.end("TERM").is_none() {
                cluster.a.start("");
                cluster.a.until("the plan", || nodes(&cluster.a) == count);
                cluster.a.end("TERM");
            }
            // It writes what it could not before it ends.
            assert_eq!(nodes(&cluster.a), count, "{calls} {fault}: {}", cluster.a.log());
            assert_eq!(cluster.a.node.list_dir("/var/lib/ferrule/node").unwrap(), ["plan"]);
        }
    }
}

#[test]
fn a_podcidr_that_went_to_another_node() {
    let mut cluster = Cluster::started("");
    cluster.a.until("a plan", || cluster.a.node.read_file(PLAN).is_ok());
    let subnet = |member: &Member| {
        let conflist = member.conflist()?;
        conflist["plugins"][0]["ipam"]["ranges"][0][0]["subnet"].as_str().map(str::to_owned)
    };
    cluster.server.kill();
    reboot(&mut cluster.a);
    // Meanwhile this node has registered again, and an older one has its podCIDR.
    let older = |cidr: &str| {
        let mut object = node_object(&["192.0.2.9"], &[cidr]);
        object["metadata"] = json!({"creationTimestamp": "2020-01-01T00:00:00Z"});
        object
    };
    cluster.store.delete(&node_path("a"));
    cluster.store.put(&node_path("a"), node_object(&["192.0.2.1"], &["10.244.44.0/24"]));
    cluster.store.put(&node_path("older"), older("10.244.1.0/24"));
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let calls = "rename,renameat2,sendto,sendmsg,write,writev";
    cluster.a.start_under(&format!("strace -D -f -qq -o {} -e trace={calls}", trace.display()), "");
    cluster.a.has_routes(&ways(&cluster));
    assert_eq!(subnet(&cluster.a).unwrap(), "10.244.1.0/24", "as the file says");
    cluster.server.revive();
    let a = &cluster.a;
    a.until("its new podCIDR", || subnet(a).is_some_and(|subnet| subnet == "10.244.44.0/24"));
    // The conflist goes first, then this node's former podCIDR becomes the other one's.
    a.until("the way to the older node", || {
        a.routes().iter().any(|route| route.starts_with("10.244.1.0/24 "))
    });
    let trace = std::fs::read_to_string(&trace).unwrap();
    let (conflist, route) = (format!("\"{CONFLIST}\""), "RTA_DST}, inet_addr(\"10.244.1.0\")");
    assert!(trace.rfind(&conflist).unwrap() < trace.find(route).unwrap(), "{trace}");
    a.until("a word of the file", || a.log().contains("is of a Node a with another UID"));
    // Refused, then withdrawn: no new pod gets an address.
    for (name, object, back) in [
        ("older", older("10.244.44.0/24"), older("10.244.1.0/24")),
        ("a", node_object(&["192.0.2.1"], &[]), node_object(&["192.0.2.1"], &["10.244.44.0/24"])),
    ] {
        cluster.store.put(&node_path(name), object);
        a.until("no conflist", || a.node.read_file(CONFLIST).is_err());
        wait("not ready", || a.http("/readyz").0, |code| *code == 503);
        cluster.store.put(&node_path(name), back);
        a.until("the conflist", || subnet(a).is_some_and(|subnet| subnet == "10.244.44.0/24"));
    }
}
