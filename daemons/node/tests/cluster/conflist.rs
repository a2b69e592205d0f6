//! The conflist: when the daemon writes it, its values, and foreign files.

use std::process::{Command, Output};

use cni_lab::{Background, Place as _, bin_dir, eventually};
use serde_json::{Value, json};

use crate::lab::{Cluster, LIMIT, PORT, node_object, node_path, wait};
use crate::member::{CONFLIST, Member, Running};

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

#[test]
fn it_appears_when_all_ways_are_there() {
    let mut cluster = Cluster::new();
    // Enough nodes that the routes take some time.
    for number in 0..500 {
        let (high, low) = (number / 250, number % 250);
        let object =
            node_object(&[&format!("198.18.{high}.{low}")], &[&format!("10.{}.{low}.0/24", 100 + high)]);
        cluster.store.put(&node_path(&format!("n{number}")), object);
    }
    cluster.a.start("");
    assert!(eventually(LIMIT, || cluster.a.node.read_file(CONFLIST).is_ok()), "{}", cluster.a.log());
    assert_eq!(cluster.a.routes().len(), 504);
    wait("ready", || cluster.a.http("/readyz"), |answer| answer.0 == 200);
}

#[test]
fn the_subnet_changes_while_pods_run() {
    let cluster = Cluster::started("");
    let Cluster { a, b, .. } = &cluster;
    let (old, two) = (a.pod("old"), b.pod("two"));
    let before = a.conflist().unwrap();
    cluster.patch(
        "a",
        &json!({"spec": {"podCIDR": "10.244.44.0/24", "podCIDRs": ["10.244.44.0/24", "fd00:244:44::/64"]}}),
    );
    wait("another conflist", || a.conflist(), |now| now.as_ref() != Some(&before));
    b.until("the way to the new network", || {
        b.routes().iter().any(|route| route.starts_with("10.244.44.0/24 "))
    });
    let new = a.pod("new");
    assert!(new.addresses[0].to_string().starts_with("10.244.44."), "{:?}", new.addresses);
    assert!(new.addresses[1].to_string().starts_with("fd00:244:44:"), "{:?}", new.addresses);
    new.reaches(&two);
    // The old pod keeps its address, and `status` shows it.
    old.pod.sh(&format!("ip addr show dev eth0 | grep -q {}", old.addresses[0])).unwrap();
    let status = wait(
        "a status of the old address",
        || said(&a.run("status --no-probe")),
        |text| text.contains("10.244.1."),
    );
    assert!(status.contains("10.244.44.0/24"), "{status}");
    old.end();
    wait("a status without it", || said(&a.run("status --no-probe")), |text| !text.contains("10.244.1."));
}

#[test]
fn policies_add_the_last_plugin_and_tell_what_they_do_not_understand() {
    let mut cluster = Cluster::new();
    let path = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/db";
    let rule = json!({"ports": vec![json!({"port": 80, "x": 1}); 25]});
    cluster.store.put("/api/v1/namespaces/shop", json!({"kind": "Namespace", "apiVersion": "v1"}));
    cluster.store.put(path, json!({"kind": "NetworkPolicy", "spec": {"podSelector": {}, "ingress": [rule]}}));
    let all = ["ptp", "portmap", "bandwidth", "policy"];
    for (arguments, types) in [
        ("--policy on --chain off", &all[..]),
        ("--chain off", &all[..3]),
        ("--policy on", &["chain"]),
        ("", &["chain"]),
    ] {
        cluster.a.start(arguments);
        let has_policy = arguments.contains("--policy");
        let is_so = || {
            let plugins = cluster.a.conflist().unwrap_or_default()["plugins"].take();
            let last = plugins.as_array().and_then(|plugins| plugins.last());
            cluster.a.types() == types && last.is_some_and(|last| (last["type"] == "policy") == has_policy)
        };
        cluster.a.until(&format!("{types:?} with {arguments:?}"), is_so);
        // These are no pods of Kubernetes: the plugin does not isolate them.
        let (one, two) = (cluster.a.pod("one"), cluster.a.pod("two"));
        one.reaches(&two);
        one.end();
        two.end();
        if has_policy {
            let line = "policies: NetworkPolicy shop/db: ingress[0], port 0: the field \"x\" is not known: it allows nothing";
            let is_said = |text: &String| text.contains(line) && text.contains("\npolicies: … and 5 more\n");
            wait("a line", || said(&cluster.a.run("status --no-probe")), is_said);
        }
        // The first 20, and one for the rest.
        let events = || cluster.store.list("/api/v1/namespaces/shop/events");
        for event in wait("events", events, |events| events.len() == 21) {
            let about = &event["involvedObject"];
            assert_eq!(
                (&about["kind"], &about["name"], &event["type"]),
                (&json!("NetworkPolicy"), &json!("db"), &json!("Warning"))
            );
        }
        let is_rest = |event: &Value| event["message"].as_str().unwrap().starts_with("5 more parts");
        assert_eq!(events().iter().filter(|event| is_rest(event)).count(), 1);
        cluster.a.end("TERM");
    }
}

#[test]
fn a_foreign_file_stays() {
    let mut cluster = Cluster::new();
    let foreign =
        json!({"cniVersion": "1.0.0", "name": "theirs", "plugins": [{"type": "bridge"}]}).to_string();
    cluster.a.node.write_file(CONFLIST, &foreign).unwrap();
    for member in cluster.members_mut() {
        member.start("");
    }
    let a = &cluster.a;
    a.has_routes(&[a.ways_to(&cluster.b), a.ways_to(&cluster.c)].concat());
    wait("an Event", || cluster.warnings("a"), |events| !events.is_empty());
    a.until("a line", || !a.lines(CONFLIST).is_empty());
    assert_ne!(a.http("/readyz").0, 200);
    assert_eq!(a.node.read_file(CONFLIST).unwrap(), foreign);
    a.sh(&format!("rm {CONFLIST}"));
    a.until("its own conflist", || a.conflist().is_some());
    wait("ready", || a.http("/readyz"), |answer| answer.0 == 200);
    // Runtimes take the first file.
    let other = "/run/cni/net.d/05-other.conf";
    a.node.write_file(other, &foreign).unwrap();
    let answer = wait("another word", || a.http("/readyz"), |answer| answer.0 == 503);
    assert!(answer.1.starts_with("not ready\nfirst: ") && answer.1.contains(other), "{answer:?}");
    let status = a.run("status --no-probe");
    assert!(
        !status.status.success() && said(&status).starts_with("not ready\nnot ready: first: "),
        "{status:?}"
    );
    wait("Events", || cluster.warnings("a").len(), |events| *events == 2);
    a.sh(&format!("mv {other} {other}.off"));
    wait("ready", || a.http("/readyz"), |answer| *answer == (200, "ready\n".to_owned()));
    assert!(a.run("status --no-probe").status.success());
}

/// The file is made, then replaced. Each step of both fails once before it works. Readers see nothing, the old or the new file, and
/// the daemon never takes its own file for a foreign one. Needs strace.
#[test]
fn each_step_of_writing_it_fails() {
    let mut cluster = Cluster::new();
    let folder = tempfile::tempdir().unwrap();
    let trace = folder.path().join("trace");
    let steps = ["openat", "write", "fsync", "rename,renameat2"];
    let of_file = |error| (format!("{CONFLIST}.new"), error, &steps[..]);
    let last = (CONFLIST.rsplit_once('/').unwrap().0.to_owned(), "EIO", &steps[2..3]);
    let strace = |path: &str, inject: &str| {
        format!("strace -D -f -qq -o {} -P {path} -e trace={}{inject}", trace.display(), steps.join(","))
    };
    for (path, error, steps) in [of_file("ENOSPC"), of_file("EIO"), of_file("EROFS"), last] {
        cluster.a.sh(&format!("rm -f {CONFLIST}"));
        for mtu in [1400, 1300] {
            let inject = steps.iter().map(|calls| format!(" -e inject={calls}:error={error}:when=1"));
            let before = cluster.a.log().len();
            cluster.a.start_under(&strace(&path, &inject.collect::<String>()), &format!("--mtu {mtu}"));
            let (a, store, mut pokes) = (&cluster.a, &cluster.store, 0);
            a.until("the new conflist, and a word of it", || {
                // A change of the cluster causes the next attempt.
                pokes += 1;
                let address = format!("192.0.2.{}", 100 + pokes % 100);
                store.put(&node_path("poke"), node_object(&[&address], &["10.244.99.0/24"]));
                let found = a.conflist().map(|conflist| conflist["plugins"][0]["mtu"].as_u64().unwrap());
                assert!(found.iter().all(|found| [mtu, mtu + 100].contains(found)), "{found:?}");
                found == Some(mtu) && a.log()[before..].contains("conflist: works again")
            });
            let log = cluster.a.log()[before..].to_owned();
            assert!(log.contains("conflist: write") && !log.contains("not ours"), "{log}");
            assert_eq!(log.matches("works again").count(), 1, "while it failed: {log}");
            let trace = std::fs::read_to_string(&trace).unwrap();
            assert_eq!(trace.matches("(INJECTED)").count(), steps.len(), "{trace}");
            let names = cluster.a.node.list_dir("/run/cni/net.d").unwrap();
            assert_eq!(names, ["10-ferrule.conflist"]);
            cluster.a.end("KILL");
        }
    }
    // A conflist with a former podCIDR goes if it cannot be replaced.
    cluster.patch("a", &json!({"spec": {"podCIDR": "10.244.44.0/24", "podCIDRs": ["10.244.44.0/24"]}}));
    let strace = strace(&format!("{CONFLIST}.new"), " -e inject=write:error=ENOSPC");
    cluster.a.start_under(&strace, "");
    cluster.a.until("no conflist", || cluster.a.conflist().is_none());
}

/// A node changes from a list to `chain` and back while pods run. Each form checks, repairs and removes what the other one has attached,
/// and a plugin that another program has appended stays.
#[test]
fn from_a_list_to_a_chain_and_back() {
    const LIST: [&str; 3] = ["ptp", "portmap", "bandwidth"];
    let mut cluster = Cluster::new();
    cluster.b.start("");
    let (a, b) = (&cluster.a, &cluster.b);
    let types = |member: &Member, expected: &[&str]| {
        wait(&format!("{expected:?}:\n{}", member.log()), || member.types(), |types| *types == expected);
    };
    // Repair is sure of a pod that has a process, and of a node with a first one.
    let sleep = || {
        let mut sleep = Command::new("sleep");
        sleep.arg("infinity");
        sleep
    };
    let init = a.node.spawn(sleep()).unwrap();
    let port = |number: u16| json!([{"hostPort": number, "containerPort": PORT, "protocol": "tcp"}]);
    let limits = json!({"ingressRate": 80_000_000, "ingressBurst": 8_000_000, "egressRate": 40_000_000, "egressBurst": 8_000_000});
    let started = |name: &str, number| {
        let running = a.pod_with(name, |attachment| {
            attachment
                .with_capability("portMappings", port(number))
                .with_capability("bandwidth", limits.clone())
        });
        let process = running.pod.spawn(sleep()).unwrap();
        (running, process)
    };
    let end = |(running, process): (Running<'_>, Background)| {
        drop(process);
        running.end();
    };
    let repair = || {
        let mut command = Command::new(bin_dir().unwrap().join("ferrule"));
        command
            .args(["repair", "--yes", "--init", &init.id().to_string(), "--bin-dir"])
            .arg(bin_dir().unwrap());
        let output = a.node.exec(&mut command).unwrap();
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    };
    // As another vendor's installer does it.
    let edit = |filter: &str| a.sh(&format!("jq '{filter}' {CONFLIST} >/run/new && mv /run/new {CONFLIST}"));
    let daemon = |arguments: &str| a.node.spawn(a.command("", arguments)).unwrap();
    let mut running = daemon("--chain off");
    types(a, &LIST);
    types(b, &["chain"]);
    let far = b.pod("far");
    let mut pods = vec![started("old", 8080)];
    for (number, arguments, expected) in [(8081, "", &["chain"][..]), (8082, "--chain off", &LIST)] {
        Command::new("kill").arg(running.id().to_string()).status().unwrap();
        running.child().wait().unwrap();
        running = daemon(arguments);
        if number == 8081 {
            types(a, expected);
            edit(".plugins += [{type: \"tuning\"}]");
        }
        let expected = [expected, &["tuning"]].concat();
        types(a, &expected);
        pods.push(started(&format!("pod{number}"), number));
        for (pod, _) in &mut pods {
            pod.take_conflist();
            assert!(pod.is_sound(), "{arguments}");
        }
        // The node loses the rules and the limits.
        a.sh("nft flush ruleset; tc qdisc show | sed -n 's/^qdisc tbf .* dev \\([^ ]*\\) .*/\\1/p' | xargs -n 1 tc qdisc del root dev");
        assert!(!pods[0].0.is_sound());
        let said = repair();
        assert!(said.contains(" 0 failed, 0 skipped, "), "{said}");
        for (pod, _) in &pods {
            assert!(pod.is_sound(), "{arguments}");
            pod.reaches(&far);
            far.reaches(pod);
        }
        assert_eq!(a.types(), expected);
        end(pods.remove(0));
    }
    edit(".plugins |= map(select(.type != \"tuning\"))");
    a.until("ready", || a.http("/readyz").0 == 200);
    types(a, &LIST);
    pods.into_iter().for_each(end);
    for left in ["nft list ruleset | grep 808", "ip -o link show | grep bwp"] {
        assert!(a.node.sh(left).is_err(), "{left}");
    }
}

#[test]
fn status_and_cleanup() {
    let mut cluster = Cluster::started("");
    let a = &mut cluster.a;
    let text = wait("answers of the others", || said(&a.run("status")), |text| text.lines().count() >= 3);
    for word in ["10.244.2.0/24", "fd00:244:3::/64", "vxlan"] {
        assert!(text.contains(word), "no {word}: {text}");
    }
    a.until("ready", || a.http("/readyz").0 == 200);
    let output = a.run("status --json");
    let parsed: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert!(output.status.success() && parsed.is_object(), "{parsed}");
    let metrics = a.http("/metrics");
    assert_eq!(metrics.0, 200);
    assert!(metrics.1.contains("ferrule_node_"), "{}", metrics.1);
    assert_eq!(a.http("/nothing").0, 404);

    // The daemon ends; its objects stay until `cleanup`.
    assert_eq!(a.end("TERM"), Some(0), "{}", a.log());
    assert_eq!(a.routes().len(), 4);
    assert!(a.conflist().is_some());
    a.sh("ip route add 172.31.0.0/16 via 192.0.2.254 proto static");
    cluster.server.kill();
    let cleaned = cluster.a.run("cleanup");
    assert!(cleaned.status.success(), "{}", said(&cleaned));
    let a = &cluster.a;
    assert!(a.routes().is_empty() && a.conflist().is_none());
    assert!(!a.node_has("ferrule.vxlan"));
    assert!(a.node.sh("nft list table inet ferrule_node").is_err());
    a.sh("ip route show 172.31.0.0/16 | grep -q 192.0.2.254");
    assert!(a.node.list_dir("/run/ferrule/node").unwrap().is_empty());
    // Nothing is left to remove.
    assert!(a.run("cleanup").status.success());
}
