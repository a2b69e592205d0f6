//! The container's interface: found, set up and down through rtnetlink, and reached by sockets that exist only during an
//! exchange. An open socket would keep the namespace alive, and with it a device that was moved there.
//!
//! Entering a namespace moves a thread. So each entry has a thread of its own, which opens the sockets and ends there: no thread
//! needs a way back, and none goes on in a container's namespace after an error or a panic. Sockets are closed in threads too,
//! because closing a packet socket waits for an RCU grace period.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_common::netns::{Netns, NetnsError};
use futures_util::TryStreamExt as _;
use netlink_packet_route::link::{LinkAttribute, LinkFlags, LinkMessage, State};
use nix::sched::{CloneFlags, setns};
use nix::sys::socket::{LinkAddr, bind};
use rtnetlink::{Handle, LinkGetRequest, LinkUnspec};
use serde::{Deserialize, Serialize};
use socket2::{Domain, Protocol, SockFilter, Socket, Type};
use tokio::net::UdpSocket;
use tokio::sync::{Semaphore, oneshot};
use tokio::task::JoinHandle;

use crate::frame::{self, Addresses, BROADCAST, CLIENT_PORT, SERVER_PORT};
use crate::log;
use crate::machine::Peer;

/// How long ADD waits for the carrier of a link that was just set up. Without it the first message would be lost.
const CARRIER_WAIT: Duration = Duration::from_secs(2);
const CARRIER_POLL: Duration = Duration::from_millis(20);
/// The pauses before the attempts to set an interface down.
const DOWN_PAUSES: [Duration; 3] = [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1)];
/// The most threads that are in containers' namespaces at once.
static ENTRIES: Semaphore = Semaphore::const_new(64);
/// `ETH_P_IP`.
const ETH_P_IP: u16 = 0x0800;
/// `ARPHRD_ETHER`.
const ETHERNET: usize = 6;

/// The interface of a container, and how its namespace is recognised.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Sandbox {
    /// The namespace's path, with the daemon's prefix.
    pub(crate) path: PathBuf,
    /// Device and inode of the namespace.
    pub(crate) identity: (u64, u64),
    pub(crate) ifname: String,
    pub(crate) index: u32,
    pub(crate) mac: [u8; 6],
}

impl Sandbox {
    /// Finds the interface, sets it up and waits for its carrier.
    pub(crate) async fn prepare(path: PathBuf, ifname: &str) -> Result<Self, String> {
        let netns = Netns::open(&path.to_string_lossy()).map_err(|error| error.to_string())?;
        let identity =
            netns.identity().map_err(|error| format!("failed to look at {}: {error}", path.display()))?;
        let rtnetlink = Rtnetlink::open(netns).await.map_err(|error| error.to_string())?;
        let looking_up = |why: &dyn std::fmt::Display| format!("error looking up {ifname:?}: {why}");
        let link = rtnetlink.link(ifname).await.map_err(|error| looking_up(&error))?;
        let link = link.ok_or_else(|| looking_up(&"Link not found"))?;
        let mac = mac(&link).ok_or_else(|| looking_up(&"it has no Ethernet address"))?;
        let index = link.header.index;
        if !link.header.flags.contains(LinkFlags::Up) {
            rtnetlink
                .set(index, true)
                .await
                .map_err(|error| format!("failed to set {ifname:?} up: {error}"))?;
        }
        let carrier = async {
            while rtnetlink.link(ifname).await.ok().flatten().is_some_and(|link| !has_carrier(&link)) {
                tokio::time::sleep(CARRIER_POLL).await;
            }
        };
        // Without a carrier the exchange takes place nevertheless: it may come late.
        let _ = tokio::time::timeout(CARRIER_WAIT, carrier).await;
        Ok(Sandbox { path, identity, ifname: ifname.to_owned(), index, mac })
    }

    /// Whether the path leads to no namespace or to another one. What cannot be looked at is not gone.
    pub(crate) fn is_gone(&self) -> bool {
        matches!(self.find(&self.path), Ok(None))
    }

    /// Whether the namespace at this path has the interface. One that was deleted and made again is another one: its index
    /// differs.
    pub(crate) async fn is_at(&self, path: &Path) -> io::Result<bool> {
        let Some(netns) = self.find(path)? else { return Ok(false) };
        let sandbox = self.clone();
        inside(netns, move || Ok(sandbox.link_address()?.is_some())).await
    }

    /// Sets the interface down. A missing one is down.
    pub(crate) async fn set_down(&self) {
        for pause in DOWN_PAUSES {
            tokio::time::sleep(pause).await;
            match self.try_set_down().await {
                Ok(()) => return,
                Err(why) => {
                    log(&format!("failed to set {} of {} down: {why}", self.ifname, self.path.display()))
                }
            }
        }
    }

    async fn try_set_down(&self) -> Result<(), String> {
        let text = |error: io::Error| error.to_string();
        let Some(netns) = self.find(&self.path).map_err(text)? else { return Ok(()) };
        let rtnetlink = Rtnetlink::open(netns).await.map_err(text)?;
        rtnetlink.set(self.index, false).await
    }

    /// The namespace, if it is at this path.
    fn find(&self, path: &Path) -> io::Result<Option<Netns>> {
        match Netns::open(&path.to_string_lossy()) {
            Ok(netns) => Ok((netns.identity()? == self.identity).then_some(netns)),
            Err(NetnsError::NotFound(_) | NetnsError::NotANamespace(_)) => Ok(None),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn open(&self) -> io::Result<Netns> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("{} is gone", self.path.display()));
        self.find(&self.path)?.ok_or_else(gone)
    }

    /// Opens the sockets of an exchange. With an address also a socket that sends from there.
    pub(crate) async fn connect(&self, address: Option<Ipv4Addr>) -> io::Result<Sockets> {
        let sandbox = self.clone();
        let (packets, udp) = inside(self.open()?, move || {
            let packets = sandbox.packet_socket()?;
            // Without the address on the interface, frames are sent instead.
            let address = address.filter(|address| sandbox.has(*address));
            Ok((packets, address.and_then(|address| sandbox.udp_socket(address).ok())))
        })
        .await?;
        // tokio has no safe type for packet sockets. recv and send of this one are recv(2) and send(2) of any socket.
        let packets = UdpSocket::from_std(std::net::UdpSocket::from(OwnedFd::from(packets)))?;
        Ok(Sockets { packets, udp, mac: self.mac })
    }

    /// A socket for IPv4 frames on the interface, which must still be the same.
    fn packet_socket(&self) -> io::Result<Socket> {
        let gone = || io::Error::new(io::ErrorKind::NotFound, format!("the link {} is gone", self.ifname));
        let address = self.link_address()?.ok_or_else(gone)?;
        let protocol = Protocol::from(i32::from(ETH_P_IP.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(protocol))?;
        socket.attach_filter(&answers_to(self.mac))?;
        // The address has no protocol, so the socket keeps its own: packet_bind() in net/packet/af_packet.c.
        bind(socket.as_raw_fd(), &address)?;
        socket.set_nonblocking(true)?;
        Ok(socket)
    }

    /// The link's address, as `bind` needs it.
    fn link_address(&self) -> io::Result<Option<LinkAddr>> {
        let addresses = nix::ifaddrs::getifaddrs()?.filter(|address| address.interface_name == self.ifname);
        let mut links = addresses.filter_map(|address| address.address?.as_link_addr().copied());
        Ok(links.find(|link| link.ifindex() == self.index as usize && link.addr() == Some(self.mac)))
    }

    /// Whether the interface has the address. bind(2) does not tell: `ip_nonlocal_bind` lets it succeed.
    fn has(&self, wanted: Ipv4Addr) -> bool {
        let mut addresses = nix::ifaddrs::getifaddrs().into_iter().flatten();
        addresses.any(|address| {
            address.interface_name == self.ifname
                && address
                    .address
                    .is_some_and(|found| found.as_sockaddr_in().is_some_and(|v4| v4.ip() == wanted))
        })
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

/// A filter for the answers to this client (classic BPF): UDP datagrams to the client's port with its MAC address, which are
/// not later fragments. On a bridge every container sees the answers that a server broadcasts to the others.
fn answers_to(mac: [u8; 6]) -> [SockFilter; 13] {
    let op = SockFilter::new;
    let [a, b, c, d, e, f] = mac;
    // Behind the headers of Ethernet and UDP; the filter adds the length of the IP header.
    let chaddr = 14 + 8 + 28;
    [
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
    packets: UdpSocket,
    udp: Option<Socket>,
    mac: [u8; 6],
}

impl Sockets {
    /// Sends a message to everybody.
    pub(crate) async fn broadcast(&self, message: &[u8]) -> io::Result<()> {
        self.frame(BROADCAST, Ipv4Addr::UNSPECIFIED, Ipv4Addr::BROADCAST, message).await
    }

    /// Sends a message to the server by the container's routes, or directly.
    pub(crate) async fn unicast(&self, message: &[u8], peer: Peer) -> io::Result<()> {
        let Some(udp) = &self.udp else { return self.direct(message, peer).await };
        udp.send_to(message, &SocketAddrV4::new(peer.server, SERVER_PORT).into()).map(drop)
    }

    /// Sends a message to the server without a wait for its MAC address.
    pub(crate) async fn direct(&self, message: &[u8], peer: Peer) -> io::Result<()> {
        self.frame(peer.mac, peer.address, peer.server, message).await
    }

    async fn frame(&self, to_mac: [u8; 6], from: Ipv4Addr, to: Ipv4Addr, message: &[u8]) -> io::Result<()> {
        let addresses = Addresses { from_mac: self.mac, to_mac, from, to };
        let frame = frame::build(addresses, message).ok_or(io::ErrorKind::InvalidInput)?;
        self.packets.send(&frame).await.map(drop)
    }

    /// Waits for the next frame and returns it.
    pub(crate) async fn receive(&self) -> io::Result<Vec<u8>> {
        let mut buffer = vec![0; 2048];
        let len = self.packets.recv(&mut buffer).await?;
        buffer.truncate(len);
        Ok(buffer)
    }

    /// Closes the sockets without a wait, unless the kernel has no thread for it.
    pub(crate) fn close(self) {
        // Without a thread the closure is dropped here, and the sockets with it. spawn_blocking would panic.
        let _ = std::thread::Builder::new().spawn(move || drop(self));
    }
}

/// A connection to rtnetlink in the namespace. It ends with this value.
struct Rtnetlink {
    handle: Handle,
    connection: JoinHandle<()>,
}

impl Drop for Rtnetlink {
    fn drop(&mut self) {
        self.connection.abort();
    }
}

impl Rtnetlink {
    async fn open(netns: Netns) -> io::Result<Self> {
        let runtime = tokio::runtime::Handle::current();
        let open = move || {
            let _entered = runtime.enter();
            rtnetlink::new_connection()
        };
        let (connection, handle, _) = inside(netns, open).await?;
        Ok(Rtnetlink { handle, connection: tokio::spawn(connection) })
    }

    /// The link of this name; `None` if it does not exist.
    async fn link(&self, name: &str) -> Result<Option<LinkMessage>, String> {
        first(self.handle.link().get().match_name(name.to_owned())).await
    }

    /// Sets the link up or down. rtnetlink takes a connection that has failed for success, so this looks at the link then.
    async fn set(&self, index: u32, up: bool) -> Result<(), String> {
        let link = LinkUnspec::new_with_index(index);
        let link = if up { link.up() } else { link.down() };
        match self.handle.link().change(link.build()).execute().await {
            Err(error) if !is_missing(&error) => return Err(error.to_string()),
            _ => {}
        }
        match first(self.handle.link().get().match_index(index)).await? {
            Some(link) if link.header.flags.contains(LinkFlags::Up) != up => {
                Err("it stays as it was".to_owned())
            }
            None if up => Err("it is gone".to_owned()),
            _ => Ok(()),
        }
    }
}

/// The link that a request asks for; `None` if it does not exist.
async fn first(request: LinkGetRequest) -> Result<Option<LinkMessage>, String> {
    match Box::pin(request.execute()).try_next().await {
        Err(error) if is_missing(&error) => Ok(None),
        Err(error) => Err(error.to_string()),
        Ok(None) => Err("the connection to rtnetlink has failed".to_owned()),
        Ok(link) => Ok(link),
    }
}

/// Whether the link does not exist.
fn is_missing(error: &rtnetlink::Error) -> bool {
    let rtnetlink::Error::NetlinkError(error) = error else { return false };
    error.raw_code() == -(nix::errno::Errno::ENODEV as i32)
}

fn mac(link: &LinkMessage) -> Option<[u8; 6]> {
    link.attributes.iter().find_map(|attribute| match attribute {
        LinkAttribute::Address(bytes) if bytes.len() == ETHERNET => bytes.as_slice().try_into().ok(),
        _ => None,
    })
}

/// Whether the link can carry frames. Some drivers do not say.
fn has_carrier(link: &LinkMessage) -> bool {
    link.attributes
        .iter()
        .any(|attribute| matches!(attribute, LinkAttribute::OperState(State::Up | State::Unknown)))
}

/// Does the work in a new thread that enters the namespace for good.
async fn inside<T: Send + 'static>(
    netns: Netns,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let _permit = ENTRIES.acquire().await.map_err(io::Error::other)?;
    let (sender, outcome) = oneshot::channel();
    std::thread::Builder::new().spawn(move || {
        let outcome = setns(&netns, CloneFlags::CLONE_NEWNET).map_err(io::Error::from).and_then(|()| work());
        // The caller does not wait any longer.
        let _ = sender.send(outcome);
    })?;
    // Without an answer the thread has panicked.
    outcome.await.map_err(io::Error::other)?
}
