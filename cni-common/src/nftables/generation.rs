//! The ruleset's generation: how to change only what is still as it was read.

use super::{Error, request_header};
use crate::netlink::message::find_attr;
use crate::netlink::{Message, Socket};

const GET_GENERATION: u16 = 16;
/// `NFTA_GEN_ID`.
const GENERATION_ID: u16 = 1;

/// A number that changes with every change of any nf_tables ruleset of the network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(pub(super) u32);

/// The ruleset's present generation. Whatever is read after this call and then changed by
/// [`Batch::commit_at`](super::Batch::commit_at) has not been changed by anybody else in between.
///
/// # Errors
/// What the kernel said.
pub fn generation(socket: &mut Socket) -> Result<Generation, Error> {
    let refused = |source| Error { request: "get the ruleset's generation".to_owned(), source };
    let bodies =
        socket.request(Message::new(super::kind(GET_GENERATION), 0, &request_header())).map_err(refused)?;
    let id = bodies.first().and_then(|body| find_attr(body.get(4..)?, GENERATION_ID)?.try_into().ok());
    id.map(|id| Generation(u32::from_be_bytes(id)))
        .ok_or_else(|| refused(crate::netlink::Error::from(nix::errno::Errno::EPROTO)))
}
