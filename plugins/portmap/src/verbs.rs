//! What each verb does, step by step.

use cni_common::netlink::Socket;
use cni_common::nftables::{Family, probe};
use cni_common::plugin::{Attach, Collect, Detach, Probe};
use cni_common::spec::{AddResult, CniError, Code, Failures, Step};

use crate::address;
use crate::config::{Backend, Conf, not_chained};
use crate::nft::{self, Conditions};
use crate::owner::Owner;
use crate::plan::{Plan, Realm};
use crate::{flows, localhost};

fn netfilter() -> Result<Socket, CniError> {
    Socket::netfilter().step(|| "open a netfilter socket")
}

/// What the configuration and the result before this plugin's come to.
struct Wanted {
    plan: Plan,
    conditions: Vec<Conditions>,
}

impl Wanted {
    fn new(call: &Attach<'_>, conf: &Conf, result: &AddResult) -> Result<Self, CniError> {
        let network = call.config.name();
        let plan = Plan::new(conf, network, &address::pick(result, call.ifname));
        let mut conditions = Vec::new();
        for realm in plan.realms().into_iter().filter(|realm| realm.id.is_some()) {
            let Realm { v6, .. } = realm;
            // A comment cannot hold quotes.
            let text = format!("{network}: {}", conf.conditions[usize::from(v6)].join(" ").replace('"', ""));
            conditions.push(Conditions { realm, alternatives: conf.matches(v6)?, text });
        }
        Ok(Wanted { plan, conditions })
    }
}

/// ADD: the entries, then the way from loopback, then stale flows. The result is the one of the plugins before.
///
/// # Errors
/// The first step that failed; the owner has no entries then.
pub fn add(call: &Attach<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let Some(result) = call.prev_result.clone() else {
        return Err(not_chained("must be called as chained plugin"));
    };
    if conf.mappings.is_empty() {
        return Ok(result);
    }
    if conf.backend == Backend::Iptables {
        return Err(CniError::new(
            Code::UnsupportedField,
            "unsupported field \"backend\" with value \"iptables\"",
        ));
    }
    let Wanted { plan, conditions } = Wanted::new(call, &conf, &result)?;
    for warning in &plan.warnings {
        eprintln!("{warning}");
    }
    if plan.entries.is_empty() {
        return Ok(result);
    }
    let owner = Owner::from(call);
    let mut socket = netfilter()?;
    nft::add(&mut socket, &owner, call.sandbox.path(), &plan, &conditions)?;
    // After the entries, and with them the guard: the switch must not be on without it.
    if let Some(pod) = plan.from_loopback() {
        localhost::open(&result, pod).inspect_err(|_| undo(&mut socket, &owner))?;
    }
    flows::forget_before(&mut socket, &plan.entries, nft::has_own);
    Ok(result)
}

fn undo(socket: &mut Socket, owner: &Owner<'_>) {
    if let Err(error) = nft::delete(socket, owner) {
        eprintln!("undoing the ADD: {error}");
    }
}

/// CHECK: everything that ADD made is as it was made.
///
/// # Errors
/// The first difference.
pub fn check(call: &Attach<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let Some(result) = &call.prev_result else {
        return Err(not_chained("Required prevResult missing"));
    };
    if conf.mappings.is_empty() {
        return Ok(());
    }
    let Wanted { plan, conditions } = Wanted::new(call, &conf, result)?;
    if plan.entries.is_empty() {
        return Ok(());
    }
    nft::check(&mut netfilter()?, &Owner::from(call), &plan, &conditions)?;
    plan.from_loopback().map_or(Ok(()), |pod| localhost::check(result, pod))
}

/// DEL: everything of the attachment, whatever the configuration says.
///
/// # Errors
/// What could not be removed, after all steps were taken.
pub fn del(call: &Detach<'_>) -> Result<(), CniError> {
    let owner = Owner::from(call);
    let mut failures = Failures::default();
    let mut socket = netfilter()?;
    if let Some(removed) = failures.keep(nft::delete(&mut socket, &owner)) {
        flows::forget_after(&mut socket, &removed);
    }
    failures.into_result()
}

/// GC: everything of the network's attachments that are not valid any more.
///
/// # Errors
/// What could not be removed, after all steps were taken.
pub fn gc(call: &Collect<'_>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    let mut socket = netfilter()?;
    if let Some(removed) = failures.keep(nft::gc(&mut socket, call.config.name(), call.valid)) {
        flows::forget_after(&mut socket, &removed);
    }
    failures.into_result()
}

/// STATUS: whether an ADD could be served.
///
/// # Errors
/// Code 50 with the reason, or that of a configuration which cannot be used.
pub fn status(call: &Probe<'_>) -> Result<(), CniError> {
    Conf::read(call.config)?;
    let unavailable = |why: String| CniError::new(Code::NotAvailable, why);
    let mut socket = netfilter().map_err(|error| unavailable(error.msg))?;
    probe(&mut socket, Family::Inet)
        .map_err(|error| unavailable(format!("this kernel cannot forward host ports by nf_tables: {error}")))
}
