//! Asks the kernel for all objects of a kind. Takes one message at a time: a parsed one needs ten times its size.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

/// `RTM_GETNEXTHOP` (linux/nexthop.h), which the parser does not know.
const GET_NEXT_HOP: u16 = 106;
/// `NHA_OIF`: the index of the link.
const NEXT_HOP_LINK: u16 = 5;
/// The lengths of the header of a message, and of `struct nhmsg`.
const HEADER: usize = 16;
const NEXT_HOP: usize = 8;
/// `NLMSG_ERROR`, `NLMSG_DONE`.
const ERROR: u16 = 2;
const DONE: u16 = 3;

/// Passes on each message of the answer. Blocks; the kernel answers at once.
pub(super) fn dump(
    request: RouteNetlinkMessage,
    mut each: impl FnMut(&RouteNetlinkMessage),
) -> io::Result<()> {
    let mut request = NetlinkMessage::from(request);
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    exchange(&bytes, |message| {
        // Messages of a kind that the parser does not know are left out.
        if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(message)
            && let NetlinkPayload::InnerMessage(message) = message.payload
        {
            each(&message);
        }
    })
}

/// Passes on the link of each next hop object.
pub(super) fn dump_next_hops(mut each: impl FnMut(u32)) -> io::Result<()> {
    let len = u32::try_from(HEADER + NEXT_HOP).unwrap_or_default();
    let flags = NLM_F_REQUEST | NLM_F_DUMP;
    let request = [&len.to_ne_bytes()[..], &GET_NEXT_HOP.to_ne_bytes(), &flags.to_ne_bytes()].concat();
    let mut bytes = vec![0; HEADER + NEXT_HOP];
    bytes.iter_mut().zip(request).for_each(|(to, from)| *to = from);
    exchange(&bytes, |message| {
        let mut attributes = message.get(HEADER + NEXT_HOP..).unwrap_or_default();
        while let Some((head, _)) = attributes.split_first_chunk::<4>() {
            let [a, b, c, d] = *head;
            let len = usize::from(u16::from_ne_bytes([a, b]));
            let value = attributes.get(4..len).and_then(|value| value.try_into().ok());
            if let (NEXT_HOP_LINK, Some(value)) = (u16::from_ne_bytes([c, d]), value) {
                each(u32::from_ne_bytes(value));
            }
            attributes = attributes.get(len.next_multiple_of(4).max(4)..).unwrap_or_default();
        }
    })
}

/// Sends a request for a dump, and passes on each message of the answer.
fn exchange(request: &[u8], mut each: impl FnMut(&[u8])) -> io::Result<()> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    socket.send(request, 0)?;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while let Some((head, after)) = rest.split_first_chunk::<HEADER>() {
            let [a, b, c, d, kind, of_kind, ..] = *head;
            let len = usize::try_from(u32::from_ne_bytes([a, b, c, d])).unwrap_or(usize::MAX);
            match u16::from_ne_bytes([kind, of_kind]) {
                DONE => return Ok(()),
                ERROR => {
                    let code = after.first_chunk().map_or(0, |code| i32::from_ne_bytes(*code));
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => each(rest.get(..len).unwrap_or(rest)),
            }
            rest = rest.get(len.next_multiple_of(4).max(4)..).unwrap_or_default();
        }
    }
}
