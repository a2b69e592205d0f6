//! The `loopback` CNI plugin: sets `lo` up in the container.
//!
//! It ignores CNI_IFNAME and changes only the flags of `lo`. So it may run concurrently with other plugins in
//! the same namespace, which containerd does.

use std::net::IpAddr;

use cni_common::plugin::{AddRequest, DelRequest, Plugin};
use cni_common::spec::{AddResult, CniError, Context, Interface, IpConfig};
use ferrule_kernel::netlink::addr::{self, Address};
use ferrule_kernel::netlink::link::{self, IFF_UP};
use ferrule_kernel::netlink::{Answer, LinkId, Mac, Message, Socket};
use ferrule_kit::{check, socket};

/// The loopback link's name and index, the same in every namespace (`LOOPBACK_IFINDEX`, net/flow.h).
const NAME: &str = "lo";
const INDEX: u32 = 1;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { check, ..Plugin::new("loopback", add, del) };

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let mut socket = socket::route_in(call.sandbox.netns()?)?;
    if let Some(result) = &call.prev_result {
        set(&mut socket, true)?;
        return Ok(result.clone());
    }
    let [set, found] = socket.request_each([flags(true), addr::list(INDEX)]);
    set.context(|| SET_UP)?;
    Ok(describe(&addresses(found)?, call.sandbox.path()))
}

fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let result = check::prev_result(call)?;
    let mut socket = socket::route_in(call.sandbox.netns()?)?;
    let [lo, found] = socket.request_each([link::get(LinkId::Index(INDEX)), addr::list(INDEX)]);
    let lo = link::read(lo).context(|| "look up lo")?;
    check::ensure(lo.is_some_and(|lo| lo.is_up()), || "loopback interface is down".to_owned())?;
    let present = addresses(found)?;
    let mut expected = result.ips.iter().filter(|ip| result.interface_of(ip).is_some_and(|i| i.name == NAME));
    expected.try_for_each(|ip| {
        let is_present = present.iter().any(|address| address.network == ip.address);
        check::ensure(is_present, || format!("loopback interface does not have address {}", ip.address))
    })
}

fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    match call.netns.opened() {
        Some(netns) => set(&mut socket::route_in(netns)?, false),
        None => Ok(()),
    }
}

/// The step of ADD, for errors.
const SET_UP: &str = "set lo up";

fn flags(up: bool) -> Message {
    link::set_flags(INDEX, if up { IFF_UP } else { 0 }, IFF_UP)
}

fn set(socket: &mut Socket, up: bool) -> Result<(), CniError> {
    socket.request(flags(up)).context(|| if up { SET_UP } else { "set lo down" }).map(drop)
}

fn addresses(answer: Answer) -> Result<Vec<Address>, CniError> {
    addr::read(answer, INDEX).context(|| "list the addresses of lo")
}

/// The result of an ADD without prevResult: the first loopback address of each family. Administrators may add
/// other addresses to `lo`; they are not reported.
fn describe(addresses: &[Address], sandbox: &str) -> AddResult {
    let lo = Interface {
        name: NAME.to_owned(),
        mac: Mac::default().to_string(),
        sandbox: sandbox.to_owned(),
        ..Interface::default()
    };
    let first = |of_family: fn(&IpAddr) -> bool| {
        addresses
            .iter()
            .map(|address| address.network)
            .find(|net| net.ip().is_loopback() && of_family(&net.ip()))
    };
    let ips = [first(IpAddr::is_ipv4), first(IpAddr::is_ipv6)].into_iter().flatten();
    let ips = ips.map(|address| IpConfig { address, gateway: None, interface: Some(0) }).collect();
    AddResult { interfaces: vec![lo], ips, ..AddResult::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_loopback_address_of_each_family_is_reported() {
        let addresses: Vec<Address> = ["10.9.9.9/32", "127.0.0.1/8", "127.0.0.2/8", "fd00::1/128", "::1/128"]
            .iter()
            .map(|text| Address { network: text.parse().unwrap(), flags: 0, scope: 0 })
            .collect();
        let result = describe(&addresses, "/run/netns/x");
        let ips: Vec<String> = result.ips.iter().map(|ip| ip.address.to_string()).collect();
        assert_eq!(ips, ["127.0.0.1/8", "::1/128"]);
        assert!(result.ips.iter().all(|ip| result.interface_of(ip).is_some_and(|lo| lo.name == "lo")));
    }
}
