//! Wrong usage, broken programs, and folders that cannot be used.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, chown, symlink};
use std::os::unix::process::CommandExt as _;

use cni_lab::go_bin_dir;
use nix::mount::{MsFlags, mount};

use crate::fixture::{Fixture, PROGRAM, Said, in_a_folder, snapshot, visible};

const FROM_V1: &str = "install --from v1 --plugins bridge,host-local,loopback";

#[test]
fn wrong_usage() {
    in_a_folder(|f| {
        f.refuses(2, "unexpected argument '--bogus'", "install --bogus");
        f.refuses(2, "'../x' is no name", "install --from v1 --plugins ../x");
        f.refuses(2, "names none", "install --from v1 --plugins ,");
        f.refuses(2, "no plugin 'nonesuch'", "install --plugins nonesuch");
        f.refuses(1, "there is no such folder", "install --from nowhere");
    });
}

#[test]
fn broken_programs() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge"]);
        let loopback = f.path("v1/loopback");
        let refuses = |words: &str| f.refuses(1, words, FROM_V1);
        fs::set_permissions(&loopback, Permissions::from_mode(0o644)).unwrap();
        refuses("v1/loopback fails at VERSION: Permission denied (os error 13); is it not executable");
        for (script, words) in [
            ("#!/bin/sh\necho broken\nexit 4\n", "v1/loopback fails at VERSION with status 4: broken"),
            ("#!/bin/sh\necho hello\n", "does not answer VERSION with supportedVersions but with: hello"),
            ("#!/bin/sh\n", "but with: nothing"),
            ("#!/bin/sh\nkill -SEGV $$\n", "v1/loopback fails at VERSION (signal: 11"),
            ("", "v1/loopback fails at VERSION"),
        ] {
            f.script("v1/loopback", script);
            refuses(words);
        }
        let real = fs::read(go_bin_dir().unwrap().join("loopback")).unwrap();
        fs::write(&loopback, &real[..5000]).unwrap();
        refuses("v1/loopback fails at VERSION");
        fs::write(&loopback, [&real[..18], &[0x15, 0], &real[20..]].concat()).unwrap();
        refuses(
            "v1/loopback fails at VERSION: Exec format error (os error 8); is it built for another machine?",
        );
        f.script("v1/ferrule", "#!/bin/sh\necho hello\n");
        fs::copy(f.path("v2/loopback"), &loopback).unwrap();
        refuses("v1/ferrule does not answer `ferrule version`");
        fs::remove_file(f.path("v1/ferrule")).unwrap();
        fs::remove_file(&loopback).unwrap();
        refuses("v1/loopback: No such file");
        fs::create_dir(&loopback).unwrap();
        refuses("v1/loopback: Is a directory");
    });
}

#[test]
fn a_program_that_hangs() {
    in_a_folder(|f| {
        f.script("v1/loopback", "#!/bin/sh\nexec sleep 60\n");
        f.refuses(1, "does not answer VERSION within 10 seconds", FROM_V1);
    });
}

#[test]
fn folders_that_are_none() {
    in_a_folder(|f| {
        fs::write(&f.bin, "").unwrap();
        for command in [FROM_V1, "rollback", "uninstall", "status"] {
            f.refuses(1, "is not a folder", command);
            f.with_bin("bin/below").refuses(1, "is not a folder", command);
        }
        let f = &f.with_bin("other");
        fs::create_dir_all(f.bin.join("loopback")).unwrap();
        f.refuses(1, "neither a file nor a link", FROM_V1);
        fs::create_dir(f.path("elsewhere")).unwrap();
        symlink("../elsewhere", f.bin.join(".ferrule")).unwrap();
        f.refuses(1, "is a link", FROM_V1);
    });
}

#[test]
fn a_manifest_of_the_future_is_not_guessed_at() {
    in_a_folder(|f| {
        f.succeeds(FROM_V1);
        let manifest = f.manifest();
        for (text, words) in [
            (manifest.replace("format 1", "format 2"), "is of a newer Ferrule"),
            (manifest + "odd\n", "is damaged: 'odd'"),
        ] {
            fs::write(f.bin.join(".ferrule/manifest"), text).unwrap();
            for command in ["uninstall", "rollback", "status", "install --from v2 --plugins bridge"] {
                f.refuses(1, words, command);
            }
        }
    });
}

#[test]
fn an_ordinary_user() {
    in_a_folder(|f| {
        // The build folder may not be readable for others. Another process copies: a child that another test forks meanwhile would keep the
        // copy open for writing, and it could not start.
        f.sh(&format!("cp {PROGRAM} ferrule"));
        let run = |f: &Fixture| -> Said {
            let mut command = std::process::Command::new(f.path("ferrule"));
            command.args(FROM_V1.split(' ')).arg("--bin-dir").arg(&f.bin).current_dir(&f.dir);
            command.uid(65534).gid(65534).output().unwrap().into()
        };
        fs::create_dir(&f.bin).unwrap();
        let was = snapshot(&f.bin);
        for name in ["bin", "bin/below"] {
            let said = run(&f.with_bin(name));
            assert_eq!((said.status, said.stderr.lines().count()), (1, 1), "{}", said.stderr);
            said.says("is not writable for you");
        }
        assert_eq!(snapshot(&f.bin), was);
        chown(&f.bin, Some(65534), Some(65534)).unwrap();
        let said = run(f);
        assert_eq!(said.status, 0, "{}", said.stderr);
        f.same("v1/bridge", "bridge");
    });
}

/// `ferrule install` fails, and a runtime finds the same files as before.
#[track_caller]
fn install_fails(f: &Fixture, words: &str) {
    let was = visible(&f.bin);
    f.ends(1, FROM_V1).says(words);
    assert_eq!(visible(&f.bin), was);
    f.has_no_leftovers();
}

#[test]
fn a_read_only_file_system() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge"]);
        f.remount(MsFlags::MS_RDONLY);
        f.refuses(1, "read-only", FROM_V1);
    });
}

#[test]
fn a_file_system_without_exec() {
    in_a_folder(|f| {
        fs::create_dir(&f.bin).unwrap();
        f.remount(MsFlags::MS_NOEXEC);
        install_fails(f, "mounted noexec");
    });
}

#[test]
fn a_full_disk() {
    in_a_folder(|f| {
        fs::create_dir(&f.bin).unwrap();
        mount(None::<&str>, &f.bin, Some("tmpfs"), MsFlags::empty(), Some("size=500k")).unwrap();
        f.fake("bin", "old", &["bridge", "loopback"]);
        let mut file = fs::OpenOptions::new().append(true).open(f.path("v1/loopback")).unwrap();
        file.write_all(&vec![b'#'; 600_000]).unwrap();
        drop(file);
        install_fails(f, "cannot copy");
        assert!(!f.exists(".ferrule"));
        f.succeeds("install --from v1 --plugins bridge");
        f.sh("cat /dev/zero >bin/fill 2>error || true");
        let was = visible(&f.bin);
        f.ends(1, "uninstall").says("No space left on device");
        assert_eq!(visible(&f.bin), was);
        f.sh("rm bin/fill");
        f.succeeds("uninstall");
        assert!(fs::read_to_string(f.bin.join("bridge")).unwrap().contains("vold"));
    });
}

#[test]
fn what_was_exchanged_is_put_back_when_a_later_one_fails() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge", "loopback"]);
        f.fake("old", "old", &["bridge", "loopback"]);
        f.pin("loopback");
        install_fails(f, "cannot exchange");
        assert!(!f.exists(".ferrule") && !f.exists("host-local"));
        // A failed update leaves the earlier installation.
        f.succeeds("install --from v2 --plugins bridge");
        let manifest = f.manifest();
        install_fails(f, "cannot exchange");
        assert_eq!(f.manifest(), manifest);
        f.succeeds("rollback");
        f.same("old/bridge", "bridge");
        // New folders go too.
        let f = &f.with_bin("a/b");
        f.script(
            "v1/loopback",
            "#!/bin/sh\ncase $0 in *.ferrule-new/*) exit 1 ;; esac\nexec /run/test/v2/loopback\n",
        );
        f.ends(1, FROM_V1).says("loopback fails at VERSION");
        assert!(!f.path("a").exists());
    });
}
