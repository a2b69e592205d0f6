//! The generation of the ruleset, which detects concurrent changes between reading and writing.

use super::{ATTEMPTS, Batch, Error, request_header};
use crate::netlink::message::find_attr;
use crate::netlink::{Message, Socket};
use crate::retry::retry;

const GET_GENERATION: u16 = 16;
/// `NFTA_GEN_ID`.
const GENERATION_ID: u16 = 1;

/// A number that the kernel changes with every change of any nf_tables object in the network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub(super) u32);

/// The current generation of the ruleset. Read the ruleset after this call, then commit with
/// [`Batch::commit_at`](super::Batch::commit_at): it fails if another process has changed the ruleset in
/// between.
pub fn generation(socket: &mut Socket) -> Result<Generation, Error> {
    let failed = |source| Error { request: "get the nf_tables generation".to_owned(), source };
    let request = Message::new(super::kind(GET_GENERATION), 0, &request_header()).one_answer();
    let bodies = socket.request(request).map_err(failed)?;
    let id = bodies.first().and_then(|body| find_attr(body.get(4..)?, GENERATION_ID)?.try_into().ok());
    id.map(|id| Generation(u32::from_be_bytes(id)))
        .ok_or_else(|| failed(crate::netlink::Error::from(nix::errno::Errno::EPROTO)))
}

/// Makes a change that depends on the present ruleset. `plan` reads it, and adds the requests to a batch; the kernel refuses the batch after
/// any change of the ruleset since `plan` began, and then `plan` begins again. An empty batch is not sent.
///
/// # Errors
/// Those of `plan`; the kernel refuses a request, or 200 concurrent changes.
pub fn change<T>(
    socket: &mut Socket,
    mut plan: impl FnMut(&mut Socket, &mut Batch) -> Result<T, Error>,
) -> Result<T, Error> {
    retry(ATTEMPTS, Error::is_outdated, || {
        let generation = generation(socket)?;
        let mut batch = Batch::new();
        let outcome = plan(socket, &mut batch)?;
        batch.commit_at(socket, generation).map(|()| outcome)
    })
}
