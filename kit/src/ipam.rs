//! Calls of the IPAM plugin, for networks that may have none; and a check that the IPAM plugins share.

use cni_common::netns::ContainerNetns;
use cni_common::plugin::{AddRequest, DelRequest, Delegate, Environment, StatusRequest, Verb};
use cni_common::remark;
use cni_common::spec::version::Layout;
use cni_common::spec::{AddResult, CniError, Code, Failures, NetConf, SpecVersion};

/// The IPAM plugin of an ADD. `None` if the network has no IPAM.
///
/// # Errors
/// Code 7 if a network without IPAM has a version whose results need an address. The reference's tests
/// compare the whole text, so the reason goes to standard error.
pub fn of_add<'a>(call: &AddRequest<'a>) -> Result<Option<Delegate<'a>>, CniError> {
    let ipam = Delegate::ipam(call.env, call.config)?;
    if ipam.is_none() && call.version.layout() == Layout::PerFamily {
        remark!("a network without ipam needs cniVersion 0.3.0 or later, not {}", call.version);
        return Err(CniError::invalid_config("cannot convert: no valid IP addresses"));
    }
    Ok(ipam)
}

/// Runs ADD of the IPAM plugin, if there is one, then `attach` with its result. If `attach` fails, runs DEL
/// of the IPAM plugin.
pub fn add<T>(
    ipam: Option<&Delegate<'_>>,
    call: &AddRequest<'_>,
    attach: impl FnOnce(Option<AddResult>) -> Result<T, CniError>,
) -> Result<T, CniError> {
    let Some(ipam) = ipam else { return attach(None) };
    let assigned = ipam.add(call.version)?;
    attach(Some(assigned)).inspect_err(|_| ipam.undo())
}

/// Runs CHECK, DEL or GC of the IPAM plugin, if the network has one.
pub fn call(env: &Environment, config: &NetConf, verb: Verb) -> Result<(), CniError> {
    Delegate::ipam(env, config)?.map_or(Ok(()), |ipam| ipam.call(verb))
}

/// Whether the IPAM plugin needs the container's link: `dhcp` gets the address and releases it by messages through the link.
/// Then ADD runs after the link is made, and DEL before it is deleted.
pub fn needs_link(config: &NetConf) -> bool {
    config.ipam_type().is_ok_and(|name| name.as_deref() == Some("dhcp"))
}

/// Runs `remove_link` and then DEL of the IPAM plugin: IPAM may give the address to another container at once, so no link
/// may still have it. If `remove_link` fails, the address stays reserved until the runtime calls DEL again. In the other order
/// if the IPAM plugin needs the link; then a failure of one does not stop the other.
pub fn del(
    call: &DelRequest<'_>,
    remove_link: impl FnOnce() -> Result<(), CniError>,
) -> Result<(), CniError> {
    let release = || self::call(call.env, call.config, Verb::Del);
    let mut failures = Failures::default();
    if needs_link(call.config) {
        failures.keep(release());
        failures.keep(remove_link());
    } else if failures.keep(remove_link()).is_some() {
        failures.keep(release());
    }
    failures.into_result()
}

/// [`del`] for a link that only the container has. If its namespace cannot be opened, the link may still have the address, so
/// IPAM keeps it until the next DEL.
pub fn del_with_link(
    call: &DelRequest<'_>,
    remove_link: impl FnOnce() -> Result<(), CniError>,
) -> Result<(), CniError> {
    if matches!(call.netns, ContainerNetns::Unknown(_)) { remove_link() } else { del(call, remove_link) }
}

/// Runs STATUS of the IPAM plugin, if the network has one. Code 50 if that plugin does not exist: ADD cannot
/// work without it.
pub fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let ipam = Delegate::ipam(call.env, call.config).map_err(|error| match error.code {
        Code::Internal => CniError { code: Code::NotAvailable, ..error },
        _ => error,
    })?;
    ipam.map_or(Ok(()), |ipam| ipam.call(Verb::Status))
}

/// Checks that a result of this version can carry the addresses: before 0.3.0 one of each family. `is_ipv4` has
/// the family of each address.
///
/// # Errors
/// Code 7 with the reference's text.
pub fn refuse_several_of_a_family(
    config: &NetConf,
    version: SpecVersion,
    is_ipv4: impl Iterator<Item = bool>,
) -> Result<(), CniError> {
    let (v4, v6): (Vec<bool>, Vec<bool>) = is_ipv4.partition(|is_ipv4| *is_ipv4);
    if version.layout() == Layout::PerFamily && v4.len().max(v6.len()) > 1 {
        let version = config.version_text();
        let msg = format!("CNI version {version} does not support more than 1 address per family");
        return Err(CniError::invalid_config(msg));
    }
    Ok(())
}
