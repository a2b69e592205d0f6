//! Another process changes a table while a call is between two of its steps. The tests need root, `nft` and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_runner::Attachment;
use common::{World, both, more, pods};
use serde_json::json;

/// DEL. The handle of a rule is another rule's then, which stays.
#[test]
fn rules_of_a_table_that_is_made_again_stay() {
    let world = World::new();
    let make = |containers: [&str; 2]| {
        let rule = |id: &str| {
            format!("add rule ip cni_hostport hostports tcp dport 80 dnat to 10.1.0.2:80 comment \"{id}\"\n")
        };
        let text = format!(
            "add table ip cni_hostport\ndelete table ip cni_hostport\nadd table ip cni_hostport\nadd chain ip cni_hostport hostports\n{}{}",
            rule(containers[0]),
            rule(containers[1])
        );
        world.node.write_file("/run/table.nft", &text).unwrap();
        world.node.tool("nft", &["-f", "/run/table.nft"]).unwrap();
    };
    let (one, config) = (
        Attachment::new("one", "", "eth0"),
        json!({"cniVersion": "1.1.0", "name": "pods", "type": "portmap"}),
    );
    make(["one", "two"]);
    for point in world.pause_points("DEL", &one, &config) {
        make(["one", "two"]);
        world.pause(&point, "DEL", &one, &config, || make(["two", "one"]));
        let left = world.node.sh("nft list table ip cni_hostport | grep -o 'comment.*'").unwrap();
        // A DEL that is at its end sees nothing of the new table.
        assert!(left.contains("\"two\""), "stopped {point}: {left}");
    }
}

/// ADD of the first two pods of a subnet at once.
#[test]
fn the_masquerading_chain_of_a_subnet_is_made_once() {
    let world = World::new();
    world.add("other", &pods(json!({})), &both(9000, 80));
    let pods = ["one", "two"].map(|name| world.add(name, &more(json!({})), &json!([])));
    let [(one, config), (two, other)] = [(0, 8080), (1, 8081)].map(|(pod, port)| {
        let mut config = pods[pod].config();
        config["runtimeConfig"]["portMappings"] = both(port, 80);
        (&pods[pod].attachment, config)
    });
    let chain = |when: &str| {
        let table = world.table();
        let rules = ["10.1.1.0/24", "127.0.0.0/8"]
            .map(|from| table.matches(&format!("ip saddr {from} jump KUBE-MARK-MASQ")).count());
        (when.to_owned(), rules)
    };
    let points = world.pause_points("ADD", one, &config);
    world.ctx.del(one, &config);
    let before = chain("before").1;
    for point in points {
        world.pause(&point, "ADD", one, &config, || drop(world.ctx.add(two, &other)));
        let (point, rules) = chain(&point.to_string());
        assert_eq!(rules, before.map(|rules| rules + 1), "stopped {point}");
        for (pod, config) in [(one, &config), (two, &other)] {
            world.ctx.check(pod, config);
            world.ctx.del(pod, config);
        }
        assert_eq!(chain("after").1, before);
    }
}
