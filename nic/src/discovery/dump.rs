//! Asks the kernel for all objects of a kind. Takes one message at a time: a parsed one needs ten times its size.

use std::io;

use netlink_packet_core::{NLM_F_DUMP, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload};
use netlink_packet_route::RouteNetlinkMessage;
use rtnetlink::sys::protocols::NETLINK_ROUTE;
use rtnetlink::sys::{Socket, SocketAddr};

/// Passes on each message of the answer. Blocks; the kernel answers at once.
pub(super) fn dump(
    request: RouteNetlinkMessage,
    mut each: impl FnMut(&RouteNetlinkMessage),
) -> io::Result<()> {
    let socket = Socket::new(NETLINK_ROUTE)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    let mut request = NetlinkMessage::from(request);
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    socket.send(&bytes, 0)?;
    loop {
        let (bytes, _) = socket.recv_from_full()?;
        let mut rest = &bytes[..];
        while let Some((len, _)) = rest.split_first_chunk() {
            let len = usize::try_from(u32::from_ne_bytes(*len)).unwrap_or(usize::MAX);
            // Messages of a kind that the parser does not know are left out.
            if let Ok(message) = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest) {
                match message.payload {
                    NetlinkPayload::Done(_) => return Ok(()),
                    NetlinkPayload::Error(error) => return Err(error.to_io()),
                    NetlinkPayload::InnerMessage(message) => each(&message),
                    _ => {}
                }
            }
            rest = rest.get(len.next_multiple_of(4).max(4)..).unwrap_or_default();
        }
    }
}
