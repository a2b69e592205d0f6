//! Another process makes the reference's table again while DEL is between two of its steps. The handle of a rule is another rule's
//! then, which stays. The test needs root, `nft` and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::Place as _;
use cni_runner::Attachment;
use common::World;
use serde_json::json;

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
