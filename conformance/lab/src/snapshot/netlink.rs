//! Lists of the kernel's objects in the calling thread's network namespace. A test run takes thousands of snapshots, and a program that
//! prints a list takes milliseconds to start, in an emulated machine fifty. The plugins' own encoder has no part in it.

use std::io;

use anyhow::{Context as _, bail};
use netlink_packet_core::{
    Emitable as _, NLM_F_DUMP, NLM_F_DUMP_INTR, NLM_F_REQUEST, NLMSG_DONE, NetlinkHeader, NetlinkMessage,
    NetlinkPayload,
};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use netlink_sys::{Socket, SocketAddr};

/// `NFT_MSG_GETTABLE` (linux/netfilter/nf_tables.h) of the subsystem `NFNL_SUBSYS_NFTABLES` (linux/netfilter/nfnetlink.h).
const GET_TABLES: u16 = 10 << 8 | 1;

/// All objects of a kind. Lists them again if they changed meanwhile.
pub(super) fn list(request: RouteNetlinkMessage) -> anyhow::Result<Vec<RouteNetlinkMessage>> {
    let mut request = NetlinkMessage::from(request);
    request.header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let socket = open(NETLINK_ROUTE)?;
    loop {
        socket.send(&bytes, 0)?;
        if let Some(objects) = receive(&socket)? {
            return Ok(objects);
        }
    }
}

/// The answer to a request; nothing if the kernel says that it is not consistent.
fn receive(socket: &Socket) -> anyhow::Result<Option<Vec<RouteNetlinkMessage>>> {
    let (mut objects, mut is_consistent) = (Vec::new(), true);
    loop {
        let (datagram, _) = socket.recv_from_full()?;
        let mut rest = &datagram[..];
        while !rest.is_empty() {
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(rest)
                .with_context(|| format!("read the kernel's list: {rest:02x?}"))?;
            is_consistent &= message.header.flags & NLM_F_DUMP_INTR == 0;
            match message.payload {
                NetlinkPayload::InnerMessage(object) => objects.push(object),
                NetlinkPayload::Done(done) if done.code == 0 => return Ok(is_consistent.then_some(objects)),
                other => bail!("the kernel answers a request for a list with {other:?}"),
            }
            let len = usize::try_from(message.header.length)?.next_multiple_of(4);
            rest = rest.get(len..).unwrap_or_default();
        }
    }
}

/// Whether nf_tables has a table.
pub(super) fn has_nf_tables() -> io::Result<bool> {
    // struct nlmsghdr, and struct nfgenmsg: all families, version 0.
    let mut header = NetlinkHeader::default();
    header.length = 20;
    header.message_type = GET_TABLES;
    header.flags = NLM_F_REQUEST | NLM_F_DUMP;
    let mut request = [0; 20];
    header.emit(&mut request);
    let socket = open(NETLINK_NETFILTER)?;
    socket.send(&request, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    Ok(answer.get(4..6) != Some(&NLMSG_DONE.to_ne_bytes()))
}

fn open(protocol: isize) -> io::Result<Socket> {
    let socket = Socket::new(protocol)?;
    socket.connect(&SocketAddr::new(0, 0))?;
    Ok(socket)
}
