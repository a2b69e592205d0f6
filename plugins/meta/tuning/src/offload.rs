//! The key `offload`: features of the container's link that the kernel or the device does instead of the programs, such as
//! checksums and segmentation.

use std::collections::BTreeMap;

use cni_common::netns::Netns;
use cni_common::remark;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::Link;
use ferrule_kernel::netlink::features::{Ethtool, Features};
use ferrule_kit::check::ensure;
use ferrule_kit::socket;
use ferrule_kit::steps::error_of;

/// Features by name, and whether each is on.
pub type Switches = BTreeMap<String, bool>;

/// ethtool's short names, each with the kernel's names or, with a `*`, their beginning.
const GROUPS: [(&str, &str); 7] = [
    ("gro", "rx-gro"),
    ("gso", "tx-generic-segmentation"),
    ("lro", "rx-lro"),
    ("rx", "rx-checksum"),
    ("sg", "tx-scatter-gather*"),
    ("tso", "tx-tcp*"),
    ("tx", "tx-checksum-*"),
];

fn group(key: &str) -> Option<&'static str> {
    GROUPS.iter().find(|(short, _)| *short == key).map(|(_, names)| *names)
}

/// The kernel's names of the features that the configuration switches. One that is configured by the kernel's name
/// does not follow its group.
///
/// # Errors
/// Code 7 if the link has no such feature, or none that can be changed.
fn resolve(configured: &Switches, features: &Features, ifname: &str) -> Result<Switches, CniError> {
    let mut wanted = Switches::new();
    for is_group in [true, false] {
        for (key, on) in configured.iter().filter(|(key, _)| group(key).is_some() == is_group) {
            let beginning = group(key).and_then(|names| names.strip_suffix('*'));
            let is_one = |name: &&String| match beginning {
                Some(beginning) => name.starts_with(beginning),
                None => *name == group(key).unwrap_or(key),
            };
            let mut found = features.changeable.iter().filter(is_one).peekable();
            if found.peek().is_none() {
                let msg = format!("offload: {ifname:?} has no feature {key:?} that can be changed");
                let known = format!("the features are {}", features.changeable.join(", "));
                return Err(CniError::invalid_config(msg).with_details(known));
            }
            wanted.extend(found.map(|name| (name.clone(), *on)));
        }
    }
    Ok(wanted)
}

/// The features of the container's link, and how they change.
pub struct Offload {
    ethtool: Ethtool,
    link: u32,
    ifname: String,
    present: Features,
    wanted: Switches,
    /// The present values of those that change.
    pub former: Switches,
}

impl Offload {
    /// Compares the configuration with the link. `None` if it has no such key.
    ///
    /// # Errors
    /// Those of the kernel, and code 7 for a feature that cannot be changed. Nothing has changed.
    pub fn plan(netns: &Netns, link: &Link, configured: &Switches) -> Result<Option<Self>, CniError> {
        if configured.is_empty() {
            return Ok(None);
        }
        let mut ethtool = socket::ethtool_in(netns)?;
        let present = read(&mut ethtool, link.index, &link.name)?;
        let wanted = resolve(configured, &present, &link.name)?;
        let changes = |(name, on): (&String, &bool)| {
            let is_on = present.wanted.contains(name);
            (is_on != *on).then(|| (name.clone(), is_on))
        };
        let former = wanted.iter().filter_map(changes).collect();
        Ok(Some(Offload { ethtool, link: link.index, ifname: link.name.clone(), present, wanted, former }))
    }

    /// Switches the features. If that fails, the link has its former ones.
    pub fn apply(&mut self) -> Result<(), CniError> {
        self.switch().inspect_err(|_| self.undo())
    }

    fn switch(&mut self) -> Result<(), CniError> {
        let switched = self.ethtool.set(self.link, &self.wanted);
        switched.context(|| format!("set the offload features of {:?}", self.ifname))?;
        self.present = read(&mut self.ethtool, self.link, &self.ifname)?;
        self.check()
    }

    /// Compares the link with the configuration.
    ///
    /// # Errors
    /// The first feature with another value: it has been changed, or it needs another feature.
    pub fn check(&self) -> Result<(), CniError> {
        for (name, wanted) in &self.wanted {
            let is = self.present.active.contains(name);
            ensure(is == *wanted, || {
                let ifname = &self.ifname;
                format!(
                    "Error: Tuning configured offload {name} of {ifname} is {wanted}, current value is {is}"
                )
            })?;
        }
        Ok(())
    }

    /// Gives the link its former features after a failed ADD.
    pub fn undo(&mut self) {
        if let Err(error) = self.ethtool.set(self.link, &self.former) {
            remark!("tuning: after a failed ADD: offload features of {:?}: {error}", self.ifname);
        }
    }
}

/// Gives the link its former features.
pub fn restore(ethtool: &mut Ethtool, link: &Link, former: &Switches) -> Result<(), CniError> {
    let what = || format!("restore the offload features of {:?}", link.name);
    ethtool.set(link.index, former).map_err(|error| error_of(&what(), &error))
}

fn read(ethtool: &mut Ethtool, link: u32, ifname: &str) -> Result<Features, CniError> {
    ethtool.features(link).context(|| format!("read the offload features of {ifname:?}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn switches(pairs: &[(&str, bool)]) -> Switches {
        pairs.iter().map(|(name, on)| ((*name).to_owned(), *on)).collect()
    }

    #[test]
    fn groups_and_single_features() {
        let changeable = ["rx-gro", "rx-gro-list", "tx-tcp-segmentation", "tx-tcp6-segmentation"];
        let features = Features { changeable: changeable.map(str::to_owned).to_vec(), ..Features::default() };
        let resolved = |pairs: &[_]| resolve(&switches(pairs), &features, "eth0");
        assert_eq!(resolved(&[("gro", false)]).unwrap(), switches(&[("rx-gro", false)]));
        assert_eq!(
            resolved(&[("tso", false), ("tx-tcp6-segmentation", true)]).unwrap(),
            switches(&[("tx-tcp-segmentation", false), ("tx-tcp6-segmentation", true)])
        );
        for key in ["tx", "tx-tcp", "rx-gro*", "nonsense", ""] {
            let error = resolved(&[(key, true)]).unwrap_err();
            let msg = format!("offload: \"eth0\" has no feature {key:?} that can be changed");
            assert_eq!((error.code.number(), error.msg), (7, msg));
        }
    }
}
