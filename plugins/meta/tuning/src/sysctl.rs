//! The sysctls: names, order, writing and comparing.

use std::collections::BTreeMap;
use std::io;

use cni_common::netns::Netns;
use cni_common::remark;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::sysctl;
use ferrule_kit::check::ensure;
use ferrule_kit::netns::enter;
use serde::{Deserialize, Serialize};

/// `linux/errno-base.h`.
const EIO: i32 = 5;

/// Stands for the interface's name in a key.
pub const IFNAME: &str = "IFNAME";

/// A configured sysctl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sysctl {
    /// The key as the configuration spells it.
    pub key: String,
    /// The path below `/proc/sys`, such as `net/ipv4/conf/eth0/arp_filter`.
    pub name: String,
    /// The value. Empty: the sysctl stays as it is, as in the reference.
    pub value: String,
}

impl Sysctl {
    /// Dots separate the parts of a key, as in the reference. Only a key that begins with `net/` keeps its dots,
    /// because they belong to an interface's name.
    ///
    /// # Errors
    /// Code 7 with the reference's text if the path is not below `/proc/sys/net`.
    fn new((key, value): (String, String), ifname: &str) -> Result<Self, CniError> {
        let path = key.trim_start_matches('/');
        let path = if path.starts_with("net/") { path.to_owned() } else { path.replace('.', "/") };
        let path = path.replace(IFNAME, ifname);
        let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty()).collect();
        let name = parts.join("/");
        if parts.len() < 2 || parts[0] != "net" || parts.iter().any(|part| [".", ".."].contains(part)) {
            return Err(CniError::invalid_config(format!("invalid net sysctl key: {name:?}")));
        }
        Ok(Sysctl { key, name, value })
    }

    /// The present value in the thread's namespace, if it is neither the configured one nor what the kernel made of that.
    fn other_value(&self, kept: &Kept) -> Result<Option<String>, CniError> {
        let Sysctl { name, value, .. } = self;
        if value.is_empty() {
            return Ok(None);
        }
        Ok(match read(name).context(|| format!("read {name}"))? {
            Read::Value(is) if !is_same(&is, value) => {
                let is_kept =
                    kept.get(name).is_some_and(|kept| kept.written == *value && is_same(&kept.read, &is));
                (!is_kept).then_some(is)
            }
            Read::Unset => Some("not set".to_owned()),
            Read::Value(_) | Read::WriteOnly => None,
        })
    }

    /// `all` first, then `default`, then all others: a write to `all` changes the settings of the interfaces.
    fn rank(&self) -> usize {
        match self.name.split('/').nth(3) {
            Some("all") => 0,
            Some("default") => 1,
            _ => 2,
        }
    }
}

/// The sysctls of the top level, with those of `args.cni` merged over them, in the order in which ADD writes them.
///
/// # Errors
/// Code 7 for an invalid key, or for two keys of the top level that name the same sysctl.
pub fn merge(
    top: Vec<(String, String)>,
    args: Vec<(String, String)>,
    ifname: &str,
) -> Result<Vec<Sysctl>, CniError> {
    let mut merged: Vec<Sysctl> = Vec::with_capacity(top.len() + args.len());
    for pair in top {
        let sysctl = Sysctl::new(pair, ifname)?;
        if let Some(other) = merged.iter().find(|other| other.name == sysctl.name) {
            return Err(CniError::invalid_config("duplicated sysctl keys are not allowed")
                .with_details(format!("{:?} and {:?}", other.key, sysctl.key)));
        }
        merged.push(sysctl);
    }
    for pair in args {
        let sysctl = Sysctl::new(pair, ifname)?;
        match merged.iter_mut().find(|other| other.name == sysctl.name) {
            Some(other) => *other = sysctl,
            None => merged.push(sysctl),
        }
    }
    let of = |rank| merged.iter().filter(move |sysctl| sysctl.rank() == rank).cloned();
    Ok((0..=2).flat_map(of).collect())
}

/// Whether the values are equal. The kernel separates several values by tabs.
fn is_same(one: &str, other: &str) -> bool {
    one.split_whitespace().eq(other.split_whitespace())
}

/// The former values of sysctls that ADD has written, in the order of writing. `None` if a value cannot be read.
pub type Former<'a> = Vec<(&'a str, Option<String>)>;

/// A value that the kernel shows in another form than it was written: `8082,8081` as `8081-8082`, `0x200` as `512`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Rewritten {
    /// As the configuration has it.
    pub written: String,
    /// As the kernel showed it right after that.
    pub read: String,
}

/// The rewritten values by the names of their sysctls.
pub type Kept = BTreeMap<String, Rewritten>;

/// What [`write()`] has done.
#[derive(Debug, Default)]
pub struct Written<'a> {
    /// The former values.
    pub former: Former<'a>,
    /// Those of the new values that the kernel shows in another form.
    pub kept: Kept,
}

/// Writes the sysctls in the container. Reads all of them first, so a missing one changes nothing.
///
/// # Errors
/// A sysctl does not exist, or the kernel refuses a value. Those written before are restored.
pub fn write<'a>(netns: &Netns, sysctls: &'a [Sysctl]) -> Result<Written<'a>, CniError> {
    if sysctls.is_empty() {
        return Ok(Written::default());
    }
    enter(netns, || {
        let mut former = Vec::with_capacity(sysctls.len());
        for Sysctl { key, name, value, .. } in sysctls {
            if !value.is_empty() {
                former.push((
                    name.as_str(),
                    value,
                    read(name).context(|| format!("sysctl {key}: read {name}"))?.value(),
                ));
            }
        }
        let mut written = Written::default();
        for (name, value, old) in former {
            if let Err(error) = sysctl::write(name, value).context(|| "sysctl") {
                restore_here(&written.former);
                return Err(error);
            }
            written.former.push((name, old));
            if let Ok(Read::Value(read)) = read(name)
                && !is_same(&read, value)
            {
                let rewritten = Rewritten { written: value.clone(), read };
                written.kept.insert(name.to_owned(), rewritten);
            }
        }
        Ok(written)
    })
}

/// What a sysctl says.
enum Read {
    Value(String),
    /// It is only writable, such as `net/ipv4/route/flush`.
    WriteOnly,
    /// It has no value yet: the kernel answers EIO until the first write of `net/ipv6/conf/IFNAME/stable_secret`.
    Unset,
}

impl Read {
    fn value(self) -> Option<String> {
        if let Read::Value(value) = self { Some(value) } else { None }
    }
}

fn read(name: &str) -> io::Result<Read> {
    match sysctl::read(name) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(Read::WriteOnly),
        Err(error) if error.raw_os_error() == Some(EIO) => Ok(Read::Unset),
        value => value.map(Read::Value),
    }
}

/// Writes the former values after a failed ADD.
pub fn restore(netns: &Netns, former: &Former<'_>) {
    if former.is_empty() {
        return;
    }
    let entered = enter(netns, || {
        restore_here(former);
        Ok(())
    });
    if let Err(error) = entered {
        remark!("tuning: failed to restore sysctls after a failed ADD: {error}");
    }
}

fn restore_here(former: &Former<'_>) {
    for (name, value) in former.iter().rev() {
        if let Some(value) = value
            && let Err(error) = sysctl::write(name, value)
        {
            remark!("tuning: after a failed ADD: {error}");
        }
    }
}

/// Checks that the container's sysctls have the configured values, in any form that ADD has seen.
///
/// # Errors
/// The reference's text with the first one that has another value.
pub fn check(netns: &Netns, sysctls: &[Sysctl], kept: &Kept) -> Result<(), CniError> {
    if sysctls.is_empty() {
        return Ok(());
    }
    enter(netns, || {
        for sysctl @ Sysctl { name, value, .. } in sysctls {
            let other = sysctl.other_value(kept)?;
            ensure(other.is_none(), || {
                let is = other.unwrap_or_default();
                format!(
                    "Error: Tuning configured value of /proc/sys/{name} is {value}, current value is {is}"
                )
            })?;
        }
        Ok(())
    })
}

/// Those of the container's sysctls that have another value than the configured one.
pub fn differing(netns: &Netns, sysctls: &[Sysctl], kept: &Kept) -> Result<Vec<Sysctl>, CniError> {
    if sysctls.is_empty() {
        return Ok(Vec::new());
    }
    enter(netns, || {
        let differs = |sysctl: &Sysctl| Ok(sysctl.other_value(kept)?.map(|_| sysctl.clone()));
        sysctls.iter().filter_map(|sysctl| differs(sysctl).transpose()).collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(keys: &[&str], ifname: &str) -> Vec<String> {
        let pairs = keys.iter().map(|key| ((*key).to_owned(), "1".to_owned())).collect();
        merge(pairs, Vec::new(), ifname).unwrap().into_iter().map(|sysctl| sysctl.name).collect()
    }

    #[test]
    fn keys_become_paths() {
        for (key, name) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("/net/core//somaxconn", "net/core/somaxconn"),
            ("net.ipv4/conf/all.arp_filter", "net/ipv4/conf/all/arp_filter"),
            ("net.ipv4.conf.IFNAME.arp_filter", "net/ipv4/conf/x.1/arp_filter"),
            ("net/ipv4/conf/IFNAME/arp_filter", "net/ipv4/conf/x.1/arp_filter"),
            ("net/ipv4/conf/x.2/arp_filter", "net/ipv4/conf/x.2/arp_filter"),
        ] {
            assert_eq!(names(&[key], "x.1"), [name], "{key}");
        }
    }

    #[test]
    fn keys_outside_of_net_are_refused() {
        for (key, shown) in [
            ("kernel.shmmax", "kernel/shmmax"),
            ("net/../kernel/shmmax", "net/../kernel/shmmax"),
            ("network.x", "network/x"),
            ("net", "net"),
            ("", ""),
            ("net/ipv4/./x", "net/ipv4/./x"),
        ] {
            let error = merge(vec![(key.to_owned(), "1".to_owned())], Vec::new(), "eth0").unwrap_err();
            assert_eq!(error.msg, format!("invalid net sysctl key: {shown:?}"), "{key}");
        }
    }

    #[test]
    fn all_and_default_come_first() {
        let keys = [
            "net.ipv4.conf.IFNAME.forwarding",
            "net.core.somaxconn",
            "net.ipv6.conf.default.forwarding",
            "net.ipv4.conf.all.forwarding",
        ];
        let expected = [
            "net/ipv4/conf/all/forwarding",
            "net/ipv6/conf/default/forwarding",
            "net/ipv4/conf/eth0/forwarding",
            "net/core/somaxconn",
        ];
        assert_eq!(names(&keys, "eth0"), expected);
    }

    #[test]
    fn two_spellings_of_a_sysctl_are_duplicates() {
        let pair = |key: &str| (key.to_owned(), "1".to_owned());
        let twice = vec![pair("net.core.somaxconn"), pair("net/core/somaxconn")];
        let error = merge(twice, Vec::new(), "eth0").unwrap_err();
        assert!(error.msg.contains("duplicated") && error.details.contains("net/core/somaxconn"), "{error}");
    }
}
