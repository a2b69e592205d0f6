//! Whose an address is, asked on the wire.

use std::collections::BTreeSet;
use std::process::Command;
use std::thread::scope;

use cni_lab::testing::{ips_of, mac};
use cni_lab::{Place as _, bin_dir};
use cni_runner::Network;
use serde_json::json;

use crate::lab::{Lan, assert_unique, network};

/// Two pods on each of three nodes, by macvlan: the LAN knows each address once, at the pod that has it.
#[test]
fn each_address_has_one_owner_on_the_wire() {
    let lan = Lan::new();
    let members = ["a", "b", "c"].map(|name| lan.member(name));
    let plugin = network(
        "net",
        json!([[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.19"}]]),
        2,
    );
    let list = json!({"cniVersion": "1.1.0", "name": "net", "plugins": [plugin]});
    let pods: Vec<(String, String, cni_lab::Pod)> = scope(|scope| {
        let starts: Vec<_> = members
            .iter()
            .flat_map(|member| (0..2).map(move |n| (member, n)))
            .map(|(member, n)| {
                let list = &list;
                scope.spawn(move || {
                    let pod = member.node.pod(&format!("{}{n}", member.name)).unwrap();
                    pod.sh("ip link set lo up").unwrap();
                    let runtime = member.node.runtime([bin_dir().unwrap()]);
                    let network = Network::from_value(list).unwrap();
                    let result = runtime.add(&network, &pod.attachment("net0")).unwrap();
                    let [ip] = &ips_of(&result)[..] else { panic!("one address: {result}") };
                    (ip.clone(), mac(&pod, "net0"), pod)
                })
            })
            .collect();
        starts.into_iter().map(|start| start.join().unwrap()).collect()
    });
    let ips: Vec<String> = pods.iter().map(|(ip, ..)| ip.clone()).collect();
    assert_unique(&ips);

    lan.hub.sh("ip addr add 10.20.0.2/24 dev lan").unwrap();
    let mut dump = Command::new("tcpdump");
    dump.args(["-lnpi", "lan", "-w", "/run/arp", "-U", "arp[6:2] == 2"]);
    let mut dump = lan.hub.spawn(dump).unwrap();
    assert!(cni_lab::eventually(cni_lab::TIMEOUT, || lan.hub.sh("test -s /run/arp").is_ok()), "tcpdump runs");
    let all =
        (8..20).map(|n| format!("ping -c 1 -W 1 10.20.0.{n} >/dev/null &")).collect::<Vec<_>>().join("\n");
    lan.hub.sh(&format!("{all}\nwait")).unwrap();
    // tcpdump writes what it has.
    Command::new("kill").arg(dump.id().to_string()).status().unwrap();
    dump.child().wait().unwrap();
    let answers = lan.hub.sh("tcpdump -nr /run/arp 2>/dev/null").unwrap();
    let owners: BTreeSet<(String, String)> = answers
        .lines()
        .filter_map(|line| {
            let mut words = line.split_once("Reply ")?.1.split([' ', ',']).map(str::to_owned);
            Some((words.next()?, words.nth(1)?))
        })
        .collect();
    let expected: BTreeSet<(String, String)> =
        pods.iter().map(|(ip, mac, _)| (ip.clone(), mac.clone())).collect();
    assert_eq!(owners, expected, "{answers}");
}
