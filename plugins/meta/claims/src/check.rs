//! CHECK, repair and STATUS.

use cni_common::plugin::{AddRequest, StatusRequest};
use cni_common::spec::{CniError, Code};
use ferrule_kit::check;
use ferrule_kubelet::claims::Attached;

use crate::calls::Calls;
use crate::config::Conf;
use crate::{file, pod};

/// Checks that `prevResult` has all interfaces of the claims, and each by its plugins.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let result = check::prev_result(call)?;
    let Some(attached) = of_attachment(call)? else { return Ok(()) };
    for step in &attached.steps {
        let is_reported = result.container_interfaces().any(|one| one.name == step.if_name);
        check::ensure(is_reported, || format!("prevResult has no interface {:?} of a claim", step.if_name))?;
        Calls::new(step, call.env).check()?;
    }
    Ok(())
}

/// Repairs each interface by its plugins.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let steps = of_attachment(call)?.map(|attached| attached.steps).unwrap_or_default();
    steps.iter().try_for_each(|step| Calls::new(step, call.env).repair())
}

/// What ADD has made; `None` for a pod without a claim.
fn of_attachment(call: &AddRequest<'_>) -> Result<Option<Attached>, CniError> {
    let conf = Conf::read(call.config)?;
    let file = file::of(&conf.attached, call.config.name(), call.container_id, call.ifname);
    match file::find(&file)? {
        Some(attached) if attached.is_complete() => Ok(Some(attached)),
        Some(_) => Err(CniError::internal("ADD has not completed the claims of the container")),
        None if pod::records(&conf, &call.env.args)?.is_empty() => Ok(None),
        None => Err(CniError::internal("the claims of the container are not attached")),
    }
}

/// Checks the keys, and that the kubelet's state can be read.
pub fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
    let conf = Conf::read(call.config)?;
    pod::kubelet_state(&conf).map(drop).map_err(unavailable)
}
