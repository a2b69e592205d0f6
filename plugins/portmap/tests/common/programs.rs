//! The two variants of `iptables`.

use std::os::unix::fs::symlink;

use conformance::fixture::{NodeRuntime, Place as _};
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
