//! STATUS: whether the kernel has what ADD needs.
//!
//! Each kind of object is asked for in a way that must fail, and how it fails tells whether the kernel knows it, or can load it;
//! nothing is made. Only a filter cannot be asked for without a hook to put it at, so that is tried in a network namespace of
//! the moment, which goes with this process.

use cni_common::netlink::{Message, Socket, filter, ifb, qdisc};
use cni_common::spec::{CniError, Code, Step};
use nix::sched::{CloneFlags, unshare};

/// The loopback link, which has the same index in every namespace.
const LO: u32 = 1;

/// The kinds that ADD needs.
pub const KINDS: Kinds<'static> = Kinds { link: "ifb", qdisc: "tbf", action: "mirred" };

/// Kinds of objects, by the kernel's names for them.
#[derive(Clone, Copy, Debug)]
pub struct Kinds<'a> {
    /// Of a link.
    pub link: &'a str,
    /// Of a queueing discipline.
    pub qdisc: &'a str,
    /// Of an action.
    pub action: &'a str,
}

/// Asks the kernel.
///
/// # Errors
/// Code 50, naming what it lacks.
pub fn status() -> Result<(), CniError> {
    let mut lacks = missing(&mut open()?, KINDS);
    if lacks.is_empty() {
        unshare(CloneFlags::CLONE_NEWNET)
            .step(|| "make a network namespace to try a filter in")
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
    Socket::route().step(|| "open a netlink socket").map_err(unavailable)
}

fn unavailable(error: CniError) -> CniError {
    CniError { code: Code::NotAvailable, ..error }
}

/// Which of these kinds the kernel lacks, each with its configuration option.
pub fn missing(socket: &mut Socket, kinds: Kinds<'_>) -> Vec<String> {
    let requests: Vec<Message> =
        vec![ifb::probe(kinds.link), qdisc::probe(LO, kinds.qdisc), filter::probe_action(kinds.action)];
    let answers = socket.requests(requests);
    let [link, discipline, action] = [0, 1, 2].map(|index| answers.get(index));
    let judged = [
        (kinds.link, "IFB", link.is_some_and(ifb::is_unknown_kind)),
        (kinds.qdisc, "NET_SCH_TBF", discipline.is_some_and(qdisc::is_unknown_kind)),
        (kinds.action, "NET_ACT_MIRRED", action.is_some_and(qdisc::is_unknown_kind)),
    ];
    let missing = judged.into_iter().filter(|(_, _, is_missing)| *is_missing);
    missing.map(|(kind, option, _)| format!("{kind} (CONFIG_{option})")).collect()
}

/// Tries the hook and the filter on `lo`, and says what of it the kernel lacks.
fn missing_filter(socket: &mut Socket) -> Vec<String> {
    let requests = vec![qdisc::create_ingress(LO), filter::redirect_all(LO, filter::AT_INGRESS, 1, LO)];
    let needs = ["an ingress qdisc (CONFIG_NET_SCH_INGRESS)", "u32 (CONFIG_NET_CLS_U32)"];
    let failed = socket.requests(requests).into_iter().zip(needs).find(|(answer, _)| answer.is_err());
    // Without a hook there is no filter either, so only the first failure says something.
    failed
        .map(|(answer, need)| {
            format!("{need}{}", answer.err().map_or(String::new(), |error| format!(": {error}")))
        })
        .into_iter()
        .collect()
}
