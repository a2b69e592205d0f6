//! Rollback and uninstall.

use std::fs::{self, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;

use crate::fixture::{ALL, Fixture, in_a_folder, snapshot, visible};

const FROM_V1: &str = "install --from v1 --plugins bridge,host-local,loopback";
const FROM_V2: &str = "install --from v2 --plugins bridge,host-local,loopback";

fn append(path: &Path) {
    fs::OpenOptions::new().append(true).open(path).unwrap().write_all(b"# changed\n").unwrap();
}

/// A folder with an older bridge, and its snapshot.
fn with_old_bridge(f: &Fixture) -> String {
    f.fake("bin", "old", &["bridge"]);
    f.fake("old", "old", &["bridge"]);
    snapshot(&f.bin)
}

#[test]
fn uninstall_restores_owner_mode_and_time() {
    in_a_folder(|f| {
        with_old_bridge(f);
        f.sh("chmod 4710 bin/bridge; chown 7:8 bin/bridge; chmod 4710 bin/bridge; touch -d 2020-02-02 bin/bridge");
        let was = snapshot(&f.bin);
        f.succeeds(FROM_V1);
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
        let meta = fs::metadata(f.bin.join("bridge")).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mode() & 0o7777), (7, 8, 0o4710));
        f.sh("[ \"$(stat -c %y bin/bridge | cut -c 1-10)\" = 2020-02-02 ]");
        f.succeeds("uninstall").says("Nothing to do");
    });
}

#[test]
fn originals_survive_many_installations() {
    in_a_folder(|f| {
        let was = with_old_bridge(f);
        for (round, command) in [("v1", FROM_V1), ("v2", FROM_V2), ("v1", FROM_V1), ("v2", FROM_V2)] {
            f.succeeds(command);
            f.has(round, &ALL);
        }
        let saved = fs::read_dir(f.bin.join(".ferrule/saved")).unwrap();
        let saved =
            saved.filter(|file| file.as_ref().unwrap().file_name().to_str().unwrap().starts_with("bridge."));
        // The original and the last.
        assert_eq!(saved.count(), 2);
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
    });
}

#[test]
fn rollback_goes_back_one_installation() {
    in_a_folder(|f| {
        let was = with_old_bridge(f);
        f.succeeds(FROM_V1);
        f.succeeds(FROM_V2).says("bridge: install v2.0.0 in place of our v1.0.0");
        f.succeeds("rollback");
        f.has("v1", &ALL);
        assert!(f.manifest().contains(" v1.0.0\n") && !f.manifest().contains(" v2.0.0\n"));
        f.refuses(1, "no installation", "rollback");
        f.succeeds(FROM_V1).says("Nothing to do");
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
        f.succeeds(FROM_V1);
        f.succeeds("rollback");
        assert_eq!(snapshot(&f.bin), was);
        f.refuses(1, "no installation", "rollback");
    });
}

#[test]
fn rollback_and_uninstall_of_a_subset() {
    in_a_folder(|f| {
        f.succeeds(FROM_V1);
        f.succeeds(FROM_V2);
        f.succeeds("rollback --plugins bridge");
        f.same("v1/bridge", "bridge");
        f.same("v2/loopback", "loopback");
        f.refuses(1, "bridge: there is nothing to take back", "rollback --plugins bridge");
        f.succeeds("uninstall --plugins bridge");
        assert!(!f.exists("bridge"));
        f.same("v2/loopback", "loopback");
        f.succeeds("rollback");
        f.same("v1/loopback", "loopback");
        f.succeeds("install --from v2 --plugins loopback");
        // Only what the last installation replaced.
        f.succeeds("rollback");
        f.has("v1", &["host-local", "loopback"]);
        f.succeeds("uninstall");
        assert!(!f.exists(".ferrule"));
    });
}

#[test]
fn a_link_is_put_back_as_a_link() {
    in_a_folder(|f| {
        fs::create_dir(&f.bin).unwrap();
        symlink("../v2/bridge", f.bin.join("bridge")).unwrap();
        symlink("nowhere", f.bin.join("loopback")).unwrap();
        let was = snapshot(&f.bin);
        f.succeeds(FROM_V1);
        assert!(!fs::symlink_metadata(f.bin.join("bridge")).unwrap().is_symlink());
        f.succeeds(FROM_V2);
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
    });
}

#[test]
fn a_file_changed_since_is_left_alone() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["bridge", "loopback"]);
        f.fake("old", "old", &["bridge", "loopback"]);
        f.succeeds(FROM_V1);
        append(&f.bin.join("bridge"));
        fs::copy(f.bin.join("bridge"), f.path("changed")).unwrap();
        for verb in ["rollback", "uninstall"] {
            f.ends(3, verb).says("bridge: left alone");
            f.same("changed", "bridge");
            f.same("old/loopback", "loopback");
        }
        f.succeeds("uninstall --force");
        f.same("old/bridge", "bridge");
        assert!(!f.exists(".ferrule"));
        f.succeeds(FROM_V1);
        append(&f.bin.join("bridge"));
        f.succeeds("rollback --force");
        f.same("old/bridge", "bridge");
    });
}

#[test]
fn a_file_removed_since_is_left_removed() {
    in_a_folder(|f| {
        with_old_bridge(f);
        f.succeeds(FROM_V1);
        fs::remove_file(f.bin.join("bridge")).unwrap();
        fs::remove_file(f.bin.join("loopback")).unwrap();
        f.ends(3, "uninstall").says("loopback: is already what it was before");
        assert!(!f.exists("bridge") && !f.exists("host-local"));
        f.succeeds("uninstall --force");
        f.same("old/bridge", "bridge");
    });
}

#[test]
fn installing_over_a_foreign_change_can_be_rolled_back() {
    in_a_folder(|f| {
        with_old_bridge(f);
        f.succeeds(FROM_V1);
        f.fake("bin", "foreign", &["bridge"]);
        f.fake("foreign", "foreign", &["bridge"]);
        f.succeeds(FROM_V2)
            .says("bridge: install v2.0.0 in place of a file that is not what we installed last");
        f.succeeds("rollback");
        f.same("foreign/bridge", "bridge");
        f.ends(3, "uninstall");
        f.same("foreign/bridge", "bridge");
        f.succeeds("uninstall --force");
        f.same("old/bridge", "bridge");
    });
}

#[test]
fn a_later_write_to_the_original_by_another_name_is_not_kept() {
    in_a_folder(|f| {
        with_old_bridge(f);
        fs::hard_link(f.bin.join("bridge"), f.path("other-name")).unwrap();
        f.succeeds(FROM_V1);
        append(&f.path("other-name"));
        f.succeeds("uninstall");
        f.same("old/bridge", "bridge");
    });
}

#[test]
fn a_damaged_copy_is_never_put_back() {
    in_a_folder(|f| {
        with_old_bridge(f);
        f.succeeds(FROM_V1);
        f.sh("for file in bin/.ferrule/saved/bridge.*; do echo damage >>$file; done");
        let was = visible(&f.bin);
        f.ends(1, "uninstall").says("missing or damaged");
        f.sh("rm bin/.ferrule/saved/bridge.*");
        f.ends(1, "rollback").says("missing or damaged");
        assert_eq!(visible(&f.bin), was);
        f.has_no_leftovers();
        fs::set_permissions(f.bin.join("bridge"), Permissions::from_mode(0o755)).unwrap();
    });
}
