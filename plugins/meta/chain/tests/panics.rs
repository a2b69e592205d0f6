//! A member that panics. This program is both the test and the plugins: under their names it is one of them.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::symlink;
use std::process::ExitCode;

use cni_common::plugin::{self, Attachment, Plugin};
use cni_common::spec::AddResult;
use cni_lab::testing::Expect as _;
use cni_lab::{Node, Place as _};
use cni_runner::Exec;
use serde_json::json;

const PLUGINS: &[&Plugin] = &[&ferrule_chain::PLUGIN, &FINE, &PANICS, &PANICS_IN_DEL];
const FINE: Plugin = Plugin::new(
    "fine",
    |call| record("fine ADD", &Attachment::from(call)),
    |call| record("fine DEL", &Attachment::from(call)).map(drop),
);
const PANICS: Plugin = Plugin::new(
    "panics",
    |_| panic!("of the test"),
    |call| record("panics DEL", &Attachment::from(call)).map(drop),
);
const PANICS_IN_DEL: Plugin = Plugin::new("late", |_| panic!("at ADD"), |_| panic!("at DEL"));

fn record(what: &str, attachment: &Attachment<'_>) -> Result<AddResult, cni_common::spec::CniError> {
    let mut file = fs::File::options().create(true).append(true).open("/run/calls").unwrap();
    writeln!(file, "{what} {}", attachment.container_id).unwrap();
    Ok(AddResult::default())
}

fn main() -> ExitCode {
    plugin::run_one_of(PLUGINS, test, || ())
}

fn test() -> ExitCode {
    let dir = tempfile::tempdir().unwrap();
    for plugin in PLUGINS {
        symlink(std::env::current_exe().unwrap(), dir.path().join(plugin.name)).unwrap();
    }
    let node = Node::new().unwrap();
    let pod = node.pod("c1").unwrap();
    let call = |verb: &str, members: &[&str]| {
        let members: Vec<_> = members.iter().map(|name| json!({"type": name})).collect();
        let conf = json!({"cniVersion": "1.0.0", "name": "net", "type": "chain", "plugins": members});
        let exec = Exec::new(dir.path().join("chain"), verb).attachment(&pod.attachment("eth0"));
        let output = node.call(&exec.path(dir.path().display().to_string()).stdin(conf.to_string())).unwrap();
        let calls = node.sh("cat /run/calls 2>/dev/null; rm -f /run/calls").unwrap();
        (output, calls.lines().map(str::to_owned).collect::<Vec<_>>())
    };
    let (output, calls) = call("ADD", &["fine", "panics", "fine"]);
    let error = output.error();
    assert!(error.msg.starts_with("plugin type=\"panics\" failed (add): internal error: "), "{error:?}");
    // As a runtime's DEL after a failed ADD: that of all members.
    assert_eq!(calls, ["fine ADD c1", "fine DEL c1", "panics DEL c1", "fine DEL c1"]);
    // The first member may have found the interface of an earlier ADD.
    let (output, calls) = call("ADD", &["panics", "fine"]);
    assert!(output.error().msg.contains("of the test") && calls.is_empty(), "{calls:?}");
    // A panic of the DEL that undoes ends it.
    let (output, calls) = call("ADD", &["fine", "late"]);
    assert!(output.error().msg.contains("at ADD"));
    assert_eq!(calls, ["fine ADD c1"]);
    let (output, _) = call("DEL", &["fine", "late"]);
    assert!(output.error().msg.starts_with("plugin type=\"late\" failed (delete): internal error: "));
    println!("test a_panic_undoes_the_earlier_members ... ok");
    ExitCode::SUCCESS
}
