//! host-local's index goes with our host-local.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::fixture::{Fixture, in_a_folder};

const FROM_V1: &str = "install --from v1 --plugins host-local,loopback";
const DEFAULT: &str = "/var/lib/cni/networks";

/// A folder of host-local with a reservation and its index entry.
fn store(dir: &Path) {
    for folder in ["net", ".ferrule/net"] {
        fs::create_dir_all(dir.join(folder)).unwrap();
    }
    fs::write(dir.join("net/10.0.0.2"), "one\r\neth0").unwrap();
    fs::write(dir.join("net/lock"), "").unwrap();
    if !dir.join(".ferrule/net/one:eth0").is_symlink() {
        symlink("10.0.0.2", dir.join(".ferrule/net/one:eth0")).unwrap();
    }
}

/// Three folders: the default, one that a configuration names, and one more.
fn stores(f: &Fixture) -> [PathBuf; 3] {
    let dirs = [DEFAULT.into(), f.path("named"), f.path("more")];
    dirs.each_ref().iter().for_each(|dir| store(dir));
    fs::create_dir_all(f.path("net.d")).unwrap();
    let ipam = format!(r#"{{"type": "host-local", "dataDir": "{}"}}"#, dirs[1].display());
    let config = format!(r#"{{"plugins": [{{"type": "bridge", "ipam": {ipam}}}]}}"#);
    fs::write(f.path("net.d/10.conflist"), config).unwrap();
    dirs
}

#[test]
fn it_goes_when_another_program_becomes_host_local() {
    in_a_folder(|f| {
        f.fake("bin", "old", &["host-local"]);
        for verb in ["rollback", "uninstall"] {
            f.succeeds(FROM_V1);
            let dirs = stores(f);
            let options = format!("{verb} --conf-dir net.d --data-dir more");
            f.succeeds(&format!("{options} --dry-run"))
                .says("host-local: would remove its index /var/lib/cni/networks/");
            assert!(dirs.iter().all(|dir| dir.join(".ferrule").exists()));
            f.succeeds(&options).says("host-local: remove its index /var/lib/cni/networks/.ferrule\n");
            for dir in dirs {
                assert!(
                    !dir.join(".ferrule").exists() && dir.join("net/10.0.0.2").exists(),
                    "{}",
                    dir.display()
                );
            }
        }
    });
}

#[test]
fn it_stays_with_an_earlier_ferrule() {
    in_a_folder(|f| {
        let [default, ..] = stores(f);
        f.succeeds(FROM_V1);
        f.succeeds("install --from v2 --plugins host-local,loopback");
        f.succeeds("rollback");
        f.succeeds("uninstall --plugins loopback");
        assert!(default.join(".ferrule/net/one:eth0").is_symlink());
    });
}

/// An index that cannot be removed is no failed rollback.
#[test]
fn a_failure_is_a_note() {
    in_a_folder(|f| {
        let [default, ..] = stores(f);
        fs::write(default.join(".ferrule/net/unknown"), "").unwrap();
        f.succeeds(FROM_V1);
        let said = f.succeeds("uninstall");
        assert!(
            said.stderr.contains("host-local: its index /var/lib/cni/networks/.ferrule stays"),
            "{}",
            said.stderr
        );
        assert!(default.join(".ferrule/net/unknown").exists() && !f.exists("host-local"));
    });
}
