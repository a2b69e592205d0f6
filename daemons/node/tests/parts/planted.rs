//! `ferrule-node status` beside foreign objects.

use std::process::Command;

use cni_lab::testing::{PLANTED, plant};
use cni_lab::{Node, Place as _};

/// A status whose texts come from an API server, unchecked.
const STATUS: &str = r#"{"node":"n1","mode":"auto","api":{"since":"","connected":false,"error":"a\u001b[2J\nb"},
    "conflist":{"path":"/c","written":true,"networks":[],"mtu":1500,"store":"/run/store"},"problems":[],
    "nodes":[{"name":"n2\u009b2J\u202e","networks":[],"since":""}]}"#;

#[test]
fn status_neither_follows_nor_waits_for_anything() {
    let node = Node::new().unwrap();
    let status = |what: &str| {
        let mut command = Command::new("timeout");
        let program = env!("CARGO_BIN_EXE_ferrule-node");
        command.args(["-k", "1", "20", program, "status", "--no-probe", "--state", "/run/state"]);
        let output = node.exec(&mut command).unwrap();
        let code = output.status.code();
        assert!(matches!(code, Some(0 | 1)), "{what}: {code:?}");
        // The daemon does not run: its last word is no success.
        (
            code == Some(1) && output.stdout.starts_with(b"the daemon does not run"),
            String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned(),
        )
    };
    for file in ["status.json", "lock", "status.new"] {
        for (kind, make) in PLANTED {
            node.write_file("/run/state/status.json", STATUS).unwrap();
            plant(&node, &format!("/run/state/{file}"), make);
            let (is_done, said) = status(&format!("{kind} as {file}"));
            assert!(is_done == (file != "status.json"), "{kind} as {file}: {said}");
            assert!(is_done || said.contains("/run/state/status.json"), "{kind}: {said}");
            let is_raw = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
            assert!(!said.contains(is_raw), "{said:?}");
            node.sh("rm -rf /run/state; test ! -e /run/nowhere").unwrap();
        }
    }
}
