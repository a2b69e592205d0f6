//! The two variants of `iptables`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use tempfile::TempDir;

use crate::{Node, Place as _};

/// The names of the variants.
pub const VARIANTS: [&str; 2] = ["nft", "legacy"];

/// A directory in which `iptables` is this variant.
pub fn variant(name: &str) -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    for family in ["iptables", "ip6tables"] {
        for suffix in ["", "-save", "-restore"] {
            let target = format!("/usr/sbin/{family}-{name}{suffix}");
            symlink(&target, dir.path().join(format!("{family}{suffix}"))).unwrap();
            symlink(target, dir.path().join(format!("{family}-{name}{suffix}"))).unwrap();
        }
    }
    dir
}

/// iptables-nft that waits 0.3 s after it has read the ruleset, before its first change, so that other
/// processes change the ruleset in between.
pub fn slow_nft() -> TempDir {
    let dir = variant("nft");
    for family in ["iptables", "ip6tables"] {
        // The plugin detects the variant by this name.
        let program = dir.path().join(format!("{family}-nft-slow"));
        let restore = format!("/usr/sbin/{family}-nft-restore");
        let delay = "inject=sendmsg:delay_enter=300000:when=1";
        let script = format!("#!/bin/sh\nexec /usr/bin/strace -o /dev/null -e {delay} {restore} \"$@\"\n");
        fs::write(&program, script).unwrap();
        fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
        let name = dir.path().join(format!("{family}-restore"));
        fs::remove_file(&name).unwrap();
        symlink(program, name).unwrap();
    }
    dir
}

/// The nat tables of both families, without comments and counters.
pub fn saved(node: &Node, variant: &str) -> String {
    saved_table(node, variant, "nat")
}

/// [`saved`] for another table than nat.
pub fn saved_table(node: &Node, variant: &str, table: &str) -> String {
    let mut all = String::new();
    for family in ["iptables", "ip6tables"] {
        let text = node.tool(&format!("{family}-{variant}-save"), &["-t", table]).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let counts = line.find(" [").filter(|_| line.starts_with(':')).unwrap_or(line.len());
            all += &format!("{family} {}\n", &line[..counts]);
        }
    }
    all
}
