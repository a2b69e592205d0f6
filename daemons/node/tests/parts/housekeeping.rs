//! The children of the daemon, played by a script.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use cni_lab::{Background, Node, Place as _, eventually};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::lab::LIMIT;

/// A folder with a program `ferrule` that notes its process and its words, and then does this.
fn folder(then: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let (program, notes) = (folder.path().join("ferrule"), folder.path().join("notes"));
    fs::write(&program, format!("#!/bin/sh\necho $$ \"$@\" >>{}\n{then}\n", notes.display())).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    (folder, notes)
}

fn notes(path: &Path) -> Vec<(String, String)> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let words =
        |line: &str| line.split_once(' ').map(|(pid, words)| (pid.to_owned(), words.to_owned())).unwrap();
    let mut notes: Vec<_> = text.lines().map(words).collect();
    notes.sort_by(|a, b| a.1.cmp(&b.1));
    notes
}

fn is_alive(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    !stat.is_empty() && !stat.contains(") Z ")
}

/// Runs the children in another process, so that it can be killed.
fn keeper(folder: &Path) -> Command {
    let mut keeper = Command::new(env!("CARGO_BIN_EXE_ferrule-node"));
    keeper.args(["child", &std::process::id().to_string()]).arg(folder.join("ferrule"));
    keeper
}

#[test]
fn a_child_is_the_program_and_ends_with_its_parent() {
    let (folder, notes_path) = folder("exec sleep 1000");
    // The thread that starts a child is its parent.
    std::thread::spawn(move || {
        let mut child = keeper(folder.path()).args(["gc", "--yes", "--every", "5"]).spawn().unwrap();
        assert!(eventually(LIMIT, || notes(&notes_path).len() == 1));
        let (pid, words) = notes(&notes_path).remove(0);
        assert_eq!((pid, words.as_str()), (child.id().to_string(), "gc --yes --every 5"));
        assert!(child.try_wait().unwrap().is_none());
        (folder, child)
    })
    .join()
    .map(|(_folder, mut child)| assert!(!child.wait().unwrap().success()))
    .unwrap();
}

#[test]
fn a_child_of_another_parent_does_not_start() {
    let (folder, notes_path) = folder("");
    let output = Command::new(env!("CARGO_BIN_EXE_ferrule-node"))
        .args(["child", "1"])
        .arg(folder.path().join("ferrule"))
        .output()
        .unwrap();
    assert!(!output.status.success() && notes(&notes_path).is_empty());
    assert!(String::from_utf8_lossy(&output.stderr).contains("ferrule-node has ended meanwhile"));
    let output = keeper(Path::new("/no/such")).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(!output.status.success() && said.contains("/no/such/ferrule: No such file"), "{said}");
}

/// A daemon without an API server, on a node of its own.
fn daemon(node: &Node, folder: &Path) -> Background {
    let config = folder.join("kubeconfig");
    fs::write(
        &config,
        "{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
         clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}], users: [{name: u, user: {}}]}",
    )
    .unwrap();
    let mut daemon = Command::new(env!("CARGO_BIN_EXE_ferrule-node"));
    daemon.args(["--node-name", "n", "--gc-every", "7", "--root", "/host", "--conflist", "/run/c.conflist"]);
    daemon.arg("--kubeconfig").arg(config).arg("--ferrule").arg(folder.join("ferrule"));
    node.spawn(daemon).unwrap()
}

/// The processes of the running children, once there are both.
fn both(path: &Path) -> [String; 2] {
    let running =
        || -> Vec<(String, String)> { notes(path).into_iter().filter(|(pid, _)| is_alive(pid)).collect() };
    assert!(eventually(LIMIT, || running().len() == 2), "{:?}", notes(path));
    let [(gc, first), (repair, second)] = running().try_into().unwrap();
    assert_eq!([&first, &second], ["gc --yes --every 7 --root /host", "repair --yes --watch --root /host"]);
    [gc, repair]
}

#[test]
fn children_run_again_and_end_with_the_daemon() {
    let node = Node::new().unwrap();
    let (folder, path) = folder("exec sleep 1000");
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let process = daemon(&node, folder.path());
        let [gc, repair] = both(&path);
        kill(Pid::from_raw(gc.parse().unwrap()), Signal::SIGKILL).unwrap();
        assert!(eventually(LIMIT, || !is_alive(&gc)));
        let [again, same] = both(&path);
        assert!(again != gc && same == repair);
        // The process is that of `setpriv`, which has become the daemon.
        kill(Pid::from_raw(process.id().try_into().unwrap()), signal).unwrap();
        assert!(eventually(LIMIT, || !is_alive(&again) && !is_alive(&repair)), "{signal}");
    }
}
