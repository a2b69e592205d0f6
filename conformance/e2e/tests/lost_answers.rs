//! ADD cannot receive an answer of the kernel. It then either succeeds, or it fails and leaves nothing. The test
//! needs root and `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::{Expect as _, succeed};
use cni_lab::{FailingCall, Place as _, Snapshot};
use common::{Chain, PLUGINS};
use serde_json::Value;

#[path = "common/chain.rs"]
mod common;

/// What host-local changes with every address, and what the kernel numbers.
const STAY: [&str; 2] = ["last_reserved_ip.", "ingress: index "];

/// An I/O error, and a receive buffer that was too small, in turn.
const ERRORS: [&str; 2] = ["EIO", "ENOBUFS"];

#[test]
fn add_leaves_nothing_behind_after_a_lost_answer() {
    let chain = Chain::new(&["10.1.0.0/24", "fd00:1::/64"]);
    // Tables of the reference make portmap look into them.
    chain.node.sh("nft add table ip cni_hostport; nft add chain ip cni_hostport hostports").unwrap();
    // A failed loopback leaves `lo` up, which may have been up before.
    for (plugin, name) in PLUGINS.iter().enumerate().skip(1) {
        let attachment = chain.attachment(name, 8080);
        let previous = chain.add_before(plugin, &attachment);
        let add = chain.exec("ADD", plugin, &attachment, previous.as_ref());
        let mut lost_answers = FailingCall::all(&chain.node, &add).unwrap();
        lost_answers.retain(|call| call.name == "recvfrom" && call.error == ERRORS[call.nth % 2]);
        chain.del(plugin, &attachment, previous.as_ref());
        let snapshot = || Snapshot::take(&chain.node).unwrap().ignoring(&STAY);
        let before = snapshot();
        let mut failed = 0;
        for lost in &lost_answers {
            let output = lost.make(&chain.node, &add).unwrap();
            assert!(output.status.code().is_some(), "{name} ADD, {lost}: {}", output.status);
            if output.success() {
                chain.del(plugin, &attachment, previous.as_ref());
            } else {
                failed += 1;
            }
            assert_eq!(before.diff(&snapshot()), "", "{name} ADD, {lost}");
        }
        println!("{name}: {} answers, ADD failed without {failed} of them", lost_answers.len());
        assert!(failed > 0, "{name}: no ADD failed");
        for earlier in (0..plugin).rev() {
            chain.del(earlier, &attachment, previous.as_ref());
        }
    }
}

/// The same in one `chain`. A DEL that fails is repeated.
#[test]
fn a_chain_leaves_nothing_behind_after_a_lost_answer() {
    let chain = Chain::new(&["10.1.0.0/24", "fd00:1::/64"]);
    let attachment = chain.attachment("pod", 8080);
    let add = || succeed(&chain.node, &chain.exec_folded("ADD", &attachment, None));
    let del = |result: Option<&Value>| {
        chain.node.call(&chain.exec_folded("DEL", &attachment, result)).unwrap().ok();
    };
    let snapshot = || Snapshot::take(&chain.node).unwrap().ignoring(&STAY);
    del(Some(&add()));
    let before = snapshot();
    for verb in ["ADD", "DEL"] {
        let prepare = || (verb == "DEL").then(add);
        let result = prepare();
        let exec = chain.exec_folded(verb, &attachment, result.as_ref());
        let mut lost_answers = FailingCall::all(&chain.node, &exec).unwrap();
        lost_answers.retain(|call| call.name == "recvfrom" && call.error == ERRORS[call.nth % 2]);
        del(result.as_ref());
        let mut failed = 0;
        for lost in lost_answers.iter().step_by(3) {
            let result = prepare();
            let exec = chain.exec_folded(verb, &attachment, result.as_ref());
            let output = lost.make(&chain.node, &exec).unwrap();
            assert!(output.status.code().is_some(), "{verb}, {lost}: {}", output.status);
            failed += usize::from(!output.success());
            if output.success() == (verb == "ADD") {
                del(result.as_ref());
            }
            assert_eq!(before.diff(&snapshot()), "", "{verb}, {lost}");
        }
        println!("{verb}: a third of {} answers, it failed without {failed} of them", lost_answers.len());
        assert!(failed > PLUGINS.len(), "no {verb} failed");
    }
}
