//! DEL and GC of an interface plugin that makes a veth pair and may masquerade. Network, container ID and ifname suffice
//! to find everything. A failed step does not stop the next one.

use cni_common::plugin::{Attachment, DelRequest, GcRequest, Verb};
use cni_common::spec::{CniError, Failures};
use ferrule_kernel::netlink::Socket;
use ferrule_kit::{ipam, socket, veth};

/// Removes the masquerading rules and the pair, and calls IPAM DEL. `delete_rules` deletes the plugin's other nf_tables
/// rules of the attachment.
pub fn del(
    call: &DelRequest<'_>,
    delete_rules: impl FnOnce(&mut Socket, &Attachment<'_>) -> Result<(), CniError>,
) -> Result<(), CniError> {
    let attachment = Attachment::from(call);
    let mut failures = Failures::default();
    // Closing a socket that deleted rules waits for an RCU grace period, and so does deleting a link.
    // Deleting the rules first and closing their socket last makes the two waits overlap.
    // With hundreds of calls at once a list of the rules may lack some of them.
    let mut netfilter = failures.keep(socket::netfilter()).map(Socket::with_whole_dumps);
    if let Some(netfilter) = &mut netfilter {
        failures.keep(crate::delete(netfilter, &attachment));
        failures.keep(delete_rules(netfilter, &attachment));
    }
    failures
        .keep(ipam::del(call, || veth::delete(call.netns.opened(), &attachment, call.prev_result.as_ref())));
    drop(netfilter);
    failures.into_result()
}

/// Removes the masquerading rules of attachments that are not valid, and calls IPAM GC. The kernel has already removed
/// their links with their namespaces. `collect_rules` removes the plugin's other nf_tables rules on the network.
pub fn gc(
    call: &GcRequest<'_>,
    collect_rules: impl FnOnce(&mut Socket, &str) -> Result<(), CniError>,
) -> Result<(), CniError> {
    let mut failures = Failures::default();
    if let Some(mut netfilter) = failures.keep(socket::netfilter()).map(Socket::with_whole_dumps) {
        let network = call.config.name();
        failures.keep(crate::gc(&mut netfilter, network, call.valid));
        failures.keep(collect_rules(&mut netfilter, network));
    }
    failures.keep(ipam::call(call.env, call.config, Verb::Gc));
    failures.into_result()
}
