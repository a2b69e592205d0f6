//! The health endpoint proves with packets that the table of the policies judges what pods send and get.

use cni_lab::Place as _;
use serde_json::Value;

use crate::lab::{Cluster, wait};
use crate::member::Member;

const ON: &str = "--policy on --main ptp --health on";

fn health(member: &Member) -> Value {
    let text = member.node.read_file("/run/ferrule/node/status.json").unwrap_or_default();
    serde_json::from_str::<Value>(&text).unwrap_or_default()["health"].take()
}

/// Waits until both families have this proof, with these words, and the daemon answers with this code.
fn until(member: &Member, proof: &str, words: &str, code: u16) {
    let rows = || health(member)["policies"].as_array().cloned().unwrap_or_default();
    let is_such =
        |row: &Value| row["proof"] == proof && row["why"].as_str().unwrap_or_default().contains(words);
    wait(
        &format!("{proof}: {words}"),
        || (rows(), member.http("/readyz")),
        |(rows, (said, _))| rows.len() == 2 && rows.iter().all(is_such) && *said == code,
    );
    let (_, metrics) = member.http("/metrics");
    let figure = format!("\nferrule_node_policy_proved {}\n", u8::from(proof == "proved"));
    assert!(metrics.contains(&figure), "{figure}{metrics}");
}

/// Lets packets pass from the endpoint to its other side below the hook `forward`, as programs of tc or XDP do.
fn bypass(member: &Member) {
    let health = health(member);
    let [link, other] = [0, 1].map(|number| health["links"][number].as_str().unwrap().to_owned());
    let table = member.sh("nft list table inet ferrule_policy");
    let map = |name: &str| {
        let (_, rest) = table.split_once(&format!("map {name} ")).unwrap();
        let (address, _) = rest.split_once(" : jump probe-in").unwrap();
        address.rsplit([' ', '{', '\t']).next().unwrap().to_owned()
    };
    member.sh(&format!(
        "nft add table netdev by
        nft add chain netdev by in '{{ type filter hook ingress device {link} priority 0; }}'
        nft add rule netdev by in ip daddr {} fwd ip to {} device {other}
        nft add rule netdev by in ip6 daddr {} fwd ip6 to {} device {other}",
        map("to4"),
        map("to4"),
        map("to6"),
        map("to6")
    ));
}

#[test]
fn the_table_is_proved_with_packets() {
    let mut cluster = Cluster::new();
    cluster.a.start(ON);
    until(&cluster.a, "proved", "", 200);
    // Other rules that accept do not matter.
    cluster.a.sh("nft add table inet wide; nft add chain inet wide f '{ type filter hook forward priority -300; }'; nft add rule inet wide f accept");
    cluster.a.end("TERM");
    bypass(&cluster.a);
    cluster.a.start(ON);
    let said = "packets pass that the table of policies denies: egress to a pod (hook forward), ingress of a pod (hook forward)";
    until(&cluster.a, "lost", said, 503);
    let (_, word) = cluster.a.http("/readyz");
    assert!(word.starts_with("not ready\n") && word.contains(&format!("policy: IPv6: {said}\n")), "{word}");
    cluster.a.sh("nft delete table netdev by");
    until(&cluster.a, "proved", "", 200);

    // Without an endpoint nothing is proved, and that is said.
    cluster.a.end("TERM");
    cluster.a.start("--policy on --main ptp --health off");
    until(&cluster.a, "unknown", "--health is off", 200);
    let (_, word) = cluster.a.http("/readyz");
    assert!(word.contains("policy-unproved: IPv4: policies are not proved: --health is off\n"), "{word}");
}
