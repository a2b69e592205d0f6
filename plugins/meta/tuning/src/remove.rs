//! DEL and GC: restore the link's former attributes, and remove the backup file.

use cni_common::netns::{Netns, Presence};
use cni_common::plugin::{Attachment, DelRequest, GcRequest};
use cni_common::spec::{CniError, Failures};
use ferrule_kernel::netlink::Link;
use ferrule_kit::container::Container;
use ferrule_kit::steps::run_all;

use crate::add::host_end;
use crate::attributes::Attributes;
use crate::backup::{self, Backup, BackupFile};
use crate::config::data_dir_of;
use crate::offload;

/// Restores the link, and removes the file. Uses only `dataDir` of the configuration. Sysctls stay, as in the
/// reference.
///
/// A value that cannot be restored goes to stderr and does not fail DEL: the link is about to be deleted, and a
/// runtime would repeat a failed DEL forever. If DEL does not get as far as the link, the file stays for the next DEL.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let file = BackupFile::new(&data_dir_of(call.config), &Attachment::from(call));
    let netns = match call.netns {
        Presence::Present(netns) => netns,
        Presence::Gone => return file.remove(),
        Presence::Unknown(_) => return Ok(()),
    };
    if let Some(backup) = file.read()? {
        let mut container = Container::open(netns, call.ifname)?;
        let restored = container.interface()?.map(|link| restore(netns, container, &link, &backup));
        if let Some(Err(error)) = restored {
            eprintln!("tuning: failed to restore {:?}: {error}", call.ifname);
        }
    }
    file.remove()
}

fn restore(
    netns: &Netns,
    mut container: Container<'_>,
    link: &Link,
    backup: &Backup,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    failures.keep(run_all(&mut container.socket, backup.link.steps(link)));
    failures.keep(offload::restore(netns, link, &backup.offload));
    let host = backup.host_mtu.map_or(Ok(None), |_| host_end(netns, link));
    if let Some((mut socket, end)) = failures.keep(host).flatten() {
        let mtu = Attributes { mtu: backup.host_mtu, ..Attributes::default() };
        failures.keep(run_all(&mut socket, mtu.steps(&end)));
    }
    failures.into_result()
}

/// Removes the backup files of attachments that are not valid. Their links went with their namespaces.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    backup::collect(&data_dir_of(call.config), call.config.name(), call.valid)
}
