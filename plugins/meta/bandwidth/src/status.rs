//! STATUS: checks that the kernel supports everything that ADD needs.
//!
//! For each kind of object, a request is sent that must fail. Its error tells whether the kernel knows the
//! kind or can load its module; nothing is created. Only the kind of filter, u32, remains open: the kernel
//! looks for the qdisc of a filter first, and runtimes call STATUS too often to create one.

use cni_common::spec::{CniError, Code};
use ferrule_kernel::netlink::{Socket, filter, ifb, qdisc};
use ferrule_kit::{remedy, socket};

/// The index of the loopback link, the same in every namespace.
const LO: u32 = 1;

/// The kinds of objects that ADD needs.
pub const KINDS: Kinds<'static> = Kinds { link: "ifb", qdisc: "tbf", hook: "ingress", action: "mirred" };

/// Kinds of objects, as the kernel names them.
#[derive(Clone, Copy, Debug)]
pub struct Kinds<'a> {
    /// The link type.
    pub link: &'a str,
    /// The qdisc that shapes.
    pub qdisc: &'a str,
    /// The qdisc that holds the filter.
    pub hook: &'a str,
    /// The filter action.
    pub action: &'a str,
}

/// Checks the kernel. Code 50 with everything that it lacks.
pub fn status() -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
    let lacks = missing(&mut socket::route().map_err(unavailable)?, KINDS);
    if lacks.is_empty() {
        return Ok(());
    }
    let msg = format!("the kernel cannot shape traffic: it lacks {}", lacks.join(", "));
    let modules = remedy::modules("ifb sch_tbf sch_ingress cls_u32 act_mirred");
    Err(CniError::new(Code::NotAvailable, msg).with_remedy(modules))
}

/// The kinds that the kernel lacks, each with its configuration option.
pub fn missing(socket: &mut Socket, kinds: Kinds<'_>) -> Vec<String> {
    let requests = [
        ifb::probe(kinds.link),
        qdisc::probe(LO, kinds.qdisc),
        qdisc::probe(LO, kinds.hook),
        filter::probe_action(kinds.action),
    ];
    let [link, shaper, hook, action] = socket.request_each(requests);
    let results = [
        (kinds.link, "IFB", ifb::is_unknown_kind(&link)),
        (kinds.qdisc, "NET_SCH_TBF", qdisc::is_unknown_kind(&shaper)),
        (kinds.hook, "NET_SCH_INGRESS", qdisc::is_unknown_kind(&hook)),
        (kinds.action, "NET_ACT_MIRRED", qdisc::is_unknown_kind(&action)),
    ];
    let missing = results.into_iter().filter(|(_, _, is_missing)| *is_missing);
    missing.map(|(kind, option, _)| format!("{kind} (CONFIG_{option})")).collect()
}
