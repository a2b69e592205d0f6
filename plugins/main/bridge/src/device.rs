//! The bridge device. All attachments of a network, and perhaps other networks, share it; no verb deletes it.

use std::thread;
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::addr::{self, Address};
use ferrule_kernel::netlink::link::{self, IFF_PROMISC, IFF_UP, NewLink, OPER_UP};
use ferrule_kernel::netlink::{Link, LinkId, Mac, Socket, bridge};
use ferrule_kit::steps::{Step, UndoStack};
use nix::errno::Errno;

use crate::config::Conf;

/// The kernel's link type.
pub const KIND: &str = "bridge";
/// How long a port may take to become operational; the reference waits as long.
const PORT_TIMEOUT: Duration = Duration::from_millis(2550);

/// The bridge of this name. `None` if there is no such link.
///
/// # Errors
/// `"x" already exists but is not a bridge`.
pub fn find(socket: &mut Socket, name: &str) -> Result<Option<Link>, CniError> {
    let found = socket.link(LinkId::Name(name)).context(|| format!("look up bridge {name:?}"))?;
    found.map(|link| refuse_other_kind(link, name)).transpose()
}

/// STATUS: checks that ADD can use the bridge, or can make it.
///
/// # Errors
/// Those of ADD.
pub fn status(socket: &mut Socket, conf: &Conf) -> Result<(), CniError> {
    let found = find(socket, &conf.bridge)?;
    conf.check_names(found.as_ref())?;
    match found {
        Some(bridge) => conf.vlan.check_bridge(&bridge),
        None if conf.vlan.needs_filtering()
            && bridge::lacks_filtering(&socket.request(bridge::probe_filtering())) =>
        {
            Err(conf.vlan.unsupported())
        }
        None => Ok(()),
    }
}

fn refuse_other_kind(link: Link, name: &str) -> Result<Link, CniError> {
    if link.kind == KIND {
        return Ok(link);
    }
    let error = CniError::internal(format!("{name:?} already exists but is not a bridge"));
    Err(error.with_remedy("remove that link, or set another name as \"bridge\""))
}

/// Returns the configured bridge. Creates it if it does not exist, sets it up if it is down, gives it a
/// MAC address if it has none, and keeps routers in containers from configuring the host by it. A new bridge filters VLANs if
/// the configuration has any. `mac` is the MAC address that it had, if it has been reported; else the new one is random.
pub fn ensure(socket: &mut Socket, conf: &Conf, mac: Option<Mac>) -> Result<Link, CniError> {
    let found = find(socket, &conf.bridge)?;
    conf.check_names(found.as_ref())?;
    let Some(mut bridge) = found else {
        return create(socket, conf, mac);
    };
    // The configuration may have one of its alternative names, which sysctls have not.
    let name = &bridge.name.clone();
    conf.vlan.check_bridge(&bridge)?;
    if bridge.accepts_ra {
        ferrule_kit::sysctl::ignore_router_advertisements(name);
    }
    let step = |request| Step::new(format!("set up bridge {name:?}"), request);
    let mut repairs = Vec::new();
    let wanted = flags(conf);
    if bridge.flags & wanted != wanted {
        repairs.push(step(link::set_flags(bridge.index, wanted, wanted)));
    }
    if bridge.mac.is_zero() {
        // The reference makes bridges whose MAC address follows their ports. It is all-zero after the last
        // port is deleted.
        bridge.mac = mac.map_or_else(Mac::random, Ok).context(|| "get a random MAC address")?;
        repairs.push(step(link::set_mac(bridge.index, bridge.mac)));
    }
    UndoStack::default().run(socket, repairs)?;
    Ok(bridge)
}

fn create(socket: &mut Socket, conf: &Conf, mac: Option<Mac>) -> Result<Link, CniError> {
    let name = conf.bridge.as_str();
    let step = || format!("could not add {name:?}");
    // Without an address of its own, the bridge would take that of a port.
    let mac = Some(mac.map_or_else(Mac::random, Ok).context(step)?);
    let (mtu, flags) = (conf.link.mtu, flags(conf));
    let bridge = NewLink { kind: KIND, name, mac, mtu, flags, ..NewLink::default() };
    let wants_filtering = conf.vlan.wants_filtering;
    let mut make = |request| socket.request_each([request, link::get(LinkId::Name(name))]);
    let [mut made, mut found] =
        make(if wants_filtering { bridge::new_filtering(&bridge) } else { bridge.request() });
    let lacks_filtering = wants_filtering && matches!(&made, Err(error) if error.errno == Errno::EOPNOTSUPP);
    if lacks_filtering && conf.vlan.needs_filtering() {
        return Err(conf.vlan.unsupported());
    }
    if lacks_filtering {
        [made, found] = make(bridge.request());
    }
    match made {
        Ok(_) => {}
        // A concurrent ADD created the bridge first.
        Err(error) if error.errno == Errno::EEXIST => {}
        Err(error) => return Err(error).context(step),
    }
    let bridge = refuse_other_kind(link::read(found).context(step)?.unwrap_or_default(), name)?;
    conf.vlan.check_bridge(&bridge)?;
    ferrule_kit::sysctl::ignore_router_advertisements(name);
    // The bridge gets its link-local address with its first port.
    ferrule_kit::sysctl::skip_duplicate_address_detection(name);
    Ok(bridge)
}

/// The flags that the bridge must have.
fn flags(conf: &Conf) -> u32 {
    IFF_UP | if conf.promisc_mode { IFF_PROMISC } else { 0 }
}

/// Gives the bridge the MAC address that it had, if the kernel has given it the new port's, as it does for a bridge without an
/// explicit address. With an explicit one it follows no port any more: neighbours keep their way to the gateway.
fn keep_mac(socket: &mut Socket, before: &Link, now: Link, port: &Link) -> Result<Link, CniError> {
    if now.mac == before.mac || now.mac != port.mac {
        return Ok(now);
    }
    let step = || format!("bridge {:?}: restore the MAC address {}", before.name, before.mac);
    socket.request(link::set_mac(before.index, before.mac)).context(step)?;
    Ok(Link { mac: before.mac, ..now })
}

/// Waits until the port is operational, if it must be. Does not wait any longer once `is_held_down` says that the container keeps its
/// interface down: then it cannot be. Returns the port and the bridge, read again, and the bridge's addresses.
///
/// # Errors
/// The reference's `bridge port in error state: ...`.
pub fn settle(
    socket: &mut Socket,
    port: &Link,
    bridge: &Link,
    must_operate: bool,
    is_held_down: &mut dyn FnMut() -> bool,
) -> Result<(Link, Link, Vec<Address>), CniError> {
    let end = Instant::now() + PORT_TIMEOUT;
    let mut pause = Duration::from_micros(100);
    loop {
        let step = || format!("look up {:?} and {:?}", port.name, bridge.name);
        let [port_now, bridge_now] = [port, bridge].map(|link| link::get(LinkId::Index(link.index)));
        let requests = [port_now, bridge_now, addr::list(bridge.index)];
        let [port_now, bridge_now, addresses] = socket.request_each(requests);
        let (port_now, bridge_now) =
            (link::read(port_now).context(step)?, link::read(bridge_now).context(step)?);
        let (Some(port_now), Some(bridge_now)) = (port_now, bridge_now) else {
            return Err(CniError::internal(format!("{}: link disappeared", step())));
        };
        if port_now.operstate == OPER_UP || !must_operate {
            let list = || format!("list the addresses of {:?}", bridge.name);
            let addresses = addr::read(addresses, bridge.index).context(list)?;
            let bridge_now = keep_mac(socket, bridge, bridge_now, &port_now)?;
            return Ok((port_now, bridge_now, addresses));
        }
        let is_held_down = is_held_down();
        if is_held_down || Instant::now() >= end {
            let held = if is_held_down { ": the container keeps its interface down" } else { "" };
            let details = format!("operational state of {:?} is {}{held}", port.name, port_now.operstate);
            return Err(CniError::internal("bridge port in error state: down").with_details(details));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
