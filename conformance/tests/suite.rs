//! The suite as people use it: the command, on our plugins and on the reference's.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

use conformance::fixture::{bin_dir, go_bin_dir};
use conformance::suite::report::document;
use serde_json::Value;
use tempfile::TempDir;

const COMMAND: &str = env!("CARGO_BIN_EXE_cni-conformance");
const KNOWN: &str =
    concat!(env!("CARGO_MANIFEST_DIR"), "/known-deviations/containernetworking-plugins-1.1.1.txt");

/// Runs the command in an empty folder.
fn suite(command: &str, args: &[&str]) -> Output {
    let folder = TempDir::new().unwrap();
    Command::new(command).args(args).current_dir(&folder).output().unwrap()
}

/// Judges a folder, one at a time: what the suite makes again alone shall be alone.
fn judged(dir: &Path, more: &[&str]) -> (Option<i32>, Value) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut args = vec!["run", "--bin-dir", dir.to_str().unwrap(), "--format", "json"];
    args.extend(more);
    let output = suite(COMMAND, &args);
    let said = String::from_utf8_lossy(&output.stderr);
    (
        output.status.code(),
        serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}")),
    )
}

/// Our plugins, judged once for all tests.
fn ours() -> &'static (Option<i32>, Value) {
    static OURS: OnceLock<(Option<i32>, Value)> = OnceLock::new();
    OURS.get_or_init(|| judged(&bin_dir().unwrap(), &[]))
}

fn cases(report: &Value) -> impl Iterator<Item = &Value> {
    report["cases"].as_array().into_iter().flatten()
}

fn text<'a>(case: &'a Value, key: &str) -> &'a str {
    case[key].as_str().unwrap_or_default()
}

fn name(case: &Value) -> String {
    ["plugin", "trial", "cniVersion"].map(|key| text(case, key)).join(" ")
}

/// Everything that is not as demanded, for a message.
fn not_passed(report: &Value, verdicts: &[&str]) -> Vec<String> {
    cases(report)
        .filter(|case| verdicts.contains(&text(case, "verdict")))
        .map(|case| {
            let [verdict, expected, seen, reason] =
                ["verdict", "expected", "seen", "reason"].map(|key| text(case, key));
            format!("{verdict} {}: expected {expected}, seen {seen} {reason}", name(case))
        })
        .collect()
}

#[test]
fn our_plugins_fail_nothing_and_need_no_excuse() {
    let (status, report) = ours();
    let not_passed = not_passed(report, &["fail", "broken", "warn", "known"]);
    assert!(not_passed.is_empty(), "{not_passed:#?}");
    assert_eq!(*status, Some(0));
    assert!(report["summary"]["pass"].as_u64() > Some(500), "{}", report["summary"]);
}

/// On a machine that has all it takes, only what a version does not have is left out.
#[test]
fn nothing_is_skipped_for_want_of_means() {
    let reasons: BTreeMap<&str, usize> = cases(&ours().1)
        .filter(|case| text(case, "verdict") == "skip")
        .map(|case| text(case, "reason"))
        .fold(BTreeMap::new(), |mut counts, reason| {
            *counts.entry(reason).or_default() += 1;
            counts
        });
    let lacking = reasons.keys().filter(|reason| {
        ["root", "kernel", "installed", "folder has no"].iter().any(|want| reason.contains(want))
    });
    assert_eq!(lacking.count(), 0, "{reasons:#?}");
}

#[test]
fn two_runs_come_to_the_same_verdicts() {
    let verdicts = |report: &Value| -> BTreeMap<String, String> {
        cases(report).map(|case| (name(case), text(case, "verdict").to_owned())).collect()
    };
    let (_, again) = judged(&bin_dir().unwrap(), &["--jobs", "7"]);
    let (mut first, mut second) = (verdicts(&ours().1), verdicts(&again));
    first.retain(|case, verdict| second.get(case) != Some(verdict) || second.remove(case).is_none());
    assert_eq!(first, second);
}

/// A folder with one of our plugins, before which a shell command is run. In it, `$0.log` is a path beside the plugin.
fn behind(command: &str, name: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let plugin = folder.path().join(name);
    let sound = bin_dir().unwrap().join(name);
    fs::write(&plugin, format!("#!/bin/sh\n{command}\nexec {} \"$@\"\n", sound.display())).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn what_failed_late_beside_others_is_judged_again_alone() {
    for (jobs, failures) in [("1", 1), ("2", 0)] {
        // It waits and fails at its first DEL, as if the kernel had kept it waiting.
        let folder =
            behind("[ $CNI_COMMAND = DEL ] && mkdir \"$0.log\" 2>/dev/null && sleep 3 && exit 1", "loopback");
        let (_, report) =
            judged(folder.path(), &["--plugin", "loopback", "--filter", "DEL-01/", "--jobs", jobs]);
        let not_passed = not_passed(&report, &["fail", "warn"]);
        assert_eq!(not_passed.len(), failures, "--jobs {jobs}: {not_passed:#?}");
    }
}

#[test]
fn the_reference_fails_what_is_known_and_nothing_else() {
    let (status, report) = judged(&go_bin_dir().unwrap(), &["--known-deviations", KNOWN]);
    let not_passed = not_passed(&report, &["fail", "broken", "warn"]);
    assert!(not_passed.is_empty(), "{not_passed:#?}");
    assert_eq!(report["unmetDeviations"], Value::Array(Vec::new()));
    assert_eq!(status, Some(0));
    assert!(report["summary"]["known"].as_u64() > Some(20), "{}", report["summary"]);
}

#[test]
fn no_call_is_made_on_the_machine_itself() {
    for name in ["loopback", "bridge", "host-local"] {
        let folder = behind("readlink /proc/self/ns/net /proc/self/ns/mnt >> \"$0.log\"", name);
        let (_, report) = judged(folder.path(), &["--cni-version", "1.1.0"]);
        let seen = fs::read_to_string(folder.path().join(format!("{name}.log"))).unwrap();
        assert!(
            seen.lines().count() > cases(&report).count(),
            "{name} was called {} times",
            seen.lines().count()
        );
        for namespace in ["net", "mnt"] {
            let own = fs::read_link(format!("/proc/self/ns/{namespace}")).unwrap();
            assert!(seen.contains(namespace) && !seen.contains(own.to_str().unwrap()), "{name}: {own:?}");
        }
    }
}

#[test]
fn the_document_is_the_table() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/REQUIREMENTS.md");
    let written = fs::read_to_string(file).unwrap();
    assert_eq!(written, document(), "cni-conformance list --format markdown > conformance/REQUIREMENTS.md");
    assert_eq!(String::from_utf8(suite(COMMAND, &["list", "--format", "markdown"]).stdout).unwrap(), written);
}

#[test]
fn a_failure_is_told_so_that_it_can_be_repeated() {
    // A plugin that is no plugin, in the place of one that the suite knows.
    let folder = TempDir::new().unwrap();
    fs::copy("/bin/true", folder.path().join("loopback")).unwrap();
    let dir = folder.path().to_str().unwrap();
    let run = |format: &str| {
        let output = suite(
            COMMAND,
            &["run", "--bin-dir", dir, "--filter", "VCMD-01", "--cni-version", "1.0.0", "--format", format],
        );
        assert_eq!(output.status.code(), Some(1), "{format}");
        String::from_utf8(output.stdout).unwrap()
    };
    let human = run("human");
    for part in
        ["FAIL loopback VCMD-01/", "source", "expected", "seen", "| env -i", "CNI_COMMAND=VERSION", "again"]
    {
        assert!(human.contains(part), "{part}: {human}");
    }
    let again = human.lines().find_map(|line| line.trim().strip_prefix("again")).unwrap();
    let words: Vec<&str> = again.split_whitespace().skip(1).collect();
    assert_eq!(suite(COMMAND, &words).status.code(), Some(1), "{again}");
    let call = human.lines().find_map(|line| line.trim().strip_prefix("the call")).unwrap();
    assert!(Command::new("sh").args(["-c", call]).status().unwrap().success(), "{call}");
    assert!(run("junit").contains("<failure message="));
    assert!(run("markdown").contains("| fail | loopback | VCMD-01/"));
}

#[test]
fn a_plugin_that_the_suite_does_not_know_can_be_described() {
    let folder = TempDir::new().unwrap();
    fs::copy(bin_dir().unwrap().join("loopback"), folder.path().join("loopback")).unwrap();
    // Another program's name would be none of our plugins', so the unknown one is a script that calls it.
    let script = format!("#!/bin/sh\nexec {}/loopback\n", folder.path().display());
    let plugin = folder.path().join("my-loopback");
    fs::write(&plugin, script).unwrap();
    fs::set_permissions(&plugin, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let describe = folder.path().join(".describe.json");
    fs::write(&describe, r#"{"my-loopback": {"role": "loopback"}}"#).unwrap();
    let run = |more: &[&str]| {
        let (status, report) =
            judged(folder.path(), &[&["--plugin", "my-loopback", "--filter", "RES-"], more].concat());
        assert_eq!(status, Some(0), "{:?}", not_passed(&report, &["fail", "broken"]));
        cases(&report).filter(|case| text(case, "verdict") == "pass").count()
    };
    assert!(run(&["--describe", describe.to_str().unwrap()]) > 0);
}

#[test]
fn without_root_it_says_what_it_leaves_out() {
    // Somebody else must be able to read both programs.
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let command = folder.path().join("cni-conformance");
    // By another process: one that is started here meanwhile would keep the file open for writing, and so busy.
    assert!(Command::new("cp").arg(COMMAND).arg(&command).status().unwrap().success());
    let output = Command::new("setpriv")
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "--"])
        .arg(&command)
        .args(["run", "--bin-dir"])
        .arg(go_bin_dir().unwrap())
        .args([
            "--plugin",
            "bridge",
            "--filter",
            "VCMD-01",
            "--filter",
            "DEL-01",
            "--known-deviations",
            KNOWN,
        ])
        .current_dir("/")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("needs root") && said.contains("passed"), "{said}");
}

#[test]
fn wrong_usage_is_status_2_and_says_why() {
    for (args, part) in [
        (&["run", "--bin-dir", "/nowhere"][..], "/nowhere"),
        (&["run", "--bin-dir", "/usr/lib/cni", "--plugin", "nosuch"], "nosuch"),
        (&["run", "--bin-dir", "/usr/lib/cni", "--filter", "nosuch"], "nothing to try"),
        (&["run", "--cni-version", "0.5.0"], "0.5.0"),
        (&["explain", "NO-99"], "NO-99"),
    ] {
        let output = suite(COMMAND, args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(part), "{args:?}");
    }
    let output = suite(COMMAND, &["explain", "env-05"]);
    assert!(output.status.success() && String::from_utf8_lossy(&output.stdout).contains("CNI_CONTAINERID"));
}

/// What `cargo install` gives works from an empty folder on somebody else's plugins.
#[test]
fn installed_it_needs_nothing_of_this_repository() {
    let root = TempDir::new().unwrap();
    // Unoptimised, in the folder where the tests have been built: it is about what is installed, not about its speed.
    let installed = Command::new(env!("CARGO"))
        .args(["install", "--debug", "--locked", "--quiet", "--path", env!("CARGO_MANIFEST_DIR"), "--root"])
        .arg(root.path())
        .output()
        .unwrap();
    assert!(installed.status.success(), "{}", String::from_utf8_lossy(&installed.stderr));
    let folder = TempDir::new().unwrap();
    let output = Command::new(root.path().join("bin/cni-conformance"))
        .args(["run", "--bin-dir"])
        .arg(go_bin_dir().unwrap())
        .args(["--plugin", "loopback", "--plugin", "bridge", "--filter", "DEL-02", "--filter", "OUT-01"])
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        .current_dir(&folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains(" 0 failed"),
        "{said}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}
