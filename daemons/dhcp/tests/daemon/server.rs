//! A DHCP server that does what the test says: it answers, loses, delays, duplicates and refuses.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cni_lab::{Place as _, TIMEOUT, eventually};
use dhcproto::v4::{
    Decodable as _, DhcpOption, Encodable as _, Message, MessageType, Opcode, OptionCode, UnknownOption,
};
use socket2::{Domain, Protocol, Socket, Type};

use crate::lab::Lab;

/// The server's address.
pub(crate) const SERVER: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);

/// What to do with a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reaction {
    /// Answer it.
    Answer,
    /// Lose it, or the answer.
    Lose,
    /// Answer it after the client has sent the next one.
    Delay,
    /// Answer it twice.
    Duplicate,
    /// Refuse it: NAK.
    Refuse,
}

type Rule = Box<dyn FnMut(MessageType, usize) -> Reaction + Send>;
type Datagram = (Vec<u8>, SocketAddr);
type Forgery = Box<dyn FnMut(&Message, Vec<u8>) -> Vec<Datagram> + Send>;

struct State {
    /// The message's type and its number among those of this type, from 1, decide.
    rule: Rule,
    /// What to send in place of an answer.
    forgery: Option<Forgery>,
    counts: BTreeMap<u8, usize>,
    /// Type and source address of each message.
    log: Vec<String>,
    /// The address of each client ID.
    leases: BTreeMap<Vec<u8>, Ipv4Addr>,
    next: u8,
    options: Vec<(u8, Vec<u8>)>,
    delayed: Vec<Datagram>,
    /// The last message of a client.
    last: Option<Message>,
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
    /// A server on the bridge that answers everything. Leases last this many seconds.
    pub(crate) fn start(lab: &Lab, lease_time: u32) -> Server {
        let options = vec![
            (1, vec![255, 255, 255, 0]),
            (51, lease_time.to_be_bytes().to_vec()),
            (54, SERVER.octets().to_vec()),
        ];
        let state = State {
            rule: Box::new(|_, _| Reaction::Answer),
            forgery: None,
            counts: BTreeMap::new(),
            log: Vec::new(),
            leases: BTreeMap::new(),
            next: 10,
            options,
            delayed: Vec::new(),
            last: None,
        };
        let (state, stop) = (Arc::new(Mutex::new(state)), Arc::new(AtomicBool::new(false)));
        let socket: UdpSocket = lab.ctx.node.run(open).unwrap().into();
        let (shared, end) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = thread::spawn(move || {
            let mut buffer = [0; 2048];
            while !end.load(Ordering::Relaxed) {
                let Ok((len, from)) = socket.recv_from(&mut buffer) else { continue };
                let message = Message::from_bytes(&buffer[..len]).unwrap();
                for (bytes, to) in shared.lock().unwrap().react(message, from) {
                    let _ = socket.send_to(&bytes, to);
                }
            }
        });
        Server { state, stop, thread: Some(thread) }
    }

    /// Sets the rule: the message's type and its number among those of this type.
    pub(crate) fn rule(&self, rule: impl FnMut(MessageType, usize) -> Reaction + Send + 'static) {
        let mut state = self.state.lock().unwrap();
        state.counts.clear();
        state.rule = Box::new(rule);
    }

    /// Sets what to send to whom in place of an answer to this message.
    pub(crate) fn forge(&self, forgery: impl FnMut(&Message, Vec<u8>) -> Vec<Datagram> + Send + 'static) {
        self.state.lock().unwrap().forgery = Some(Box::new(forgery));
    }

    /// Sets lease time, T1 and T2 in seconds. A test on a slow machine needs some of them between the times that it waits for.
    pub(crate) fn times(&self, times: [u32; 3]) {
        for (code, time) in [51, 58, 59].into_iter().zip(times) {
            self.option(code, &time.to_be_bytes());
        }
    }

    /// Adds an option to every answer, or replaces it.
    pub(crate) fn option(&self, code: u8, content: &[u8]) {
        let mut state = self.state.lock().unwrap();
        state.options.retain(|(found, _)| *found != code);
        if !content.is_empty() {
            state.options.push((code, content.to_vec()));
        }
    }

    /// The messages since the last call, as type and source address.
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
    pub(crate) fn leased(&self) -> Vec<Ipv4Addr> {
        self.state.lock().unwrap().leases.values().copied().collect()
    }

    /// Forgets all leases, as a server that restarts.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock().unwrap();
        state.leases.clear();
        state.next += 100;
    }

    /// The content of an option of the last message.
    pub(crate) fn last_option(&self, code: u8) -> Option<Vec<u8>> {
        let state = self.state.lock().unwrap();
        let option = state.last.as_ref().unwrap().opts().get(OptionCode::from(code))?.clone();
        Some(option.to_vec().unwrap()[2..].to_vec())
    }

    /// The flags of the last message.
    pub(crate) fn last_is_broadcast(&self) -> bool {
        self.state.lock().unwrap().last.as_ref().unwrap().flags().broadcast()
    }
}

fn open() -> Socket {
    let socket = Socket::new(Domain::IPV4, Type::DGRAM, Some(Protocol::UDP)).unwrap();
    socket.bind_device(Some(b"br0")).unwrap();
    socket.set_broadcast(true).unwrap();
    socket.set_recv_buffer_size(4 * 1024 * 1024).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    socket.bind(&SocketAddr::from(([0, 0, 0, 0], 67)).into()).unwrap();
    socket
}

impl State {
    /// What to send in answer to a message.
    fn react(&mut self, message: Message, from: SocketAddr) -> Vec<Datagram> {
        let kind = message.opts().msg_type().unwrap();
        self.log.push(format!("{kind:?} from {}", from.ip()));
        self.last = Some(message.clone());
        let count = self.counts.entry(kind.into()).or_default();
        *count += 1;
        let mut out = std::mem::take(&mut self.delayed);
        let reaction = (self.rule)(kind, *count);
        let id = match message.opts().get(OptionCode::ClientIdentifier) {
            Some(DhcpOption::ClientIdentifier(id)) => id.clone(),
            other => panic!("client ID {other:?}"),
        };
        if kind == MessageType::Release {
            assert_eq!(from.ip(), message.ciaddr(), "RELEASE from another address");
            if self.leases.get(&id) == Some(&message.ciaddr()) && reaction != Reaction::Lose {
                self.leases.remove(&id);
            }
            return out;
        }
        let known = self.leases.get(&id).copied();
        let wanted = match message.opts().get(OptionCode::RequestedIpAddress) {
            Some(DhcpOption::RequestedIpAddress(address)) => Some(*address),
            _ => Some(message.ciaddr()).filter(|address| !address.is_unspecified()),
        };
        let (verdict, address) = match kind {
            MessageType::Discover => {
                let address = known.unwrap_or_else(|| {
                    self.next += 1;
                    Ipv4Addr::new(10, 9, 0, self.next - 1)
                });
                self.leases.insert(id, address);
                (MessageType::Offer, address)
            }
            _ if known.is_some() && known == wanted && reaction != Reaction::Refuse => {
                (MessageType::Ack, known.unwrap())
            }
            _ => (MessageType::Nak, Ipv4Addr::UNSPECIFIED),
        };
        let is_unicast = !from.ip().is_unspecified() && verdict != MessageType::Nak;
        let to = if is_unicast { from.ip() } else { Ipv4Addr::BROADCAST.into() };
        let answer = (self.answer(&message, verdict, address), SocketAddr::new(to, 68));
        if let Some(forge) = &mut self.forgery {
            return forge(&message, answer.0);
        }
        match reaction {
            Reaction::Answer | Reaction::Refuse => out.push(answer),
            Reaction::Duplicate => out.extend([answer.clone(), answer]),
            Reaction::Delay => self.delayed.push(answer),
            Reaction::Lose => {}
        }
        out
    }

    fn answer(&self, message: &Message, verdict: MessageType, address: Ipv4Addr) -> Vec<u8> {
        let mut answer = Message::default();
        answer.set_opcode(Opcode::BootReply).set_xid(message.xid()).set_chaddr(message.chaddr());
        answer.set_yiaddr(address).set_siaddr(SERVER);
        let options = answer.opts_mut();
        options.insert(DhcpOption::MessageType(verdict));
        for (code, content) in &self.options {
            if verdict != MessageType::Nak || *code == 54 {
                let option = UnknownOption::new(OptionCode::from(*code), content.clone());
                options.insert(DhcpOption::Unknown(option));
            }
        }
        answer.to_vec().unwrap()
    }
}
