//! Tests of the command on our plugins and on the reference's.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::{Mutex, OnceLock, PoisonError};

use cni_conformance::report::document;
use cni_lab::{bin_dir, go_bin_dir};
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

/// Judges a folder. Passes the remarks on, which `./test.sh` counts.
fn judged(dir: &Path, more: &[&str]) -> (Option<i32>, Value) {
    let (status, report, said) = judged_saying(dir, more);
    let _ = std::io::stderr().write_all(said.as_bytes());
    (status, report)
}

/// Judges a folder, one at a time: the suite repeats late failures alone, so no other run may load the
/// machine. Returns standard error too.
fn judged_saying(dir: &Path, more: &[&str]) -> (Option<i32>, Value, String) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut args = vec!["run", "--bin-dir", dir.to_str().unwrap(), "--format", "json"];
    args.extend(more);
    let output = suite(COMMAND, &args);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    (output.status.code(), report, said)
}

/// The newest version, with all test cases.
const NEWEST: &str = "1.1.0";

/// One older version for each other layout of results and set of verbs, only with what depends on the version.
const OLDER: &str =
    "--cni-version 0.2.0 --cni-version 0.4.0 --filter RES- --filter PREV- --filter CHK-0 --filter VER-";

/// The reference is slow. Its plugins with the most deviations, one of each kind, show that the list is right.
const OF_REFERENCE: &str = "--cni-version 1.0.0 --plugin bridge --plugin host-local --plugin sbr";

/// The options of the sample. Empty with FERRULE_WHOLE_SUITE: then the suite judges all versions and plugins.
fn unless_whole(sample: &str) -> Vec<&str> {
    match std::env::var_os("FERRULE_WHOLE_SUITE") {
        Some(_) => Vec::new(),
        None => sample.split(' ').collect(),
    }
}

/// Our plugins in the newest version, judged once for all tests.
fn ours() -> &'static (Option<i32>, Value) {
    static OURS: OnceLock<(Option<i32>, Value)> = OnceLock::new();
    OURS.get_or_init(|| judged(&bin_dir().unwrap(), &["--cni-version", NEWEST]))
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

/// The test runs with these verdicts, as text for a message.
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

fn assert_all_passed((status, report): &(Option<i32>, Value)) {
    let not_passed = not_passed(report, &["fail", "broken", "warn", "known"]);
    assert!(not_passed.is_empty(), "{not_passed:#?}");
    assert_eq!(*status, Some(0));
    assert!(report["summary"]["pass"].as_u64() > Some(400), "{}", report["summary"]);
}

#[test]
fn our_plugins_pass_without_known_deviations() {
    assert_all_passed(ours());
}

#[test]
fn our_plugins_pass_with_older_versions() {
    assert_all_passed(&judged(&bin_dir().unwrap(), &unless_whole(OLDER)));
}

/// The plugins whose kind of link, of the same name, this machine's kernel may lack. `tests/kernel.sh` judges them on a
/// kernel that has it.
const RARE: [&str; 4] = ["dummy", "ipvlan", "vlan", "vrf"];

/// On a machine with everything that the suite needs, only what a version does not have is skipped, and [`RARE`].
#[test]
fn nothing_is_skipped_for_lack_of_means() {
    let is_rare = |case: &Value| {
        let plugin = text(case, "plugin");
        RARE.contains(&plugin) && text(case, "reason") == format!("this kernel has no link type {plugin}")
    };
    let reasons: BTreeMap<&str, usize> = cases(&ours().1)
        .filter(|case| text(case, "verdict") == "skip" && !is_rare(case))
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

/// Two plugins suffice: neither order nor load may change a verdict.
#[test]
fn two_runs_have_the_same_verdicts() {
    let verdicts = |report: &Value| -> BTreeMap<String, String> {
        let chosen = |case: &&Value| ["portmap", "host-local"].contains(&text(case, "plugin"));
        cases(report).filter(chosen).map(|case| (name(case), text(case, "verdict").to_owned())).collect()
    };
    let two = ["--cni-version", NEWEST, "--plugin", "portmap", "--plugin", "host-local", "--jobs", "7"];
    let (_, again) = judged(&bin_dir().unwrap(), &two);
    let (mut first, mut second) = (verdicts(&ours().1), verdicts(&again));
    assert!(second.len() > 100, "{} cases", second.len());
    first.retain(|case, verdict| second.get(case) != Some(verdict) || second.remove(case).is_none());
    assert_eq!(first, second);
}

/// A folder with a wrapper that runs a shell command and then one of our plugins. In the command `$0.log` is
/// a path beside the plugin.
fn wrapped(command: &str, name: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let plugin = folder.path().join(name);
    let original = bin_dir().unwrap().join(name);
    fs::write(&plugin, format!("#!/bin/sh\n{command}\nexec {} \"$@\"\n", original.display())).unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
    folder
}

#[test]
fn a_late_failure_is_repeated_alone() {
    for (jobs, failures) in [("1", 1), ("2", 0)] {
        // The first DEL waits and fails, as if the kernel had delayed it.
        let folder = wrapped(
            "[ $CNI_COMMAND = DEL ] && mkdir \"$0.log\" 2>/dev/null && sleep 3 && exit 1",
            "loopback",
        );
        let (_, report, said) =
            judged_saying(folder.path(), &["--plugin", "loopback", "--filter", "DEL-01/", "--jobs", jobs]);
        let not_passed = not_passed(&report, &["fail", "warn"]);
        assert_eq!(not_passed.len(), failures, "--jobs {jobs}: {not_passed:#?}");
        let remarks = said.matches("REMARK repeated: loopback DEL-01/").count();
        assert_eq!(remarks, 1 - failures, "--jobs {jobs}: {said}");
    }
}

#[test]
fn the_reference_fails_only_as_listed() {
    let known = ["--known-deviations", KNOWN].into_iter().chain(unless_whole(OF_REFERENCE));
    let (status, report) = judged(&go_bin_dir().unwrap(), &known.collect::<Vec<_>>());
    let not_passed = not_passed(&report, &["fail", "broken", "warn"]);
    assert!(not_passed.is_empty(), "{not_passed:#?}");
    assert_eq!(report["unmetDeviations"], Value::Array(Vec::new()));
    assert_eq!(status, Some(0));
    assert!(report["summary"]["known"].as_u64() > Some(20), "{}", report["summary"]);
}

#[test]
fn no_call_runs_in_the_machines_own_namespaces() {
    for name in ["loopback", "bridge", "host-local"] {
        let folder = wrapped("readlink /proc/self/ns/net /proc/self/ns/mnt >> \"$0.log\"", name);
        let verbs = ["ADD-", "CHK-", "DEL-", "GC-"].map(|filter| ["--filter", filter]).concat();
        let (_, report) = judged(folder.path(), &[&["--cni-version", NEWEST], verbs.as_slice()].concat());
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
fn requirements_md_is_up_to_date() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/REQUIREMENTS.md");
    let written = fs::read_to_string(file).unwrap();
    assert_eq!(written, document(), "cni-conformance list --format markdown > conformance/REQUIREMENTS.md");
    assert_eq!(String::from_utf8(suite(COMMAND, &["list", "--format", "markdown"]).stdout).unwrap(), written);
}

#[test]
fn a_failure_report_has_commands_that_repeat_it() {
    // A program that is no plugin, under the name of a plugin that the suite knows.
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
    assert!(run("html").contains("<details class=\"fail\" open><summary>fail: loopback VCMD-01/"));
    assert!(run("markdown").contains("| fail | loopback | VCMD-01/"));
}

#[test]
fn an_unknown_plugin_can_be_described() {
    let folder = TempDir::new().unwrap();
    fs::copy(bin_dir().unwrap().join("loopback"), folder.path().join("loopback")).unwrap();
    // Ferrule's program chooses the plugin by its name, so the unknown plugin is a script that calls it.
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
fn without_root_it_reports_what_it_skips() {
    // Another user must be able to read both programs.
    let folder = TempDir::new().unwrap();
    fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let command = folder.path().join("cni-conformance");
    // Another process copies the program. If this process had the copy open for writing, a child forked
    // meanwhile would inherit the file descriptor, and starting the copy would fail with ETXTBSY.
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
fn wrong_usage_exits_with_2_and_names_the_cause() {
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

/// A copy of the command judges other plugins while an empty file system hides the repository.
/// `./test.sh release` installs it with cargo.
#[test]
fn the_command_needs_nothing_of_this_repository() {
    let folder = TempDir::new().unwrap();
    let command = folder.path().join("cni-conformance");
    assert!(Command::new("cp").arg(COMMAND).arg(&command).status().unwrap().success());
    let root = fs::canonicalize(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).unwrap();
    let hidden = r#"mount -t tmpfs none "$0" && [ -z "$(ls -A "$0")" ] && exec "$@""#;
    let output = Command::new("unshare")
        .args(["--mount", "sh", "-c", hidden])
        .args([&root, &command])
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
