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

/// The kinds of objects that ADD needs, as the kernel names them: the link, the qdisc that shapes, the qdisc that holds the filter,
/// and the filter's action.
pub const KINDS: [&str; 4] = ["ifb", "tbf", "ingress", "mirred"];
/// The configuration options of these kinds.
const OPTIONS: [&str; 4] = ["IFB", "NET_SCH_TBF", "NET_SCH_INGRESS", "NET_ACT_MIRRED"];

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

/// Those of the four kinds that the kernel lacks, each with its configuration option.
pub fn missing(socket: &mut Socket, kinds: [&str; 4]) -> Vec<String> {
    let [link, shaper, hook, action] = kinds;
    let answers = socket.request_each([
        ifb::probe(link),
        qdisc::probe(LO, shaper),
        qdisc::probe(LO, hook),
        filter::probe_action(action),
    ]);
    let is_missing =
        [ifb::is_unknown_kind, qdisc::is_unknown_kind, qdisc::is_unknown_kind, qdisc::is_unknown_kind];
    let lacks = kinds.iter().zip(OPTIONS).zip(answers.iter().zip(is_missing));
    let missing = lacks.filter(|(_, (answer, is_missing))| is_missing(answer));
    missing.map(|((kind, option), _)| format!("{kind} (CONFIG_{option})")).collect()
}
