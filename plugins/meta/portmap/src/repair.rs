//! Repair: makes again what CHECK refuses, for a container that runs.

use cni_common::plugin::AddRequest;
use cni_common::spec::CniError;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::socket::netfilter;

use crate::config::{Backend, Conf};
use crate::nft::{self, Purpose};
use crate::plan::{HostPort, Plan};
use crate::verbs::{check_host_ports, create_guard, delete_from_others, requested};
use crate::{flows, iptables, list, localhost, services};

/// Makes again the host ports, if CHECK refuses one of them, and connections from 127.0.0.0/8. Host ports get the form of the
/// configured backend, as by ADD.
///
/// # Errors
/// Code 11 with the name of the container that has one of the host ports now. Then the host ports stay as they are.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let Some((conf, result, plan)) = requested(call)? else { return Ok(()) };
    let mut socket = netfilter()?;
    if check_host_ports(&mut socket, &conf, &plan).is_err() {
        list::ensure_free(&mut socket, &plan)?;
        let made = make(&mut socket, call.sandbox.path(), &conf, &plan)?;
        flows::delete_after_add(&mut socket, &made, nft::has_own);
    }
    match plan.from_loopback() {
        Some(container) => {
            create_guard(&mut socket)?;
            localhost::enable(result, call.ifname, container)
        }
        None => Ok(()),
    }
}

fn make(socket: &mut Socket, netns: &str, conf: &Conf, plan: &Plan<'_>) -> Result<Vec<HostPort>, CniError> {
    match conf.backend {
        Backend::Nftables => {
            let gate = services::repair(socket, conf.services_bit)?;
            let made = nft::replace(socket, plan, netns, gate, Purpose::Repair)?;
            delete_from_others(socket, &plan.owner).map(|()| made)
        }
        Backend::Iptables => {
            nft::ensure_free(socket, plan)?;
            iptables::repair(conf, &plan.owner, &plan.addresses).map(|()| plan.host_ports.clone())
        }
    }
}
