//! A DHCPv6 server that does what the test says. It knows clients by their DUID and IAID.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cni_lab::{Place as _, TIMEOUT, eventually};
use dhcproto::v6::{
    Decodable as _, DhcpOption, Encodable as _, IAAddr, IANA, Message, MessageType, OptionCode, Status,
    StatusCode, UnknownOption,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::Lab;

/// The server's DUID.
pub(crate) const DUID: [u8; 10] = [0, 3, 0, 1, 2, 0, 0, 0, 0, 9];

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    Answer,
    /// Lose it.
    Lose,
    /// Answer with this status.
    Refuse(Status),
}

type Rule = Box<dyn FnMut(MessageType) -> Reaction + Send>;
type Forgery = Box<dyn FnMut(&Message, Vec<u8>) -> Vec<Vec<u8>> + Send>;

struct State {
    rule: Rule,
    /// What to send in place of an answer.
    forgery: Option<Forgery>,
    log: Vec<String>,
    /// The address of each client.
    leases: BTreeMap<(Vec<u8>, u32), Ipv6Addr>,
    next: u16,
    /// T1, T2, and the valid lifetime in seconds.
    times: [u32; 3],
    preference: u8,
    options: Vec<(u16, Vec<u8>)>,
}

/// A running server. Dropping it ends it.
pub(crate) struct Server {
    state: Arc<Mutex<State>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Server {
    /// A server on the bridge that answers everything. Leases last this many seconds; the first address is fd00:9::10.
    pub(crate) fn start(lab: &Lab, lease_time: u32) -> Server {
        let state = State {
            rule: Box::new(|_| Reaction::Answer),
            forgery: None,
            log: Vec::new(),
            leases: BTreeMap::new(),
            next: 0x10,
            times: [0, 0, lease_time],
            preference: 255,
            options: Vec::new(),
        };
        let (state, stop) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        lab.ctx.node.sh("ip addr add fd00:9::1/64 dev br0 nodad").unwrap();
        let socket: UdpSocket = lab.ctx.node.run(open).unwrap().into();
        let (shared, end) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !end.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                let message = Message::from_bytes(&buffer[..len]).unwrap();
                for bytes in shared.lock().unwrap().react(&message, from) {
                    let _ = socket.send_to(&bytes, from);
                }
            }
        });
        Server { state, stop, thread: Some(thread) }
    }

    /// Sets the rule: what to do with a message of this type.
    pub(crate) fn rule(&self, rule: impl FnMut(MessageType) -> Reaction + Send + 'static) {
        self.state.lock().unwrap().rule = Box::new(rule);
    }

    /// Sets what to send in place of an answer to this message.
    pub(crate) fn forge(&self, forgery: impl FnMut(&Message, Vec<u8>) -> Vec<Vec<u8>> + Send + 'static) {
        self.state.lock().unwrap().forgery = Some(Box::new(forgery));
    }

    /// Sets T1, T2 and the lease time in seconds.
    pub(crate) fn times(&self, times: [u32; 3]) {
        self.state.lock().unwrap().times = times;
    }

    /// Sets the preference of the server.
    pub(crate) fn preference(&self, preference: u8) {
        self.state.lock().unwrap().preference = preference;
    }

    /// Adds an option to every answer.
    pub(crate) fn option(&self, code: u16, content: &[u8]) {
        self.state.lock().unwrap().options.push((code, content.to_vec()));
    }

    /// The messages since the last call, by their type.
    pub(crate) fn log(&self) -> Vec<String> {
        std::mem::take(&mut self.state.lock().unwrap().log)
    }

    /// As [`Server::log`], without repetitions: on a busy machine the daemon may ask again before it reads the answer.
    pub(crate) fn sequence(&self) -> Vec<String> {
        let mut log = self.log();
        log.dedup();
        log
    }

    /// Waits until this message has come this often since the last [`Server::log`].
    pub(crate) fn wait_for(&self, entry: &str, times: usize) {
        let come = || self.state.lock().unwrap().log.iter().filter(|line| *line == entry).count() >= times;
        assert!(eventually(TIMEOUT, come), "{times} times {entry}: {:?}", self.log());
    }

    /// The addresses that clients have.
    pub(crate) fn leased(&self) -> Vec<Ipv6Addr> {
        self.state.lock().unwrap().leases.values().copied().collect()
    }

    /// The DUIDs and IAIDs of the clients.
    pub(crate) fn clients(&self) -> Vec<(Vec<u8>, u32)> {
        self.state.lock().unwrap().leases.keys().cloned().collect()
    }

    /// Forgets all leases, as a server that restarts.
    pub(crate) fn forget(&self) {
        self.state.lock().unwrap().leases.clear();
    }
}

fn open() -> Socket {
    let socket = Socket::new(Domain::IPV6, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.bind_device(Some(b"br0")).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket.bind(&SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, 547, 0, 0).into()).unwrap();
    let index = nix::net::if_::if_nametoindex("br0").unwrap();
    socket.join_multicast_v6(&"ff02::1:2".parse().unwrap(), index).unwrap();
    socket
}

impl State {
    /// What to send in answer to a message.
    fn react(&mut self, message: &Message, from: SocketAddr) -> Vec<Vec<u8>> {
        let SocketAddr::V6(from) = from else { panic!("{from}") };
        assert!(from.ip().is_unicast_link_local() && from.port() == 546, "{from}");
        let kind = message.msg_type();
        self.log.push(format!("{kind:?}"));
        let option = |code| message.opts().get(code).cloned();
        let Some(DhcpOption::ClientId(duid)) = option(OptionCode::ClientId) else { panic!("no client") };
        let Some(DhcpOption::IANA(ia)) = option(OptionCode::IANA) else { panic!("no IA") };
        let is_for_one =
            [MessageType::Request, MessageType::Renew, MessageType::Release, MessageType::Decline]
                .contains(&kind);
        assert_eq!(option(OptionCode::ServerId), is_for_one.then(|| DhcpOption::ServerId(DUID.to_vec())));
        assert!(option(OptionCode::ElapsedTime).is_some());
        let wanted = match ia.opts.get(OptionCode::IAAddr) {
            Some(DhcpOption::IAAddr(address)) => Some(address.addr),
            _ => None,
        };
        let client = (duid.clone(), ia.id);
        let status = match (self.rule)(kind) {
            Reaction::Lose => return Vec::new(),
            Reaction::Refuse(status) => Some(status),
            Reaction::Answer => None,
        };
        let known = self.leases.get(&client).copied();
        let (status, address) = match kind {
            _ if status.is_some() => (status, None),
            MessageType::Release | MessageType::Decline if known == wanted => {
                self.leases.remove(&client);
                (Some(Status::Success), None)
            }
            MessageType::Confirm => (Some(Status::Success), None),
            MessageType::Solicit | MessageType::Request => {
                let address = known.or(wanted).unwrap_or_else(|| {
                    self.next += 1;
                    Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, self.next - 1)
                });
                self.leases.insert(client, address);
                (None, Some(address))
            }
            _ if known.is_some() && known == wanted => (None, known),
            _ => (Some(Status::NoBinding), None),
        };
        let is_rapid = kind == MessageType::Solicit && option(OptionCode::RapidCommit).is_some();
        let answer = match kind {
            MessageType::Solicit if !is_rapid => MessageType::Advertise,
            _ => MessageType::Reply,
        };
        let bytes = self.answer(answer, message.xid_num(), duid, ia.id, (status, address), is_rapid);
        match &mut self.forgery {
            Some(forge) => forge(message, bytes),
            None => vec![bytes],
        }
    }

    fn answer(
        &self,
        kind: MessageType,
        xid: u32,
        duid: Vec<u8>,
        id: u32,
        (status, address): (Option<Status>, Option<Ipv6Addr>),
        is_rapid: bool,
    ) -> Vec<u8> {
        let [t1, t2, time] = self.times;
        let mut message = Message::new(kind);
        message.set_xid_num(xid);
        let options = message.opts_mut();
        options.insert(DhcpOption::ClientId(duid));
        options.insert(DhcpOption::ServerId(DUID.to_vec()));
        options.insert(DhcpOption::Preference(self.preference));
        if is_rapid {
            options.insert(DhcpOption::RapidCommit);
        }
        if let Some(status) = status {
            options.insert(DhcpOption::StatusCode(StatusCode { status, msg: "by the test".to_owned() }));
        }
        if let Some(addr) = address {
            let opts = std::iter::empty().collect();
            let address = IAAddr { addr, preferred_life: time, valid_life: time, opts };
            let opts = [DhcpOption::IAAddr(address)].into_iter().collect();
            options.insert(DhcpOption::IANA(IANA { id, t1, t2, opts }));
        }
        for (code, content) in &self.options {
            let option = UnknownOption::new(OptionCode::from(*code), content.clone());
            options.insert(DhcpOption::Unknown(option));
        }
        message.to_vec().unwrap()
    }
}
