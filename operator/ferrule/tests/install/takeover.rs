//! Folders that were written by the script `install.sh` that Ferrule had before its command line. They are in
//! `former-script/`: `generate.sh` there says how they were made.

use std::fs;
use std::path::Path;

use crate::fixture::{ALL, Fixture, in_a_folder, snapshot};
use crate::status::line;

/// Copies a folder of the former script to BIN_DIR. The files from before Ferrule are then in `old`.
fn given(f: &Fixture, name: &str) {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/install/former-script");
    f.sh(&format!(
        "rm -rf bin old; cp -r {0}/{name} bin; cp -r {0}/old old; chmod -R go=rX bin old",
        source.display()
    ));
}

/// v1 was installed over an old bridge and a link, then v2.
#[test]
fn an_installation_is_taken_over() {
    in_a_folder(|f| {
        given(f, "installed");
        let was = snapshot(&f.path("old"));
        f.has("v2", &ALL);
        assert_eq!(line(f, 0, "bridge"), "installed v2.0.0 file v1.0.0");
        assert_eq!(line(f, 0, "loopback"), "installed v2.0.0 link v1.0.0");
        f.succeeds("install --from v2 --plugins bridge,host-local,loopback").says("Nothing to do");
        f.succeeds("rollback");
        f.has("v1", &ALL);
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);

        given(f, "installed");
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);

        // An upgrade to this program, and all the way back.
        given(f, "installed");
        let before = snapshot(&f.bin);
        let ours = concat!("bridge: install v", env!("CARGO_PKG_VERSION"), " in place of our v2.0.0");
        f.succeeds("install").says(ours);
        assert!(f.exists("ferrule"));
        f.succeeds("rollback --host-ports keep");
        f.has("v2", &ALL);
        assert!(!f.exists("ferrule") && before.contains("/loopback ") && !f.exists("portmap"));
        f.succeeds("uninstall");
        assert_eq!(snapshot(&f.bin), was);
    });
}

/// The installation of v2 over v1 was killed when it had replaced bridge.
#[test]
fn an_interrupted_installation_is_taken_over() {
    in_a_folder(|f| {
        given(f, "interrupted");
        let was = snapshot(&f.path("old"));
        f.same("v2/bridge", "bridge");
        f.has("v1", &["host-local", "loopback"]);
        assert!(f.bin.join(".ferrule/journal").exists() && f.bin.join(".ferrule-new").exists());
        f.ends(3, "status").says("An installation was interrupted");
        f.succeeds("uninstall --dry-run").says("an earlier run was interrupted; without --dry-run");
        f.ends(0, "install --from v2 --plugins bridge,host-local,loopback").says("bridge: put back");
        f.has("v2", &ALL);
        f.has_no_leftovers();
        f.succeeds("rollback");
        f.has("v1", &ALL);

        given(f, "interrupted");
        f.succeeds("uninstall").says("an earlier run was interrupted");
        assert_eq!(snapshot(&f.bin), was);
        assert_eq!(fs::read_link(f.bin.join("loopback")).unwrap(), Path::new("nowhere"));
    });
}
