//! DEL: everything that belongs to the attachment, found by its identity alone; each step is taken whatever becomes of the
//! others.

use cni_common::netlink::Socket;
use cni_common::plugin::{Delegate, Detach, Verb};
use cni_common::spec::{CniError, Failures, Step};

use crate::{delegate, masquerade, veth};
use cni_common::plugin::Attachment;

/// Detaches the container.
///
/// # Errors
/// What could not be removed.
pub fn del(call: &Detach<'_>) -> Result<(), CniError> {
    let attachment = Attachment::from(call);
    let mut failures = Failures::default();
    // The kernel waits for a grace period before it lets go of a rule, and again for a link. Rules go first and their
    // socket is closed last, so that the first wait is over when the second one is.
    let mut netfilter = failures.keep(Socket::netfilter().step(|| "open a netfilter socket"));
    if let Some(netfilter) = &mut netfilter {
        failures.keep(masquerade::delete(netfilter, &attachment));
    }
    failures.keep(veth::delete(call.netns, attachment, call.prev_result.as_ref()));
    // After the link: an address that is given out again must not be in use any more.
    failures.keep(delegate(Delegate::ipam(call.env, call.config), Verb::Del));
    drop(netfilter);
    failures.into_result()
}
