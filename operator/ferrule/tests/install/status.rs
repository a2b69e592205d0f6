//! `ferrule status`, and the name of the program.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use serde_json::Value;

use crate::fixture::{Fixture, PROGRAM, in_a_folder};

/// A plugin's line of `ferrule status`, without the name and with single spaces.
#[track_caller]
pub(crate) fn line(f: &Fixture, status: i32, name: &str) -> String {
    let said = f.ends(status, "status").stdout;
    let line = said.lines().find(|line| line.starts_with(&format!("{name} "))).unwrap();
    line.split_whitespace().skip(1).collect::<Vec<_>>().join(" ")
}

#[test]
fn states() {
    in_a_folder(|f| {
        assert_eq!(line(f, 4, "bridge"), "absent - - -");
        f.fake("bin", "old", &["bridge", "portmap"]);
        assert_eq!(line(f, 4, "bridge"), "foreign - - -");
        f.succeeds("install --from v1 --plugins bridge,loopback");
        f.succeeds("install --from v2 --plugins bridge");
        assert_eq!(line(f, 0, "bridge"), "installed v2.0.0 file v1.0.0");
        assert_eq!(line(f, 0, "loopback"), "installed v1.0.0 none -");
        assert_eq!(line(f, 0, "portmap"), "foreign - - -");
        let document = f.succeeds("status --json").stdout;
        let document: Value = serde_json::from_str(&document).unwrap();
        let bridge =
            document["plugins"].as_array().unwrap().iter().find(|entry| entry["name"] == "bridge").unwrap();
        assert_eq!(
            bridge,
            &serde_json::json!({"name": "bridge", "state": "installed", "version": "v2.0.0", "before": "file",
                "rollback": "v1.0.0"})
        );
        assert_eq!(
            [&document["installed"], &document["interrupted"]],
            [&Value::from(true), &Value::from(false)]
        );
        fs::remove_file(f.bin.join("loopback")).unwrap();
        assert_eq!(line(f, 3, "loopback"), "missing v1.0.0 none -");
        f.fake("bin", "foreign", &["loopback"]);
        assert_eq!(line(f, 3, "loopback"), "changed v1.0.0 none -");
    });
}

/// A runtime gets a CNI error from a renamed program. A user gets the command line under any name but a plugin's.
#[test]
fn the_name_of_the_program_decides() {
    in_a_folder(|f| {
        for name in ["renamed", "bridge"] {
            symlink(PROGRAM, f.path(name)).unwrap();
        }
        let run = |name: &str, command: Option<&str>, arguments: &[&str]| {
            let mut program = Command::new(f.path(name));
            program
                .args(arguments)
                .env_remove("CNI_COMMAND")
                .envs(command.map(|value| ("CNI_COMMAND", value)));
            program.output().unwrap()
        };
        let asked = run("renamed", Some("ADD"), &["plugins"]);
        assert_eq!(asked.status.code(), Some(1));
        let error: Value = serde_json::from_slice(&asked.stdout).unwrap();
        assert!(error["msg"].as_str().unwrap().contains("no plugin \"renamed\" in this program"), "{error}");
        for empty in [None, Some("")] {
            let listed = run("renamed", empty, &["plugins"]);
            assert!(
                listed.status.success() && String::from_utf8(listed.stdout).unwrap().contains("loopback  ")
            );
        }
        let about = run("bridge", None, &["plugins"]);
        assert!(about.status.success() && about.stdout.is_empty());
        assert!(String::from_utf8(about.stderr).unwrap().starts_with("CNI bridge plugin v"));
        let version = run("renamed", None, &["--version"]);
        assert!(String::from_utf8(version.stdout).unwrap().starts_with("ferrule v"));
        let none = run("renamed", None, &[]);
        assert_eq!((none.status.code(), none.stdout.len()), (Some(2), 0));
    });
}
