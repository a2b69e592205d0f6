//! Commands that are killed, or whose system calls fail, at each step in turn.

use std::fs;
use std::path::Path;
use std::process::Command;

use cni_lab::{KillPoint, Machine, bin_dir_for};
use cni_runner::Exec;

use crate::fixture::{Fixture, PROGRAM, Said, in_a_folder, snapshot, visible};
use crate::host_ports::with_portmap;

/// bridge is there before, and loopback is not.
const NAMES: [&str; 2] = ["bridge", "loopback"];
const FROM_V1: &str = "install --from v1 --plugins bridge,loopback";
const FROM_V2: &str = "install --from v2 --plugins bridge,loopback";

/// The call as [`KillPoint`] makes it. The words are those of [`Fixture::command`].
fn call(f: &Fixture, program: &Path, command: &str) -> Exec {
    let mut exec = Exec::new(program, "").without("CNI_COMMAND");
    let command = f.command(command);
    exec.arguments = command.get_args().map(|word| word.to_str().unwrap().to_owned()).collect();
    // strace starts the call in the working directory of the tests.
    for word in &mut exec.arguments {
        if f.path(word).join("bridge").exists() {
            *word = f.path(word).display().to_string();
        }
    }
    exec
}

/// Makes the call once, then `step` at each of its kill points. Before each time, the folder is as it is now.
fn at_each_step(f: &Fixture, exec: &Exec, mut step: impl FnMut(&KillPoint)) {
    f.sh("cp -a bin start");
    let points = KillPoint::all(&Machine, exec).unwrap();
    assert!(points.len() > 20, "only {points:?}: the steps are not reached");
    for point in points {
        f.sh("rm -rf bin; cp -a start bin");
        step(&point);
    }
}

/// Fails unless each name leads to a complete program of one of the folders, which answers VERSION; or to nothing, if
/// one of the folders has nothing either.
fn is_working(f: &Fixture, names: &[&str], folders: [&str; 2], point: &KillPoint) {
    for name in names {
        let content = |path: &Path| fs::read(path).ok();
        let now = content(&f.bin.join(name));
        assert!(
            folders.iter().any(|folder| content(&f.path(folder).join(name)) == now),
            "{point}: {name} is neither old nor new"
        );
        if now.is_some() {
            answers_version(&f.bin.join(name), point);
        }
    }
}

fn answers_version(program: &Path, point: &KillPoint) {
    let mut exec = Exec::new(program, "VERSION").stdin("{\"cniVersion\":\"1.0.0\"}");
    if program.ends_with("ferrule") {
        exec = exec.without("CNI_COMMAND");
        exec.arguments = vec!["version".to_owned()];
    }
    let output = exec.run().unwrap();
    assert!(output.status.success(), "{point}: {} does not answer: {output:?}", program.display());
}

/// Installs v1. Returns what a runtime finds then.
fn with_v1(f: &Fixture) -> String {
    f.fake("bin", "old", &["bridge"]);
    f.sh("cp -a bin old");
    f.succeeds(FROM_V1);
    visible(&f.bin)
}

#[test]
fn a_killed_installation_can_be_run_again_or_taken_back() {
    in_a_folder(|f| {
        let was = with_v1(f);
        let exec = call(f, PROGRAM.as_ref(), FROM_V2);
        at_each_step(f, &exec, |point| {
            point.kill(&Machine, &exec).unwrap();
            is_working(f, &NAMES, ["v1", "v2"], point);
            f.sh("rm -rf twin; cp -a bin twin");
            f.succeeds(FROM_V2);
            f.has("v2", &NAMES);
            f.has_no_leftovers();
            f.succeeds("rollback");
            assert_eq!(visible(&f.bin), was, "{point}: rollback leads elsewhere");
            f.sh("rm -rf bin; mv twin bin");
            f.succeeds("uninstall");
            assert_eq!(snapshot(&f.bin), snapshot(&f.path("old")), "{point}: uninstall leads elsewhere");
        });
    });
}

/// The static program, which is much smaller than the one of this test.
#[test]
fn a_killed_installation_of_the_program_itself_can_be_run_again() {
    in_a_folder(|f| {
        let program = bin_dir_for(|_| true).unwrap().join("ferrule");
        f.fake("bin", "old", &["bridge"]);
        f.sh("cp -a bin old");
        let names = ["bridge", "loopback", "ferrule"];
        fs::create_dir(f.path("new")).unwrap();
        for name in names {
            fs::copy(&program, f.path("new").join(name)).unwrap();
        }
        let exec = call(f, &program, "install --plugins bridge,loopback");
        at_each_step(f, &exec, |point| {
            point.kill(&Machine, &exec).unwrap();
            is_working(f, &names, ["old", "new"], point);
            let again: Said = Command::new(&program).args(&exec.arguments).output().unwrap().into();
            assert_eq!(again.status, 0, "{point}: {}", again.stderr);
            f.has("new", &names);
            f.has_no_leftovers();
        });
        f.succeeds("uninstall --host-ports keep");
        assert_eq!(snapshot(&f.bin), snapshot(&f.path("old")));
    });
}

#[test]
fn a_killed_rollback_can_be_run_again() {
    in_a_folder(|f| {
        let was = with_v1(f);
        f.succeeds(FROM_V2);
        let exec = call(f, PROGRAM.as_ref(), "rollback");
        at_each_step(f, &exec, |point| {
            point.kill(&Machine, &exec).unwrap();
            is_working(f, &NAMES, ["v1", "v2"], point);
            // It may have been complete.
            let again = f.run("rollback");
            assert!(
                again.status == 0 || again.stderr.contains("no installation"),
                "{point}: {}",
                again.stderr
            );
            assert_eq!(visible(&f.bin), was, "{point}");
            f.has_no_leftovers();
        });
    });
}

/// And it never leaves host ports to a program that does not know them.
#[test]
fn a_killed_uninstallation_can_be_run_again() {
    in_a_folder(|f| {
        with_portmap(f);
        f.sh("rm bin/bridge old/bridge");
        f.succeeds("install --from v1 --plugins bridge,portmap");
        let exec = call(f, PROGRAM.as_ref(), "uninstall");
        at_each_step(f, &exec, |point| {
            fs::write(f.path("handed"), "").unwrap();
            point.kill(&Machine, &exec).unwrap();
            is_working(f, &["bridge", "portmap"], ["v1", "old"], point);
            let handed = fs::read_to_string(f.path("handed")).unwrap();
            let is_old = fs::read(f.bin.join("portmap")).unwrap() == fs::read(f.path("old/portmap")).unwrap();
            assert!(!is_old || handed.contains("hand-back there"), "{point}: {handed}");
            f.succeeds("uninstall");
            assert_eq!(snapshot(&f.bin), snapshot(&f.path("old")), "{point}");
        });
    });
}

#[test]
fn an_installation_that_fails_anywhere_is_all_or_nothing() {
    in_a_folder(|f| {
        let was = with_v1(f);
        let exec = call(f, PROGRAM.as_ref(), FROM_V2);
        at_each_step(f, &exec, |point| {
            match point.fail(&Machine, &exec).unwrap().map(|status| status.code()) {
                None => {}
                Some(Some(0)) => f.has("v2", &NAMES),
                // Rust's runtime aborts if its own first poll fails.
                Some(Some(1) | None) => assert_eq!(visible(&f.bin), was, "{point}"),
                Some(other) => panic!("{point}: {other:?}"),
            }
            f.succeeds("uninstall");
            assert_eq!(snapshot(&f.bin), snapshot(&f.path("old")), "{point}: uninstall leads elsewhere");
        });
    });
}

/// SIGTERM arrives while the second of three files changes.
#[test]
fn a_signal_restores_too() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge"]);
        let was = snapshot(&f.bin);
        // The saved file, the journal, bridge, host-local.
        let inject = "inject=?rename,?renameat,?renameat2:signal=TERM:when=4";
        let mut strace = Command::new("strace");
        strace.args([
            "-qq",
            "-o",
            "/dev/null",
            "-e",
            "trace=?rename,?renameat,?renameat2",
            "-e",
            inject,
            PROGRAM,
        ]);
        let install = f.command("install --from v1 --plugins bridge,host-local,loopback");
        let said: Said = strace.args(install.get_args()).current_dir(&f.dir).output().unwrap().into();
        assert_eq!(said.status, 143, "{}{}", said.stdout, said.stderr);
        for words in ["putting back", "bridge: put back", "host-local: put back"] {
            assert!(said.stderr.contains(words), "{}", said.stderr);
        }
        assert!(!said.stderr.contains("loopback"));
        assert_eq!(snapshot(&f.bin), was);
    });
}
