//! Deletes UDP and SCTP flows that keep the translation of an earlier ruleset.
//!
//! TCP is left alone: a connection to a container that is gone ends by itself, and an established connection
//! to another destination must continue.

use cni_common::remark;
use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrule_kernel::conntrack::{self, DST_NAT, Filter, Flow};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;

use crate::list::unmapped;
use crate::plan::{HostPort, Key};

fn is_to_host_port(flow: &Flow, host_port: &HostPort) -> bool {
    let key = &host_port.key;
    flow.proto == key.proto.number()
        && flow.original.dst_port == key.port
        && IpFamily::of(flow.original.dst) == key.map_set.family
        && key.host_ip.is_none_or(|ip| ip == flow.original.dst)
}

fn leads_to_target(flow: &Flow, host_port: &HostPort) -> bool {
    (flow.reply.src, flow.reply.src_port) == (host_port.target.ip(), host_port.target.port())
}

/// Whether the removal of the host port made the flow stale: it is translated to the target.
fn is_stale_after_removal(flow: &Flow, host_port: &HostPort) -> bool {
    is_to_host_port(flow, host_port) && leads_to_target(flow, host_port) && flow.status & DST_NAT != 0
}

/// One filter for each family and protocol of the host ports, limited to one port if all have the same.
fn filters(host_ports: &[HostPort]) -> Vec<Filter> {
    let mut filters: Vec<Filter> = Vec::new();
    for host_port in host_ports.iter().filter(|host_port| host_port.has_lasting_flows()) {
        let filter = Filter {
            family: host_port.key.map_set.family,
            proto: host_port.key.proto.number(),
            dst_port: Some(host_port.key.port),
        };
        match filters.iter_mut().find(|known| (known.family, known.proto) == (filter.family, filter.proto)) {
            Some(known) if known.dst_port != filter.dst_port => known.dst_port = None,
            Some(_) => {}
            None => filters.push(filter),
        }
    }
    filters
}

/// Deletes the flows that ADD of these host ports made stale. `has_own` tells whether another host port is
/// for exactly the given destination address.
///
/// Errors do not fail the ADD; they are logged to standard error.
pub fn delete_after_add(
    socket: &mut Socket,
    host_ports: &[HostPort],
    has_own: impl Fn(&mut Socket, &HostPort, IpAddr) -> bool,
) {
    let mut route_socket = None;
    // A busy node has thousands of flows, but to few addresses.
    let mut decided: BTreeMap<(&Key, IpAddr), bool> = BTreeMap::new();
    for filter in filters(host_ports) {
        let mut stale = list(socket, filter);
        stale.retain(|flow| {
            let dst = flow.original.dst;
            let is_changed =
                |host_port: &&HostPort| is_to_host_port(flow, host_port) && !leads_to_target(flow, host_port);
            host_ports.iter().filter(is_changed).any(|host_port| {
                *decided.entry((&host_port.key, dst)).or_insert_with(|| {
                    host_port.key.host_ip.is_some()
                        || is_local(&mut route_socket, dst) && !has_own(socket, host_port, dst)
                })
            })
        });
        delete(socket, &stale);
    }
}

/// Deletes the flows that the removal of these host ports made stale. The call has just removed them, so their addresses are
/// still the container's: the runtime lets the main plugin free them after this one. Errors are logged to standard error.
pub fn delete_after_removal(socket: &mut Socket, host_ports: &[HostPort]) {
    let stale = stale_after_removal(socket, host_ports);
    delete(socket, &stale);
}

fn stale_after_removal(socket: &mut Socket, host_ports: &[HostPort]) -> Vec<Flow> {
    let listed = filters(host_ports).into_iter().flat_map(|filter| list(socket, filter));
    listed.filter(|flow| host_ports.iter().any(|host_port| is_stale_after_removal(flow, host_port))).collect()
}

/// Deletes the flows of host ports that the configuration names and that this DEL has not found. An earlier DEL may have been
/// killed after it had removed them. But if it was complete, address and host port may be another container's by now, whose
/// flows look the same, so the flows of host ports that some container has stay.
///
/// The flows are listed before the host ports. So a flow that an ADD has made after that is not among them, and the kernel
/// deletes a flow only by its own number.
pub fn delete_left(socket: &mut Socket, host_ports: Vec<HostPort>) {
    let mut stale = stale_after_removal(socket, &host_ports);
    if stale.is_empty() {
        return;
    }
    match unmapped(socket, host_ports) {
        Ok(unmapped) => {
            stale.retain(|flow| unmapped.iter().any(|host_port| is_stale_after_removal(flow, host_port)));
            delete(socket, &stale);
        }
        Err(error) => remark!("conntrack entries stay: {error}"),
    }
}

fn list(socket: &mut Socket, filter: Filter) -> Vec<Flow> {
    conntrack::flows(socket, filter).unwrap_or_else(|error| {
        remark!("failed to list conntrack entries: {error}");
        Vec::new()
    })
}

fn delete(socket: &mut Socket, stale: &[Flow]) {
    if let Err(error) = conntrack::delete(socket, stale) {
        remark!("failed to delete stale conntrack entries: {error}");
    }
}

/// Whether the address is local; only packets to such an address use a host port without a host address. The
/// first call opens the socket.
fn is_local(route_socket: &mut Option<Socket>, ip: IpAddr) -> bool {
    if route_socket.is_none() {
        *route_socket = Socket::route().ok();
    }
    let route = route_socket.as_mut().map(|socket| socket.route_to(ip));
    route.is_some_and(|route| route.is_ok_and(|route| route.is_some_and(|route| route.local)))
}
