//! The settings of a virtual function (SR-IOV). They belong to the link of its physical function, which stays on the node.

use std::path::Path;

use cni_common::remark;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::vf::Setting;
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kit::check::ensure;
use ferrule_kit::steps::{Step, UndoStack, run_all};
use ferrule_kit::sysfs::{SYS, VirtualFunction, virtual_function};
use serde::{Deserialize, Serialize};

use crate::vf_conf::VfConf;

/// What ADD has changed, as it was before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Former {
    /// The PCI address of the virtual function.
    pub pci_id: String,
    /// [`Setting::numbers`].
    pub settings: Vec<[u32; 4]>,
}

/// A virtual function, with its present settings.
pub struct Vf {
    pci_id: String,
    number: u32,
    /// Name and index of the physical function's link.
    physical: (String, u32),
    present: Vec<Setting>,
}

impl Vf {
    /// The virtual function with this PCI address, which is empty for a device on no PCI bus.
    ///
    /// # Errors
    /// Code 7 if the device is no virtual function; its physical function has no link on the host.
    pub fn find(host: &mut Socket, pci_id: &str) -> Result<Vf, CniError> {
        let found =
            Some(pci_id).filter(|id| !id.is_empty()).and_then(|id| virtual_function(Path::new(SYS), id));
        let VirtualFunction { number, physical } = found.ok_or_else(|| {
            let keys = "vlan, spoofchk, trust, link_state, min_tx_rate and max_tx_rate";
            CniError::invalid_config(format!("{keys} need a virtual function of SR-IOV, the device is none"))
                .with_details(format!("PCI address: {pci_id:?}"))
        })?;
        for name in physical {
            let failed = || format!("look up virtual function {number} of {name:?}");
            let Some(link) = host.link(LinkId::Name(&name)).context(failed)? else { continue };
            // The others represent virtual functions.
            if let Some(present) = host.vf(link.index, number).context(failed)? {
                return Ok(Vf { pci_id: pci_id.to_owned(), number, physical: (name, link.index), present });
            }
        }
        let msg = format!("the physical function of {pci_id:?} has no link on the host");
        Err(CniError::internal(msg).with_details("only through it can the settings be read and changed"))
    }

    /// What [`Vf::apply`] will change, as it is now.
    pub fn former(&self, conf: &VfConf) -> Former {
        let former = self.changes(conf).filter_map(|(_, wanted)| self.like(wanted));
        Former { pci_id: self.pci_id.clone(), settings: former.map(Setting::numbers).collect() }
    }

    /// Gives the virtual function what the configuration wants, or changes nothing.
    ///
    /// # Errors
    /// The kernel's, with the key.
    pub fn apply(&self, host: &mut Socket, conf: &VfConf) -> Result<(), CniError> {
        let steps = self.changes(conf).map(|(key, wanted)| {
            let step = self.step(&format!("{key}: "), wanted);
            match self.like(wanted) {
                Some(former) => step.undone_by(former.request(self.physical.1, self.number)),
                None => step,
            }
        });
        UndoStack::default().run(host, steps.collect())?;
        Ok(())
    }

    /// Checks that the virtual function has what the configuration wants.
    ///
    /// # Errors
    /// The first difference.
    pub fn check(&self, conf: &VfConf) -> Result<(), CniError> {
        let difference = self.changes(conf).next();
        difference.map_or(Ok(()), |(key, wanted)| {
            let present = self.like(wanted).map_or("nothing".to_owned(), |present| present.to_string());
            ensure(false, || format!("{key}: {} has {present}, not {wanted}", self.name()))
        })
    }

    fn changes(&self, conf: &VfConf) -> impl Iterator<Item = (&'static str, Setting)> {
        conf.wanted(&self.present).into_iter().filter(|(_, wanted)| !self.present.contains(wanted))
    }

    fn like(&self, wanted: Setting) -> Option<Setting> {
        self.present.iter().copied().find(|present| present.is_like(wanted))
    }

    fn step(&self, prefix: &str, setting: Setting) -> Step {
        let what = format!("{prefix}failed to give {} {setting}", self.name());
        Step::new(what, setting.request(self.physical.1, self.number))
    }

    fn name(&self) -> String {
        format!("virtual function {} of {:?}", self.number, self.physical.0)
    }
}

/// Gives the virtual function its former settings, if it has others. What cannot be restored goes to standard error, because a
/// runtime would repeat a failed DEL forever.
pub fn restore(host: &mut Socket, former: &Former) {
    if former.settings.is_empty() {
        return;
    }
    let restored = Vf::find(host, &former.pci_id).and_then(|vf| {
        let settings = former.settings.iter().filter_map(|numbers| Setting::of_numbers(*numbers));
        let steps = settings.filter(|one| !vf.present.contains(one)).map(|one| vf.step("", one));
        run_all(host, steps.collect())
    });
    if let Err(error) = restored {
        remark!("host-device: cannot restore the settings of {:?}: {}", former.pci_id, error.msg);
    }
}
