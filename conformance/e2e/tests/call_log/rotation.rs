//! Rotation while processes write at the same time.

use std::collections::BTreeSet;

use cni_lab::Place as _;
use cni_lab::testing::{Expect as _, at_once, network_config};
use cni_runner::{Attachment, Exec};
use serde_json::json;

use crate::fixture::{lines, node, with_log};

const LIMIT: usize = 8192;
/// Their lines, of 250 bytes each, are less than the limit: so at most one rotation happens in a round.
const AT_ONCE: usize = 16;
const ROUNDS: usize = 12;

#[test]
fn no_line_is_lost_or_torn() {
    let ctx = with_log(&node("loopback"), "/run/calls 8k");
    let conf = network_config("loopback", "1.0.0", &json!({}));
    let mut rotations = BTreeSet::new();
    for round in 0..ROUNDS {
        let names: BTreeSet<String> = (0..AT_ONCE).map(|number| format!("c{round}-{number}")).collect();
        let call = |name: &String| ctx.exec("DEL", &Attachment::new(name, "", "lo"), &conf);
        let calls: Vec<Exec> = names.iter().map(call).collect();
        at_once(&ctx.node, &calls).iter().for_each(|output| output.ok());

        let files = ctx.node.list_dir("/run").unwrap();
        let logs = ["calls.1", "calls"].into_iter().filter(|name| files.iter().any(|file| file == name));
        let logged: Vec<_> = logs.flat_map(|name| lines(&ctx, &format!("/run/{name}"))).collect();
        let found: BTreeSet<String> =
            logged.iter().map(|line| line["container"].as_str().unwrap().to_owned()).collect();
        assert_eq!(found.len(), logged.len(), "a line occurs twice");
        assert!(found.is_superset(&names), "{:?} are lost", names.difference(&found));
        if files.contains(&"calls.1".to_owned()) {
            let old = ctx.node.read_file("/run/calls.1").unwrap();
            assert!((LIMIT..2 * LIMIT).contains(&old.len()), "rotated at {} bytes", old.len());
            rotations.insert(old);
        }
    }
    assert!(rotations.len() > 2, "{} rotations", rotations.len());
}
