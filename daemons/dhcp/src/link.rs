//! The container's interface: found, set up and down by netlink, and reached by sockets that exist only during an
//! exchange. An open socket would keep the namespace alive, and with it a device that was moved there.
//!
//! Entering a namespace moves a thread. So each entry has a thread of its own, which opens the sockets and ends there: no thread
//! needs a way back, and none goes on in a container's namespace after an error or a panic. Sockets are closed in threads too,
//! because closing a packet socket waits for an RCU grace period.

mod ipv6;

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, SocketAddrV6};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use cni_common::netns::Netns;
use ferrule_daemon::log;
use ferrule_kernel::netlink::link::{IFF_UP, OPER_UP, set_flags};
use ferrule_kernel::netlink::{self, Link, LinkId, Mac, Message};
use nix::errno::Errno;
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{LinkAddr, MsgFlags, SockaddrStorage, sendto};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::io::Interest;
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, oneshot};

use crate::action::Way;
use crate::frame::{self, BROADCAST, CLIENT_PORT, SERVER_PORT};
pub(crate) use ipv6::Ipv6;

/// How long ADD waits for the carrier of a link that was just set up. Without it the first message would be lost.
const CARRIER_WAIT: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);
/// The pauses before the attempts to take an address from a container.
const PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)];
/// The most threads that are in containers' namespaces at once.
static ENTRIES: Semaphore = Semaphore::const_new(64);
/// `ETH_P_IP`.
const ETH_P_IP: u16 = 0x0800;
/// `IF_OPER_UNKNOWN`: some drivers do not say whether they have a carrier.
const OPER_UNKNOWN: u8 = 0;

/// The interface of a container, and how its namespace is recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Interface {
    /// The namespace's path, with the daemon's prefix.
    pub(crate) path: PathBuf,
    /// Device and inode of the namespace.
    pub(crate) identity: (u64, u64),
    pub(crate) ifname: String,
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
}

impl Interface {
    /// Finds the interface, sets it up and waits for its carrier.
    pub(crate) async fn prepare(path: PathBuf, ifname: &str, ipv6: Ipv6) -> Result<Self, String> {
        let netns = Netns::open(&path.to_string_lossy()).map_err(|error| error.to_string())?;
        let identity =
            netns.identity().map_err(|error| format!("failed to look at {}: {error}", path.display()))?;
        let name = ifname.to_owned();
        let link =
            inside(netns, move || Ok(set_up(&name, ipv6))).await.map_err(|error| error.to_string())??;
        Ok(Interface { path, identity, ifname: ifname.to_owned(), index: link.index, mac: link.mac.0 })
    }

    /// Whether the path leads to no namespace or to another one. What cannot be looked at is not gone.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.find(&self.path), Ok(None))
    }

    /// Whether the namespace at this path has the interface. One that was deleted and made again is another one: its index
    /// differs.
    pub(crate) async fn is_at(&self, path: &Path) -> io::Result<bool> {
        let Some(netns) = self.find(path)? else { return Ok(false) };
        let interface = self.clone();
        inside(netns, move || Ok(interface.link_address()?.is_some())).await
    }

    /// Sets the interface down. A missing one is down.
    pub(crate) async fn set_down(&self) {
        self.insist("set it down", || set_flags(self.index, 0, IFF_UP)).await;
    }

    /// Sends a request several times, if it fails. A missing interface or address is success.
    async fn insist(&self, what: &str, request: impl Fn() -> Message) {
        for pause in PAUSES {
            tokio::time::sleep(pause).await;
            let Err(why) = self.request(request()).await else { return };
            log!("{} of {}: failed to {what}: {why}", self.ifname, self.path.display());
        }
    }

    async fn request(&self, request: Message) -> io::Result<()> {
        let Some(netns) = self.find(&self.path)? else { return Ok(()) };
        let work = || Ok(netlink::Socket::route().and_then(|mut socket| socket.request(request)));
        match inside(netns, work).await? {
            Err(error) if !matches!(error.errno, Errno::ENODEV | Errno::EADDRNOTAVAIL) => {
                Err(io::Error::other(error))
            }
            _ => Ok(()),
        }
    }

    /// The namespace, if it is at this path.
    fn find(&self, path: &Path) -> io::Result<Option<Netns>> {
        match Netns::open(&path.to_string_lossy()) {
            Ok(netns) => Ok((netns.identity()? == self.identity).then_some(netns)),
            Err(error) if error.is_absent => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    /// Opens the sockets of an exchange that begins with a message on this way.
    pub(crate) async fn connect(&self, way: Way) -> io::Result<Sockets> {
        let interface = self.clone();
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("{} is gone", self.path.display()));
        let netns = self.find(&self.path)?.ok_or_else(gone)?;
        let (receiver, link, udp) = inside(netns, move || {
            if way == Way::Multicast {
                return Ok((interface.udp6_socket()?, None, None));
            }
            let (socket, link) = interface.packet_socket()?;
            let udp = match way {
                // Without the address on the interface, frames are sent instead.
                Way::Unicast(peer) if interface.has(peer.address) => interface.udp_socket(peer.address).ok(),
                _ => None,
            };
            Ok((socket, Some(link), udp))
        })
        .await?;
        // tokio has no safe type for packet sockets. recv of this one is recv(2) of any socket.
        let receiver = UdpSocket::from_std(std::net::UdpSocket::from(OwnedFd::from(receiver)))?;
        Ok(Sockets { receiver, link, udp, mac: self.mac, index: self.index })
    }

    /// A socket for IPv4 frames on the interface, which must still be the same, and the address of that. The filter binds it:
    /// bind(2) waits for an RCU grace period, which takes seconds on a busy machine (`packet_do_bind` in net/packet/af_packet.c).
    fn packet_socket(&self) -> io::Result<(Socket, LinkAddr)> {
        let address = self.link_address()?.ok_or_else(|| self.gone())?;
        let protocol = Protocol::from(i32::from(ETH_P_IP.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
        socket.attach_filter(&answers_to(self.index, self.mac))?;
        socket.set_nonblocking(true)?;
        Ok((socket, address))
    }

    fn gone(&self) -> io::Error {
        io::Error::new(io::ErrorKind::NotFound, format!("the link {} is gone", self.ifname))
    }

    /// The link's address, as `bind` needs it.
    fn link_address(&self) -> io::Result<Option<LinkAddr>> {
        let mut links = self.addresses()?.filter_map(|address| address.as_link_addr().copied());
        Ok(links.find(|link| link.ifindex() == self.index as usize && link.addr() == Some(self.mac)))
    }

    /// Whether the interface has the address. bind(2) does not tell: `ip_nonlocal_bind` lets it succeed.
    fn has(&self, wanted: Ipv4Addr) -> bool {
        let is_wanted =
            |address: SockaddrStorage| address.as_sockaddr_in().is_some_and(|v4| v4.ip() == wanted);
        self.addresses().is_ok_and(|mut addresses| addresses.any(is_wanted))
    }

    /// The addresses of the interface.
    fn addresses(&self) -> io::Result<impl Iterator<Item = SockaddrStorage>> {
        let all = nix::ifaddrs::getifaddrs()?.filter(|one| one.interface_name == self.ifname);
        Ok(all.filter_map(|one| one.address))
    }

    /// A UDP socket that sends from the leased address. It also spares the server ICMP errors for its answers, which the
    /// packet socket reads.
    fn udp_socket(&self, address: Ipv4Addr) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP))?;
        socket.set_reuse_address(true)?;
        socket.bind_device(Some(self.ifname.as_bytes()))?;
        socket.bind(&SocketAddrV4::new(address, CLIENT_PORT).into())?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }
}

/// A filter for the answers to this client on its interface (classic BPF): UDP datagrams to the client's port with its MAC address,
/// which are not later fragments. On a bridge every container sees the answers that a server broadcasts to the others.
fn answers_to(index: u32, mac: [u8; 6]) -> [SockFilter; 15] {
    let op = SockFilter::new;
    let [a, b, c, d, e, f] = mac;
    // Behind the headers of Ethernet and UDP; the filter adds the length of the IP header.
    let chaddr = 14 + 8 + 28;
    // SKF_AD_OFF + SKF_AD_IFINDEX of linux/filter.h.
    let interface = 0xffff_f000 + 8;
    [
        op(0x20, 0, 0, interface), // ld: the interface's index
        op(0x15, 0, 12, index),
        op(0x30, 0, 0, 14 + 9), // ldb: the protocol
        op(0x15, 0, 10, 17),    // jeq UDP
        op(0x28, 0, 0, 14 + 6), // ldh: the fragment's offset
        op(0x45, 8, 0, 0x1fff), // jset
        op(0xb1, 0, 0, 14),     // ldxb 4*([14]&0xf): the length of the IP header
        op(0x48, 0, 0, 14 + 2), // ldh [x + 16]: the destination port
        op(0x15, 0, 5, u32::from(CLIENT_PORT)),
        op(0x40, 0, 0, chaddr), // ld: the first half of chaddr
        op(0x15, 0, 3, u32::from_be_bytes([a, b, c, d])),
        op(0x48, 0, 0, chaddr + 4), // ldh: the rest
        op(0x15, 0, 1, u32::from_be_bytes([0, 0, e, f])),
        op(0x06, 0, 0, 0xffff), // ret: all of it
        op(0x06, 0, 0, 0),      // ret: nothing
    ]
}

/// The sockets of an exchange.
pub(crate) struct Sockets {
    /// Gets all answers: a packet socket with DHCPv4, a UDP socket with DHCPv6.
    receiver: UdpSocket,
    /// Where the receiver sends frames.
    link: Option<LinkAddr>,
    udp: Option<Socket>,
    mac: [u8; 6],
    index: u32,
}

impl Sockets {
    /// Sends a message.
    pub(crate) async fn send(&self, message: &[u8], way: Way) -> io::Result<()> {
        let (to_mac, from, to) = match (way, &self.udp) {
            (Way::Multicast, _) => {
                let servers = SocketAddrV6::new(ipv6::SERVERS, ipv6::SERVER_PORT, 0, self.index);
                return self.receiver.send_to(message, servers).await.map(drop);
            }
            (Way::Broadcast, _) => (BROADCAST, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST),
            (Way::Unicast(peer), Some(udp)) => {
                return udp.send_to(message, &SocketAddrV4::new(peer.server, SERVER_PORT).into()).map(drop);
            }
            (Way::Unicast(peer) | Way::Direct(peer), _) => (peer.mac, peer.address, peer.server),
        };
        let frame =
            frame::build([self.mac, to_mac], [from, to], message).ok_or(io::ErrorKind::InvalidInput)?;
        let link = self.link.ok_or(io::ErrorKind::InvalidInput)?;
        let send = || Ok(sendto(self.receiver.as_raw_fd(), &frame, &link, MsgFlags::empty())?);
        self.receiver.async_io(Interest::WRITABLE, send).await.map(drop)
    }

    /// Waits for the next frame or datagram and returns it.
    pub(crate) async fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 2048];
        let len = self.receiver.recv(&mut buffer).await?;
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Closes the sockets without a wait, unless the kernel has no thread for it.
    pub(crate) fn close(self) {
        // Without a thread the closure is dropped here, and the sockets with it. spawn_blocking would panic.
        let _ = thread::Builder::new().spawn(move || drop(self));
    }
}

/// Finds the link of this name, sets it up and waits for its carrier, in the thread's namespace.
fn set_up(ifname: &str, ipv6: Ipv6) -> Result<Link, String> {
    let failed = |why: &dyn std::fmt::Display| format!("error looking up {ifname:?}: {why}");
    let mut socket = netlink::Socket::route().map_err(|error| failed(&error))?;
    let link = socket.link(LinkId::Name(ifname)).map_err(|error| failed(&error))?;
    let link = link.ok_or_else(|| failed(&"Link not found"))?;
    if link.mac == Mac::default() {
        return Err(failed(&"it has no Ethernet address"));
    }
    if ipv6 != Ipv6::Leave {
        ipv6::enable(&link, ifname).map_err(|error| format!("failed to enable IPv6: {error}"))?;
    }
    if !link.is_up() {
        let up = socket.request(set_flags(link.index, IFF_UP, IFF_UP));
        up.map_err(|error| format!("failed to set {ifname:?} up: {error}"))?;
    }
    // Without a carrier the exchange takes place nevertheless: it may come late.
    let end = Instant::now() + CARRIER_WAIT;
    let has_carrier = |link: Link| matches!(link.operstate, OPER_UP | OPER_UNKNOWN);
    while Instant::now() < end
        && socket
            .link(LinkId::Index(link.index))
            .is_ok_and(|link| link.is_some_and(|link| !has_carrier(link)))
    {
        thread::sleep(POLL);
    }
    if ipv6 == Ipv6::Wait {
        ipv6::wait_for_link_local(&mut socket, link.index);
    }
    Ok(link)
}

/// Does the work in a new thread that enters the namespace for good.
async fn inside<T: Send + 'static>(
    netns: Netns,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let _permit = ENTRIES.acquire().await.map_err(io::Error::other)?;
    let (sender, outcome) = oneshot::channel();
    thread::Builder::new().spawn(move || {
        let outcome = setns(&netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from).and_then(|()| work());
        // The caller does not wait any longer.
        let _ = sender.send(outcome);
    })?;
    // Without an answer the thread has panicked.
    outcome.await.map_err(io::Error::other)?
}
