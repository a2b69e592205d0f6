//! DEL and GC: undo what the attached file names, in reverse order, then remove the file.

use cni_common::plugin::{DelRequest, Environment, GcRequest};
use cni_common::spec::{CniError, Failures};
use ferrule_kit::state_file::{self, stem};
use ferrule_kubelet::claims::Attached;

use crate::calls::Calls;
use crate::config::Conf;
use crate::file;

/// Undoes the attachment. The records may be gone by now.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let file =
        file::of(&Conf::of_del(call.config).attached, call.config.name(), call.container_id, call.ifname);
    let undone = file::find(&file)?.map_or(Ok(()), |attached| undo(&attached, call.env));
    undone.and_then(|()| file.remove())
}

fn undo(attached: &Attached, env: &Environment) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for step in attached.steps.iter().rev() {
        failures.keep(Calls::new(step, env).del());
    }
    failures.into_result()
}

/// Undoes the network's attachments that are not valid.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let folder = Conf::read(call.config)?.attached;
    let is_valid = |own: &str| call.valid.iter().any(|one| stem(&one.container_id, &one.ifname) == own);
    state_file::collect(&folder, call.config.name(), is_valid, |bytes| match Attached::parse(bytes) {
        Ok(Some(attached)) if attached.network == call.config.name() => {
            undo_lost(&attached, call.env).map(|()| true)
        }
        _ => Ok(false),
    })
}

/// Undoes an attachment whose container no longer exists. `env` has CNI_PATH.
fn undo_lost(attached: &Attached, env: &Environment) -> Result<(), CniError> {
    let Attached { container_id, netns, ifname, .. } = attached.clone();
    undo(attached, &Environment { container_id, netns, ifname, ..env.clone() })
}
