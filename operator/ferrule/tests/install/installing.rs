//! Installing.

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::process::Command;

use crate::fixture::{ALL, Fixture, PROGRAM, in_a_folder, snapshot, visible};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// The names of the plugins in the program.
fn plugins(f: &Fixture) -> Vec<String> {
    let listed = Command::new(PROGRAM).arg("plugins").current_dir(&f.dir).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    listed.lines().map(|line| line.split(' ').next().unwrap().to_owned()).collect()
}

/// However many names the program has, it is one file on the disk.
#[test]
fn installs_itself_as_links_of_one_file() {
    in_a_folder(|f| {
        let bin = f.with_bin("a/b/c");
        let f = &bin;
        f.succeeds("install");
        let mut names = plugins(f);
        assert!(names.len() >= 5, "{names:?}");
        names.push("ferrule".to_owned());
        let meta = |name: &String| fs::symlink_metadata(f.bin.join(name)).unwrap();
        for name in &names {
            assert_eq!((meta(name).mode(), meta(name).ino()), (0o100_755, meta(&names[0]).ino()), "{name}");
            assert!(f.manifest().contains(&format!("plugin {name} none ")));
        }
        assert_eq!(meta(&names[0]).nlink() as usize, names.len());
        assert!(fs::read(f.bin.join("ferrule")).unwrap() == fs::read(PROGRAM).unwrap());
        f.has_no_leftovers();
        let was = snapshot(&f.bin);
        f.succeeds("install").says("Nothing to do");
        assert_eq!(snapshot(&f.bin), was);
        // The installed tool goes back on its own.
        let tool = Command::new(f.bin.join("ferrule")).arg("uninstall").arg("--bin-dir").arg(&f.bin).status();
        assert!(tool.unwrap().success());
        assert_eq!(fs::read_dir(&f.bin).unwrap().count(), 0);
    });
}

/// Some file systems refuse link(2), among them FAT and some FUSE file systems.
#[test]
fn without_hard_links_every_name_is_a_copy() {
    in_a_folder(|f| {
        let inject = "inject=?link,?linkat:error=EPERM";
        let strace = ["-qq", "-o", "/dev/null", "-e", "trace=?link,?linkat", "-e", inject];
        let mut command = Command::new("strace");
        command.args(strace).arg(PROGRAM).args(["install", "--plugins", "bridge", "--bin-dir"]).arg(&f.bin);
        assert!(command.output().unwrap().status.success());
        for name in ["bridge", "ferrule"] {
            assert_eq!(fs::metadata(f.bin.join(name)).unwrap().nlink(), 1);
        }
        f.succeeds("install --plugins bridge").says("Nothing to do");
    });
}

#[test]
fn a_subset_brings_the_tool() {
    in_a_folder(|f| {
        f.succeeds("install --plugins loopback");
        let all = visible(&f.bin);
        assert!(all.contains("/loopback ") && all.contains("/ferrule ") && all.lines().count() == 3, "{all}");
        // The tool goes with the last plugin.
        f.succeeds("uninstall --plugins loopback");
        assert_eq!(fs::read_dir(&f.bin).unwrap().count(), 0);
        f.succeeds("install --from v1 --plugins loopback,bridge");
        f.has("v1", &["bridge", "loopback"]);
        assert!(!f.exists("host-local") && !f.exists("ferrule"));
    });
}

#[test]
fn from_a_folder() {
    in_a_folder(|f| {
        fs::set_permissions(f.path("v1/bridge"), Permissions::from_mode(0o700)).unwrap();
        let mut command = Command::new("sh");
        let line = format!(
            "umask 077 && exec {PROGRAM} install --from v1 --plugins '{}' --bin-dir bin",
            ALL.join(" ")
        );
        assert!(command.args(["-c", &line]).current_dir(&f.dir).output().unwrap().status.success());
        f.has("v1", &ALL);
        for path in ["bridge", "loopback", ".", ".ferrule", ".ferrule/saved"] {
            assert_eq!(mode(&f.bin.join(path)), 0o755, "{path}");
        }
        let manifest = f.manifest();
        assert!(ALL.iter().all(|name| manifest.contains(&format!("plugin {name} none "))), "{manifest}");
        assert_eq!(manifest.matches(" v1.0.0\n").count(), 3);
        f.has_no_leftovers();
        let inode = fs::metadata(f.bin.join("bridge")).unwrap().ino();
        f.succeeds("install --from v1 --plugins bridge,host-local,loopback").says("Nothing to do");
        assert_eq!(fs::metadata(f.bin.join("bridge")).unwrap().ino(), inode);
        // A folder with the command line brings it along.
        fs::copy(PROGRAM, f.path("v1/ferrule")).unwrap();
        f.succeeds("install --from v1 --plugins bridge,host-local,loopback").says("ferrule: install v");
        f.same("v1/ferrule", "ferrule");
    });
}

#[test]
fn a_dry_run_changes_nothing() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge"]);
        let was = snapshot(&f.dir);
        let said = f.succeeds("install --from v1 --dry-run --plugins bridge,loopback");
        said.says("bridge: would install v1.0.0 and keep the file that is there now");
        said.says("loopback: would install v1.0.0\n");
        f.succeeds("install --dry-run").says("portmap: would install v");
        assert_eq!(snapshot(&f.dir), was);
        f.succeeds("install --from v1 --plugins bridge,loopback");
        let was = snapshot(&f.dir);
        let said = f.succeeds("rollback --dry-run");
        said.says("bridge: would put back");
        said.says("loopback: would remove");
        f.succeeds("uninstall --dry-run");
        assert_eq!(snapshot(&f.dir), was);
        f.with_bin("none").succeeds("install --from v1 --dry-run --plugins bridge");
        assert_eq!(snapshot(&f.dir), was);
    });
}

#[test]
fn other_files_and_identical_files_are_kept() {
    in_a_folder(|f| {
        f.fake("bin", "other", &["dhcp", "vlan"]);
        fs::copy(f.path("v1/bridge"), f.bin.join("bridge")).unwrap();
        fs::set_permissions(f.bin.join("bridge"), Permissions::from_mode(0o711)).unwrap();
        let was = snapshot(&f.bin);
        f.succeeds("install --from v1 --plugins bridge,loopback");
        assert_eq!(mode(&f.bin.join("bridge")), 0o755);
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
    });
}

#[test]
fn a_lost_execute_bit_is_mended() {
    in_a_folder(|f| {
        f.succeeds("install --from v1 --plugins bridge");
        fs::set_permissions(f.bin.join("bridge"), Permissions::from_mode(0o644)).unwrap();
        f.ends(3, "status").says("not executable");
        f.succeeds("install --from v1 --plugins bridge");
        assert_eq!(mode(&f.bin.join("bridge")), 0o755);
    });
}

/// The daemons are programs of their own. Each comes and goes with a plugin.
#[test]
fn a_daemon_comes_with_its_plugin() {
    for (plugin, daemon) in [("dhcp", "ferrule-dhcp"), ("host-device", "ferrule-nic")] {
        in_a_folder(|f| {
            let with_plugin = format!("install --from v1 --plugins {plugin}");
            let file = format!("v1/{daemon}");
            f.fake("v1", "1.0.0", &[plugin]);
            f.script(
                &file,
                &format!("#!/bin/sh\n[ \"$1\" = -h ] && echo Usage of {daemon} v1.0.0, or more:\n"),
            );
            f.succeeds("install --from v1 --plugins bridge");
            assert!(!f.exists(daemon));
            f.succeeds(&with_plugin);
            f.has("v1", &[plugin, daemon]);
            let row = format!("plugin {daemon} none ");
            assert!(f.manifest().lines().any(|line| line.starts_with(&row) && line.ends_with(" v1.0.0")));
            f.succeeds("rollback");
            assert!(!f.exists(daemon) && f.exists("bridge"));
            f.succeeds(&with_plugin);
            f.succeeds(&format!("uninstall --plugins {plugin}"));
            assert!(!f.exists(daemon) && f.exists("bridge"));
            f.script(&file, "#!/bin/sh\nexit 1\n");
            f.refuses(1, daemon, &with_plugin);
        });
    }
}
