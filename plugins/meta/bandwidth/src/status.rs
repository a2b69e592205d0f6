//! STATUS: checks that the kernel supports everything that ADD needs.
//!
//! For each kind of object, a request is sent that must fail. Its error tells whether the kernel knows the
//! kind or can load its module; nothing is created. A filter needs an ingress qdisc, so filters are tested in
//! a temporary network namespace, which ends with this process.

use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::netlink::{Message, Socket, filter, ifb, qdisc};
use ferrule_kernel::netns;

/// The index of the loopback link, the same in every namespace.
const LO: u32 = 1;

/// The kinds of objects that ADD needs.
pub const KINDS: Kinds<'static> = Kinds { link: "ifb", qdisc: "tbf", action: "mirred" };

/// Kinds of objects, as the kernel names them.
#[derive(Clone, Copy, Debug)]
pub struct Kinds<'a> {
    /// The link type.
    pub link: &'a str,
    /// The qdisc.
    pub qdisc: &'a str,
    /// The filter action.
    pub action: &'a str,
}

/// Checks the kernel.
///
/// # Errors
/// Code 50, with everything that the kernel lacks.
pub fn status() -> Result<(), CniError> {
    let mut lacks = missing(&mut open()?, KINDS);
    if lacks.is_empty() {
        netns::move_to_new()
            .context(|| "create a network namespace for the filter test")
            .map_err(unavailable)?;
        lacks = missing_filter(&mut open()?);
    }
    if lacks.is_empty() {
        return Ok(());
    }
    Err(CniError::new(
        Code::NotAvailable,
        format!("the kernel cannot shape traffic: it lacks {}", lacks.join(", ")),
    ))
}

fn open() -> Result<Socket, CniError> {
    Socket::route().context(|| "open a netlink socket").map_err(unavailable)
}

fn unavailable(error: CniError) -> CniError {
    CniError { code: Code::NotAvailable, ..error }
}

/// The kinds that the kernel lacks, each with its configuration option.
pub fn missing(socket: &mut Socket, kinds: Kinds<'_>) -> Vec<String> {
    let requests: Vec<Message> =
        vec![ifb::probe(kinds.link), qdisc::probe(LO, kinds.qdisc), filter::probe_action(kinds.action)];
    let answers = socket.requests(requests);
    let [link, qdisc_answer, action] = [0, 1, 2].map(|index| answers.get(index));
    let results = [
        (kinds.link, "IFB", link.is_some_and(ifb::is_unknown_kind)),
        (kinds.qdisc, "NET_SCH_TBF", qdisc_answer.is_some_and(qdisc::is_unknown_kind)),
        (kinds.action, "NET_ACT_MIRRED", action.is_some_and(qdisc::is_unknown_kind)),
    ];
    let missing = results.into_iter().filter(|(_, _, is_missing)| *is_missing);
    missing.map(|(kind, option, _)| format!("{kind} (CONFIG_{option})")).collect()
}

/// Creates an ingress qdisc and a filter on `lo`. Returns the first that the kernel lacks.
fn missing_filter(socket: &mut Socket) -> Vec<String> {
    let requests = vec![qdisc::create_ingress(LO), filter::redirect_all(LO, filter::AT_INGRESS, 1, LO)];
    let needs = ["an ingress qdisc (CONFIG_NET_SCH_INGRESS)", "u32 (CONFIG_NET_CLS_U32)"];
    let failed = socket.requests(requests).into_iter().zip(needs).find(|(answer, _)| answer.is_err());
    // Without the qdisc the filter fails too, so only the first failure counts.
    failed
        .map(|(answer, need)| {
            format!("{need}{}", answer.err().map_or(String::new(), |error| format!(": {error}")))
        })
        .into_iter()
        .collect()
}
