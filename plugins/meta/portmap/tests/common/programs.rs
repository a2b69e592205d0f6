//! The two variants of `iptables`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use cni_lab::{NodeRuntime, Place as _};
use tempfile::TempDir;

use super::World;

pub(crate) const VARIANTS: [&str; 2] = ["nft", "legacy"];

/// A directory in which `iptables` is this variant.
pub(crate) fn variant(name: &str) -> TempDir {
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
pub(crate) fn slow_nft() -> TempDir {
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

/// A runtime whose plugins find only this variant.
pub(crate) fn runtime<'w>(world: &'w World, programs: &TempDir) -> NodeRuntime<'w> {
    let mut runtime = world.runtime();
    runtime.runtime.env.push(("PATH".to_owned(), programs.path().display().to_string()));
    runtime
}

/// The nat tables of both families, without comments and counters.
pub(crate) fn saved(world: &World, variant: &str) -> String {
    let mut all = String::new();
    for family in ["iptables", "ip6tables"] {
        let text = world.node.tool(&format!("{family}-{variant}-save"), &["-t", "nat"]).unwrap();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let counts = line.find(" [").filter(|_| line.starts_with(':')).unwrap_or(line.len());
            all += &format!("{family} {}\n", &line[..counts]);
        }
    }
    all
}
