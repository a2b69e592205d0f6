//! DEL: removes everything that belongs to the attachment. Network, container ID and ifname suffice to find
//! it. A failed step does not stop the next one.

use cni_common::plugin::{Attachment, DelRequest, Verb};
use cni_common::spec::{CniError, Failures};
use ferrule_kit::{ipam, masquerade, socket, veth};

use crate::mac_spoof;

/// Detaches the container from the bridge.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let attachment = Attachment::from(call);
    let mut failures = Failures::default();
    // Closing a socket that deleted rules waits for an RCU grace period, and so does deleting a link.
    // Deleting the rules first and closing their socket last makes the two waits overlap.
    let mut netfilter = failures.keep(socket::netfilter());
    if let Some(netfilter) = &mut netfilter {
        failures.keep(masquerade::delete(netfilter, &attachment));
        failures.keep(mac_spoof::delete(netfilter, &attachment));
    }
    failures.keep(veth::delete(call.netns, &attachment, call.prev_result.as_ref()));
    // After the link: IPAM may give the address to another container at once, so no link may still have it.
    failures.keep(ipam::call(call.env, call.config, Verb::Del));
    drop(netfilter);
    failures.into_result()
}
