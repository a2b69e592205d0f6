//! Repair: makes again what CHECK refuses, for a container that runs.

use cni_common::plugin::AddRequest;
use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::chains;
use ferrule_kit::socket::netfilter;

use crate::config::{Backend, Conf};
use crate::nft::{self, Purpose};
use crate::plan::{HostPort, Plan};
use crate::verbs::{check_host_ports, create_guard, delete_from_others, others, requested};
use crate::{flows, iptables, list, localhost, services};

/// Makes again the host ports, if CHECK refuses one of them, and connections from 127.0.0.0/8. Host ports get the form of the
/// configured backend, as by ADD. If the repair is killed before it has deleted stale flows and rules, CHECK refuses the host ports.
///
/// # Errors
/// Code 11 with the name of the container that has one of the host ports now. Then the host ports stay as they are.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let Some((conf, result, plan)) = requested(call)? else { return Ok(()) };
    let mut socket = netfilter()?;
    if check_host_ports(&mut socket, &conf, &plan).is_err() {
        list::ensure_free(&mut socket, &plan)?;
        let netns = call.sandbox.path();
        match conf.backend {
            Backend::Nftables => repair_nft(&mut socket, &conf, &plan, netns)?,
            Backend::Iptables => repair_iptables(&mut socket, &conf, &plan)?,
        }
    }
    let bit = if conf.backend == Backend::Iptables { iptables::mark_bit(&conf) } else { conf.mark_bit };
    create_guard(&mut socket, bit)?;
    let Some(container) = plan.from_loopback() else { return Ok(()) };
    localhost::enable(result, call.ifname, container)
}

fn repair_nft(socket: &mut Socket, conf: &Conf, plan: &Plan<'_>, netns: &str) -> Result<(), CniError> {
    let gate = services::repair(socket, conf.services_bit)?;
    let others = others(&plan.owner);
    let others: Vec<_> = others.iter().map(|(table, name)| (*table, name.as_str())).collect();
    let found = chains(socket, &others).context(|| "find the chains of other backends")?;
    let is_unfinished =
        found.iter().any(Option::is_some) || plan.host_ports.iter().any(HostPort::has_lasting_flows);
    let made = nft::replace(socket, plan, netns, gate, Purpose::Repair { is_unfinished })?;
    if is_unfinished {
        delete_from_others(socket, &plan.owner)?;
        flows::delete_after_add(socket, &made, nft::has_own);
        nft::finish(socket, plan, netns, made.len())?;
    }
    Ok(())
}

fn repair_iptables(socket: &mut Socket, conf: &Conf, plan: &Plan<'_>) -> Result<(), CniError> {
    nft::ensure_free(socket, plan)?;
    let is_unfinished = plan.host_ports.iter().any(HostPort::has_lasting_flows);
    iptables::repair(conf, &plan.owner, &plan.addresses, is_unfinished)?;
    if is_unfinished {
        flows::delete_after_add(socket, &plan.host_ports, nft::has_own);
        iptables::repair(conf, &plan.owner, &plan.addresses, false)?;
    }
    Ok(())
}
