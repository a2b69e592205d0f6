//! The container's interface: sysctls, addresses and routes.

use std::net::IpAddr;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netns::Netns;
use cni_common::spec::{CniError, Context, IpConfig};
use ferrule_kernel::netlink::LinkId;
use ferrule_kernel::netlink::link::{self, IFF_UP, OPER_UP};
use ferrule_kernel::netlink::route::{self, Route};
use ferrule_kernel::netlink::{Link, Socket, addr, devconf};
use ferrule_kernel::{observer, sysctl};
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::address_wait::{Dad, GROUPS_TIMEOUT, wait_for_dad, wait_for_groups};
use crate::netns::enter;
use crate::plan::Plan;
use crate::route::{installed, of_result, through_gateways};
use crate::steps::{Step, UndoStack};
use crate::{router_wait, socket};

/// `IFF_LOWER_UP`: the link has a carrier.
const IFF_LOWER_UP: u32 = 1 << 16;

/// `IPV6_MIN_MTU` (linux/ipv6.h)
const LEAST_IPV6_MTU: u32 = 1280;

/// One interface of a container, which need not exist yet, and a netlink socket in the container's namespace.
pub struct Container<'a> {
    netns: &'a Netns,
    ifname: &'a str,
    /// What duplicate address detection (DAD) does with new IPv6 addresses.
    pub dad: Dad,
    /// Leaves the interface down.
    pub keep_down: bool,
    /// The addresses and routes may be there already: ADD makes them, repair completes them.
    pub completes: bool,
    /// A route netlink socket in the container's namespace.
    pub socket: Socket,
}

impl<'a> Container<'a> {
    /// Opens the netlink socket in the namespace.
    pub fn open(netns: &'a Netns, ifname: &'a str) -> Result<Self, CniError> {
        let socket = socket::route_in(netns)?;
        Ok(Container { netns, ifname, dad: Dad::Off, keep_down: false, completes: false, socket })
    }

    /// The interface, if it exists.
    pub fn interface(&mut self) -> Result<Option<Link>, CniError> {
        let found = self.socket.link(LinkId::Name(self.ifname));
        found.context(|| format!("look up {:?} in the container", self.ifname))
    }

    /// The interface, which ADD has created.
    ///
    /// # Errors
    /// It does not exist any more.
    pub fn created(&mut self) -> Result<Link, CniError> {
        self.interface()?.ok_or_else(|| self.disappeared())
    }

    fn disappeared(&self) -> CniError {
        CniError::internal(format!("interface {:?} disappeared from the container", self.ifname))
    }

    /// Configures the interface with this ifindex, sets it up unless [`Container::keep_down`] says otherwise, and
    /// reads it back.
    ///
    /// Addresses are added before the link is set up, so that the kernel announces them (`arp_notify`).
    /// Routes are added after that: their next hops are reachable through the link only once it is up.
    pub fn configure(&mut self, index: u32, plan: &Plan) -> Result<Link, CniError> {
        let (ifname, dad) = (self.ifname, self.dad != Dad::Off);
        let addresses = plan.addresses();
        let has_ipv6 = plan.wait_for_ra.is_some() || addresses.iter().any(IpNetwork::is_ipv6);
        let set = enter(self.netns, || set_sysctls(ifname, has_ipv6, dad, plan.wait_for_ra.is_some()));
        set.map_err(|error| self.explain_sysctls(index, error))?;
        let what = format!("failed to let {ifname:?} announce its addresses");
        // The link has no IPv4 if its MTU is below 68 bytes.
        let mut steps = vec![Step::new(what, devconf::set_arp_notify(index)).unless(&[Errno::EAFNOSUPPORT])];
        let done: &[Errno] = if self.completes { &[Errno::EEXIST] } else { &[] };
        for address in &addresses {
            // Usually no duplicate address detection: the IPAM plugin owns the subnet, and DAD takes seconds.
            let without_dad = if dad { 0 } else { addr::NODAD };
            let flags = without_dad | if plan.point_to_point { addr::NO_PREFIX_ROUTE } else { 0 };
            let add = addr::add(index, *address, flags);
            steps.push(Step::new(format!("failed to add IP addr {address} to {ifname:?}"), add).unless(done));
        }
        if !self.keep_down {
            let up = link::set_flags(index, IFF_UP, IFF_UP);
            steps.push(Step::new(format!("failed to set {ifname:?} up"), up));
        }
        for route in through_gateways(&plan.ips).iter().filter(|_| plan.point_to_point) {
            let what = format!("failed to add route '{} dev {ifname}'", route.dst);
            steps.push(Step::new(what, route::add(index, route)).unless(done));
        }
        for route in &installed(&plan.routes, &plan.ips) {
            let via = route.gw.map_or(String::new(), |gw| format!(" via {gw}"));
            let what = format!("failed to add route '{}{via} dev {ifname}'", route.dst);
            let onlink = plan.point_to_point && route.gw.is_some_and(|gw| is_neighbour(gw, &plan.ips));
            let add = route::add(index, &Route { onlink, ..of_result(route) });
            steps.push(Step::new(what, add).unless(done));
        }
        steps.push(Step::new(format!("look up {ifname:?}"), link::get(LinkId::Index(index))));
        // Removing the link undoes all of these.
        let found = UndoStack::default().run(&mut self.socket, steps)?;
        let found = link::read(Ok(found)).context(|| "read the container's interface")?;
        found.ok_or_else(|| self.disappeared())
    }

    /// The error of [`set_sysctls`], with its reason if that is the MTU: the kernel then has no IPv6 on the link.
    fn explain_sysctls(&mut self, index: u32, error: CniError) -> CniError {
        let found = self.socket.link(LinkId::Index(index)).ok().flatten();
        let Some(mtu) = found.map(|link| link.mtu).filter(|mtu| *mtu < LEAST_IPV6_MTU) else { return error };
        let msg = format!(
            "failed to enable IPv6: {:?} has MTU {mtu}, and IPv6 needs at least {LEAST_IPV6_MTU}",
            self.ifname
        );
        let remedy =
            format!("set \"mtu\" to {LEAST_IPV6_MTU} or more, or give the network no IPv6 addresses");
        CniError { msg, ..error }.with_remedy(remedy)
    }

    /// Waits until the kernel lets the interface send, after its other end has come up: it drops packets until then. Not longer than
    /// [`GROUPS_TIMEOUT`]. Returns the interface, read again.
    ///
    /// # Errors
    /// The interface is gone.
    pub fn wait_for_carrier(&mut self, link: Link) -> Result<Link, CniError> {
        if self.keep_down {
            return Ok(link);
        }
        let end = Instant::now() + GROUPS_TIMEOUT;
        let mut pause = Duration::from_micros(50);
        loop {
            let found = self.socket.link(LinkId::Index(link.index));
            let found = found.context(|| format!("look up {:?} in the container", self.ifname))?;
            let found = found.ok_or_else(|| self.disappeared())?;
            if found.operstate == OPER_UP || Instant::now() >= end {
                return Ok(found);
            }
            observer::step("wait for the carrier", || thread::sleep(pause));
            pause = (pause * 2).min(Duration::from_millis(2));
        }
    }

    /// Waits until the addresses of the interface can be used, as [`Container::dad`] says. A device of the node may get its carrier
    /// later; on another link without one the kernel does not start DAD.
    ///
    /// # Errors
    /// Those of [`wait_for_dad`].
    pub fn wait(&mut self, link: &Link, addresses: &[IpNetwork]) -> Result<(), CniError> {
        match self.dad {
            Dad::Off => wait_for_groups(&mut self.socket, link.index, addresses),
            Dad::Wait if link.kind.is_empty() || link.flags & IFF_LOWER_UP != 0 => {
                wait_for_dad(&mut self.socket, link, addresses)?;
            }
            Dad::Wait | Dad::NoWait => {}
        }
        Ok(())
    }

    /// Waits for addresses from a router, if the plan says so, and adds them to the plan: the result reports them.
    ///
    /// # Errors
    /// Those of [`router_wait::wait`].
    pub fn wait_for_router(&mut self, link: &Link, plan: &mut Plan) -> Result<(), CniError> {
        let Some(limit) = plan.wait_for_ra else { return Ok(()) };
        let found = router_wait::wait(&mut self.socket, link, limit, &plan.addresses())?;
        let ip = |address| IpConfig { address, gateway: None, interface: None };
        plan.ips.extend(found.into_iter().map(ip));
        Ok(())
    }
}

/// Whether the next hop is in the subnet of an address without being its gateway. Without a route to that subnet the kernel
/// would refuse it.
fn is_neighbour(next_hop: IpAddr, ips: &[IpConfig]) -> bool {
    ips.iter().any(|ip| ip.address.contains(next_hop)) && !ips.iter().any(|ip| ip.gateway == Some(next_hop))
}

/// Sets the interface's sysctls in the calling thread's namespace. A kernel without IPv6 lacks the IPv6
/// ones; that is an error only if there is an IPv6 address.
fn set_sysctls(ifname: &str, has_ipv6: bool, dad: bool, accepts_ra: bool) -> Result<(), CniError> {
    let ipv6 = |link: &str, setting: &str| format!("net/ipv6/conf/{link}/{setting}");
    if dad {
        // Enhanced DAD (RFC 7527) tells its own probes, which a bridge may send back, from another host's.
        let _ = sysctl::write(&ipv6(ifname, "enhanced_dad"), "1");
        // Like arp_notify: the network learns at once which MAC address a new address has.
        let _ = sysctl::write(&ipv6(ifname, "ndisc_notify"), "1");
    }
    let _ = sysctl::write(&ipv6(ifname, "accept_dad"), if dad { "1" } else { "0" });
    if !has_ipv6 {
        return Ok(());
    }
    for link in ["lo", ifname] {
        sysctl::ensure(&ipv6(link, "disable_ipv6"), "0").context(|| "failed to enable IPv6")?;
    }
    if accepts_ra {
        // Also if the container forwards.
        for (setting, value) in [("accept_ra", "2"), ("accept_ra_pinfo", "1"), ("autoconf", "1")] {
            sysctl::ensure(&ipv6(ifname, setting), value)
                .context(|| "failed to accept router advertisements")?;
        }
    }
    // A comfort: no verb of ours sets the link down.
    let _ = sysctl::write(&ipv6(ifname, "keep_addr_on_down"), "1");
    Ok(())
}
