//! Test cases of STATUS.

use std::fs;
use std::time::Duration;

use super::tools::node_in_use;
use crate::call::{Call, Refusal};
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::{PLUGINS, Role, STATEFUL};
use crate::stub::Reply;
use crate::test_case::TestCase;
use crate::test_context::TestContext;
use cni_lab::Place as _;

/// The role of plugins that make an interface.
const INTERFACE: &[Role] = &[Role::Interface];
const IPAM: &[Role] = &[Role::Ipam];
/// The codes of STATUS: ADD cannot be served; containers may also have limited connectivity.
const NOT_READY: &[u64] = &[50, 51];
/// The time limit of STATUS. CRI-O calls it every half second until the node is ready.
const QUICK: Duration = Duration::from_secs(2);

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("STA-01", "a-plugin-in-good-order-is-ready", PLUGINS, ready),
    TestCase::new("STA-01", "ready-while-in-use", PLUGINS, ready_in_use),
    TestCase::new("STA-01", "the-ipam-plugin-is-missing", INTERFACE, delegate_missing).delegating(),
    TestCase::new("STA-01", "no-folder-for-its-state", IPAM, no_folder).only(&["host-local"]),
    TestCase::new("STA-02", "the-ipam-plugin-is-missing", INTERFACE, delegate_missing_code).delegating(),
    TestCase::new("STA-02", "no-folder-for-its-state", IPAM, no_folder_code).only(&["host-local"]),
    TestCase::new("STA-05", "the-ipam-plugin-is-asked", INTERFACE, delegated).delegating(),
    TestCase::new("STA-05", "the-ipam-plugin-is-not-ready", INTERFACE, delegate_not_ready).delegating(),
    TestCase::new("STA-05", "the-ipam-plugin-dies", INTERFACE, delegate_dies).delegating(),
    TestCase::new("STA-06", "an-add-works-although-status-was-never-asked", STATEFUL, never_asked),
    TestCase::new("STA-06", "everything-works-although-status-has-failed", INTERFACE, works_anyway)
        .delegating(),
    TestCase::new("STA-07", "nothing-is-changed", PLUGINS, harmless),
    TestCase::new("STA-07", "nothing-is-made-in-passing", PLUGINS, traceless),
    TestCase::new("STA-07", "quick", PLUGINS, quick),
];

fn ready(test: &TestContext<'_>) -> TestResult {
    test.call("STATUS").run()?.silent()
}

fn never_asked(test: &TestContext<'_>) -> TestResult {
    test.attached(&test.target("pod1")?)?;
    Ok(())
}

fn harmless(test: &TestContext<'_>) -> TestResult {
    let before = test.snapshot()?;
    let answer = test.call("STATUS").run()?;
    answer.ok()?;
    let diff = before.diff(&test.snapshot()?);
    answer.ensure(diff.is_empty(), "no change on the node", diff)
}

/// A system call of these can change something, if it succeeds. The `?` tells strace to ignore the names that
/// the architecture does not have.
const CHANGES: &str = "?open,?openat,?openat2,?creat,?mkdir,?mkdirat,?rmdir,?mknod,?mknodat,?link,?linkat,?symlink,\
    ?symlinkat,?unlink,?unlinkat,?rename,?renameat,?renameat2,?chmod,?fchmod,?fchmodat,?fchmodat2,?chown,?lchown,\
    ?fchown,?fchownat,?truncate,?ftruncate,?utimensat,?setxattr,?lsetxattr,?fsetxattr,?mount,?umount2,?move_mount,\
    ?unshare,?clone,?clone3";

/// Objects that STATUS makes and removes again are not in a snapshot, so this looks at the system calls.
fn traceless(test: &TestContext<'_>) -> TestResult {
    crate::kernel::tools(&["strace"])?;
    node_in_use(test)?;
    let log = test.dir().join("strace.log");
    let script =
        format!("exec strace -f -z -qq -e signal=none -e trace={CHANGES} -o {} @PLUGIN@", log.display());
    let answer = test.call("STATUS").through_script(&script).run()?;
    answer.ok()?;
    let log = fs::read_to_string(log)?;
    // The stub of the IPAM plugin writes to the context's folder.
    let own = test.dir().to_string_lossy();
    let changes: Vec<&str> = log.lines().filter(|line| is_change(line) && !line.contains(&*own)).collect();
    answer.ensure(changes.is_empty(), "no system call that changes something", changes.join("\n"))
}

/// Whether a line of strace is a change. To open for reading or to start a process changes nothing.
fn is_change(line: &str) -> bool {
    let call = line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ');
    let has_any = |flags: &[&str]| flags.iter().any(|flag| call.contains(flag));
    if call.starts_with("open") {
        has_any(&["O_CREAT", "O_TMPFILE", "O_TRUNC", "O_WRONLY", "O_RDWR"]) && !call.contains("\"/dev/")
    } else if call.starts_with("clone") || call.starts_with("unshare") {
        has_any(&["CLONE_NEW"])
    } else {
        true
    }
}

fn ready_in_use(test: &TestContext<'_>) -> TestResult {
    node_in_use(test)?;
    test.call("STATUS").run()?.silent()
}

/// STATUS with a CNI_PATH that does not contain the stubs.
fn without_delegate<'a>(test: &'a TestContext<'_>) -> Call<'a> {
    test.call("STATUS").var("CNI_PATH", test.plugin.dir.to_string_lossy())
}

fn delegate_missing(test: &TestContext<'_>) -> TestResult {
    without_delegate(test).run()?.refused()?;
    Ok(())
}

fn delegate_missing_code(test: &TestContext<'_>) -> TestResult {
    without_delegate(test).run()?.refused()?.code_in(NOT_READY)?;
    Ok(())
}

/// A file takes the place of host-local's folder, which makes every ADD fail.
fn without_folder(test: &TestContext<'_>) -> Result<Refusal, Stop> {
    test.node()?
        .sh("mkdir -p /var/lib/cni && rm -rf /var/lib/cni/networks && touch /var/lib/cni/networks")?;
    let target = test.target("pod1")?;
    if test.add(&target).run()?.output.success() {
        return skip("ADD works without the folder");
    }
    test.call("STATUS").run()?.refused()
}

fn no_folder(test: &TestContext<'_>) -> TestResult {
    without_folder(test).map(drop)
}

fn no_folder_code(test: &TestContext<'_>) -> TestResult {
    without_folder(test)?.code_in(NOT_READY)?;
    Ok(())
}

fn delegated(test: &TestContext<'_>) -> TestResult {
    let answer = test.call("STATUS").run()?;
    answer.silent()?;
    let verbs = test.ipam()?.verbs()?;
    answer.ensure(
        verbs.iter().any(|verb| verb == "STATUS"),
        "a call of the IPAM plugin's STATUS",
        verbs.join(", "),
    )
}

fn delegate_not_ready(test: &TestContext<'_>) -> TestResult {
    let msg = "no addresses today";
    for code in NOT_READY {
        test.ipam()?.on("STATUS", Reply::Error { code: *code, msg, status: 1 })?;
        test.call("STATUS").run()?.refused()?.code_in(&[*code])?.mentions(msg)?;
    }
    Ok(())
}

fn delegate_dies(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("STATUS", Reply::Crash)?;
    test.call("STATUS").run()?.refused()?;
    Ok(())
}

fn works_anyway(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("STATUS", Reply::Error { code: 50, msg: "not ready", status: 1 })?;
    test.call("STATUS").run()?.refused()?;
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.call("STATUS").run()?.refused()?;
    test.check(&target, &result).run()?.silent()?;
    test.detached(&target, &result)?;
    test.call("GC").key("cni.dev/valid-attachments", Vec::<String>::new()).run()?.silent()
}

fn quick(test: &TestContext<'_>) -> TestResult {
    node_in_use(test)?;
    let answer = test.call("STATUS").run()?;
    answer.ok()?;
    let wall = answer.output.wall;
    answer.ensure(wall < QUICK, format!("an end within {QUICK:?}"), format!("{wall:?}"))
}
