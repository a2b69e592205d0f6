//! Repair: makes again what CHECK refuses, for a container that runs.

use cni_common::plugin::AddRequest;
use cni_common::spec::{AddResult, CniError};
use ferrule_kernel::netlink::Socket;
use ferrule_kit::socket::netfilter;

use crate::choice::{Chosen, choose};
use crate::config::Policy;
use crate::firewalld::Firewalld;
use crate::iptables;
use crate::nft::{self, By, Node, Owned};
use crate::plan::{self, Plan};
use crate::verbs::{check_forward, open, open_forward, opened_by, requested};

/// Opens the firewall for the container again, and applies the policy of its bridge. What has opened it before does so again;
/// if nothing tells, what ADD would choose now. A source of firewalld is lost by each reload.
///
/// # Errors
/// The first step that failed; code 999 with the name of the container that has one of the addresses now. Nothing is undone.
pub fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let own = |result: &AddResult| plan::own_addresses(result, call.ifname);
    let (_, Some((mut plan, bridge))) = requested(call, own)? else { return Ok(()) };
    let mut socket = netfilter()?;
    let bit = plan.conf.mark_bit;
    let node = nft::node(&mut socket, bit)?;
    let owned = nft::owned(&mut socket, &plan.addresses)?;
    let mut chosen = chosen(&mut socket, &node, &mut plan, &owned)?;
    open(&mut socket, &node, &plan, &mut chosen, nft::repair)?;
    if matches!(chosen, Chosen::Nftables) {
        // Without what ADD takes for granted if the table is complete.
        let mut unproven = node;
        unproven.is_complete = false;
        for family in plan.families() {
            if check_forward(&mut socket, &node, family, bit).is_err() {
                open_forward(&mut socket, &unproven, family, bit)?;
            }
        }
    }
    match bridge {
        Some(bridge) if plan.conf.policy == Policy::Isolated => bridge.isolate_port(),
        _ => Ok(()),
    }
}

/// What CHECK asks about the addresses, if something has opened them, else what ADD would choose.
fn chosen(socket: &mut Socket, node: &Node, plan: &mut Plan, owned: &[Owned]) -> Result<Chosen, CniError> {
    let is_known = owned.iter().any(|owned| owned.labels().next().is_some());
    if !is_known && !iptables::has(socket, node, &plan.addresses)? {
        return choose(node, plan);
    }
    Ok(match opened_by(socket, node, plan, owned)? {
        By::Nftables => Chosen::Nftables,
        By::Iptables => Chosen::Iptables,
        By::Firewalld(zone) => {
            plan.conf.zone = zone;
            Chosen::Firewalld(Firewalld::connect()?)
        }
    })
}
