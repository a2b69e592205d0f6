//! Flows that go on where a host port used to lead: the kernel is made to forget them.
//!
//! Only UDP and SCTP. A TCP connection to a pod that is gone ends by itself, and one that has begun elsewhere is right to
//! go on there.

use std::collections::HashMap;
use std::net::IpAddr;

use ferrule_kernel::conntrack::{self, DST_NAT, Filter, Flow};
use ferrule_kernel::netlink::Socket;

use crate::mapping::Proto;
use crate::plan::{Entry, Key};

fn is_for(flow: &Flow, entry: &Entry) -> bool {
    let key = &entry.key;
    flow.proto == key.proto.number()
        && flow.original.dst_port == key.port
        && flow.original.dst.is_ipv6() == key.realm.v6
        && key.host_ip.is_none_or(|ip| ip == flow.original.dst)
}

fn goes_to(flow: &Flow, entry: &Entry) -> bool {
    (flow.reply.src, flow.reply.src_port) == (entry.target.ip(), entry.target.port())
}

/// What became stale when the entry came: a flow to the host port that leads elsewhere.
fn is_before(flow: &Flow, entry: &Entry) -> bool {
    is_for(flow, entry) && !goes_to(flow, entry)
}

/// What became stale when the entry went: a flow that it led to its pod.
fn is_after(flow: &Flow, entry: &Entry) -> bool {
    is_for(flow, entry) && goes_to(flow, entry) && flow.status & DST_NAT != 0
}

/// One listing for each family and protocol that the entries have, by port if they have but one.
fn filters(entries: &[Entry]) -> Vec<Filter> {
    let mut filters: Vec<Filter> = Vec::new();
    for entry in entries.iter().filter(|entry| entry.key.proto != Proto::Tcp) {
        let filter = Filter {
            v6: entry.key.realm.v6,
            proto: entry.key.proto.number(),
            dst_port: Some(entry.key.port),
        };
        match filters.iter_mut().find(|known| (known.v6, known.proto) == (filter.v6, filter.proto)) {
            Some(known) if known.dst_port != filter.dst_port => known.dst_port = None,
            Some(_) => {}
            None => filters.push(filter),
        }
    }
    filters
}

/// Forgets the flows that an ADD made stale. `others` says of a flow's destination whether somebody else's host port is
/// for exactly that address.
///
/// Nothing of it can make an ADD fail: what goes wrong is said on standard error.
pub fn forget_before(
    socket: &mut Socket,
    entries: &[Entry],
    others: impl Fn(&mut Socket, &Entry, IpAddr) -> bool,
) {
    let mut route = None;
    // A busy node has thousands of flows to a few addresses.
    let mut meant: HashMap<(&Key, IpAddr), bool> = HashMap::new();
    for filter in filters(entries) {
        let mut stale = list(socket, filter);
        stale.retain(|flow| {
            let dst = flow.original.dst;
            entries.iter().filter(|entry| is_before(flow, entry)).any(|entry| {
                *meant.entry((&entry.key, dst)).or_insert_with(|| {
                    entry.key.host_ip.is_some() || is_local(&mut route, dst) && !others(socket, entry, dst)
                })
            })
        });
        delete(socket, &stale);
    }
}

/// Forgets the flows that a DEL made stale.
pub fn forget_after(socket: &mut Socket, entries: &[Entry]) {
    for filter in filters(entries) {
        let mut stale = list(socket, filter);
        stale.retain(|flow| entries.iter().any(|entry| is_after(flow, entry)));
        delete(socket, &stale);
    }
}

fn list(socket: &mut Socket, filter: Filter) -> Vec<Flow> {
    conntrack::flows(socket, filter).unwrap_or_else(|error| {
        eprintln!("cannot look for stale flows: {error}");
        Vec::new()
    })
}

fn delete(socket: &mut Socket, stale: &[Flow]) {
    if let Err(error) = conntrack::delete(socket, stale) {
        eprintln!("cannot delete stale flows: {error}");
    }
}

/// Whether the address is this host's; only then can a host port for any address have been meant. The socket is opened
/// for the first one that is asked for.
fn is_local(route: &mut Option<Socket>, ip: IpAddr) -> bool {
    if route.is_none() {
        *route = Socket::route().ok();
    }
    let way = route.as_mut().map(|socket| socket.route_to(ip));
    way.is_some_and(|way| way.is_ok_and(|way| way.is_some_and(|way| way.local)))
}
