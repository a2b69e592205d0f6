//! The two variants of `iptables`.

use std::fs::{self, Permissions};
use std::os::unix::fs::{PermissionsExt as _, symlink};

use cni_lab::{NodeRuntime, Place as _};
use tempfile::TempDir;

use super::World;

pub(crate) const VARIANTS: [&str; 2] = ["nft", "legacy"];

/// A folder in which `iptables` is of one variant.
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

/// Those of nf_tables, which wait a third of a second between their look at the ruleset and their first change of it, so
/// that others change it meanwhile.
pub(crate) fn slow_nft() -> TempDir {
    let dir = variant("nft");
    for family in ["iptables", "ip6tables"] {
        // Which variant it is, its name says.
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

/// A runtime whose plugins find only that variant.
pub(crate) fn runtime<'w>(world: &'w World, programs: &TempDir) -> NodeRuntime<'w> {
    let mut runtime = world.runtime();
    runtime.runtime.env.push(("PATH".to_owned(), programs.path().display().to_string()));
    runtime
}

/// The nat tables of both families without dates and counts.
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
