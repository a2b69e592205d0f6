//! A netlink socket that sends requests and waits for their answers. Its errors contain the kernel's extended
//! ACK text.

use std::fmt;
use std::io;

use netlink_sys::SocketAddr;
use netlink_sys::protocols::{NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::errno::Errno;
use nix::sys::socket::setsockopt;
use nix::sys::socket::sockopt::SndBufForce;

use super::message::{self, F_ACK, Message, attrs, messages, text, u32_at};

/// `NLMSG_ERROR`: an error, or an acknowledgement if errno is 0.
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
const DONE: u16 = 3;
/// `NLM_F_DUMP_INTR`: objects changed during the dump.
const F_DUMP_INTERRUPTED: u16 = 0x10;
/// `NLM_F_CAPPED`: the error contains only the header of the failed request.
const F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow, see [`ATTR_MSG`].
const F_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's explanation.
const ATTR_MSG: u16 = 1;

/// The largest datagram in bytes that the kernel sends in answer to a dump.
const DATAGRAM: usize = 32 * 1024;
/// The largest datagram in bytes that we send without enlarging the send buffer, which has some 200 KiB by
/// default.
const DEFAULT_SEND_LIMIT: usize = 128 * 1024;
/// Number of attempts at a dump that is interrupted. The last result is used even if it was interrupted.
const DUMP_TRIES: u32 = 5;

/// Why a request failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// The error code in the kernel's answer, or of the system call.
    pub errno: Errno,
    /// The kernel's explanation (extended ACK); may be empty.
    pub explanation: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.errno.desc().to_lowercase())?;
        if !self.explanation.is_empty() {
            write!(f, " ({})", self.explanation)?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        let errno = error.raw_os_error().map_or(Errno::EIO, Errno::from_raw);
        Error { errno, explanation: String::new() }
    }
}

impl From<Errno> for Error {
    fn from(errno: Errno) -> Self {
        Error { errno, explanation: String::new() }
    }
}

/// The answer to a request: the bodies of the answering messages without netlink headers, or an error.
pub type Answer = Result<Vec<Vec<u8>>, Error>;

/// A netlink socket. It permanently belongs to the network namespace in which it was opened.
pub struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
    /// The protocol, `NETLINK_*`.
    protocol: isize,
}

impl Socket {
    /// A socket for links, addresses, routes and qdiscs.
    pub fn route() -> Result<Self, Error> {
        Socket::open(NETLINK_ROUTE)
    }

    /// A socket for nf_tables and connection tracking.
    pub fn netfilter() -> Result<Self, Error> {
        Socket::open(NETLINK_NETFILTER)
    }

    fn open(protocol: isize) -> Result<Self, Error> {
        let mut socket = netlink_sys::Socket::new(protocol)?;
        socket.bind_auto()?;
        socket.connect(&SocketAddr::new(0, 0))?;
        // These options only add error explanations and let the kernel filter dumps by index. Kernels before
        // 4.20 do not have all of them.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        let _ = socket.set_netlink_get_strict_chk(true);
        Ok(Socket { socket, sequence: 0, buffer: Vec::with_capacity(DATAGRAM), protocol })
    }

    /// Sends one request, which may be a dump, and returns its answer.
    pub fn request(&mut self, message: Message) -> Answer {
        if message.is_dump() {
            return self.dump(message);
        }
        let [answer] = self.request_each([message]);
        answer
    }

    /// Sends several requests (no dumps) in one datagram and returns their answers in the same order. The
    /// kernel processes all requests, also those after a failed one.
    pub fn requests(&mut self, messages: Vec<Message>) -> Vec<Answer> {
        if messages.is_empty() {
            return Vec::new();
        }
        let first = self.sequence.wrapping_add(1);
        let mut answers: Vec<Option<Answer>> = messages.iter().map(|_| None).collect();
        let mut datagram = Vec::new();
        for message in messages {
            self.sequence = self.sequence.wrapping_add(1);
            datagram.append(&mut message.finish(self.sequence, F_ACK));
        }
        if let Err(error) = self.exchange(&datagram, first, &mut answers) {
            for answer in answers.iter_mut().filter(|answer| answer.is_none()) {
                *answer = Some(Err(error.clone()));
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// As [`Socket::requests`], for a fixed number of requests.
    pub fn request_each<const N: usize>(&mut self, messages: [Message; N]) -> [Answer; N] {
        let mut answers = self.requests(messages.into()).into_iter();
        std::array::from_fn(|_| answers.next().unwrap_or(Err(Error::from(Errno::EPROTO))))
    }

    /// Sends a datagram of requests with sequence numbers from `first` on, and receives until all have an
    /// answer.
    fn exchange(&mut self, datagram: &[u8], first: u32, answers: &mut [Option<Answer>]) -> Result<(), Error> {
        let mut bodies: Vec<Vec<Vec<u8>>> = answers.iter().map(|_| Vec::new()).collect();
        self.send(datagram)?;
        while answers.iter().any(Option::is_none) {
            self.receive()?;
            for received in messages(&self.buffer) {
                let index = received.sequence.wrapping_sub(first) as usize;
                let Some(answer) = answers.get_mut(index) else { continue };
                if received.kind != ERROR {
                    bodies[index].push(received.body.to_vec());
                    continue;
                }
                let error = read_error(received.flags, received.body);
                match error {
                    // BATCH_BEGIN and BATCH_END are not acknowledged; an error on either fails the batch.
                    Some(error) if answer.is_some() => return Err(error),
                    // Netfilter answers only the first request of a process without CAP_NET_ADMIN.
                    Some(error) if self.protocol == NETLINK_NETFILTER && error.errno == Errno::EPERM => {
                        return Err(error);
                    }
                    Some(error) => *answer = Some(Err(error)),
                    None => *answer = Some(Ok(std::mem::take(&mut bodies[index]))),
                }
            }
        }
        Ok(())
    }

    fn dump(&mut self, message: Message) -> Answer {
        let mut tries = DUMP_TRIES;
        loop {
            let (bodies, interrupted) = self.dump_once(message.clone())?;
            tries -= 1;
            if !interrupted || tries == 0 {
                return Ok(bodies);
            }
        }
    }

    fn dump_once(&mut self, message: Message) -> Result<(Vec<Vec<u8>>, bool), Error> {
        self.sequence = self.sequence.wrapping_add(1);
        let datagram = message.finish(self.sequence, 0);
        self.send(&datagram)?;
        let mut bodies = Vec::new();
        let mut interrupted = false;
        loop {
            self.receive()?;
            for received in messages(&self.buffer).filter(|received| received.sequence == self.sequence) {
                interrupted |= received.flags & F_DUMP_INTERRUPTED != 0;
                match received.kind {
                    ERROR | DONE => {
                        return match read_error(received.flags, received.body) {
                            Some(error) => Err(error),
                            None => Ok((bodies, interrupted)),
                        };
                    }
                    _ => bodies.push(received.body.to_vec()),
                }
            }
        }
    }

    /// Sends a batch of nf_tables requests between BATCH_BEGIN and BATCH_END. The kernel applies all of them
    /// or none.
    ///
    /// # Errors
    /// The error of the first rejected request, or of the batch.
    pub(crate) fn batch(
        &mut self,
        begin: Message,
        requests: Vec<Message>,
        end: Message,
    ) -> Result<(), BatchError> {
        let first = self.sequence.wrapping_add(1);
        let mut answers: Vec<Option<Answer>> = vec![None; requests.len()];
        answers.insert(0, Some(Ok(Vec::new())));
        answers.push(Some(Ok(Vec::new())));
        let mut datagram = Vec::new();
        let frames = [(begin, 0)].into_iter();
        let acknowledged = requests.into_iter().map(|request| (request, F_ACK));
        for (message, flags) in frames.chain(acknowledged).chain([(end, 0)]) {
            self.sequence = self.sequence.wrapping_add(1);
            datagram.append(&mut message.finish(self.sequence, flags));
        }
        self.make_room(datagram.len());
        self.exchange(&datagram, first, &mut answers).map_err(|error| BatchError { request: None, error })?;
        let refused = answers
            .into_iter()
            .flatten()
            .zip(0_usize..)
            .find_map(|(answer, index)| Some((index, answer.err()?)));
        refused.map_or(Ok(()), |(index, error)| Err(BatchError { request: index.checked_sub(1), error }))
    }

    /// Enlarges the send buffer for a datagram of `len` bytes if necessary. If that fails, sending fails with
    /// `EMSGSIZE`.
    fn make_room(&self, len: usize) {
        if len > DEFAULT_SEND_LIMIT {
            let _ = setsockopt(&self.socket, SndBufForce, &(len * 2));
        }
    }

    fn send(&self, datagram: &[u8]) -> Result<(), Error> {
        loop {
            match self.socket.send(datagram, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }

    fn receive(&mut self) -> Result<(), Error> {
        loop {
            self.buffer.clear();
            match self.socket.recv(&mut self.buffer, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The error of a rejected batch.
#[derive(Clone, Debug)]
pub struct BatchError {
    /// The index of the rejected request. `None` if the kernel rejected the whole batch.
    pub request: Option<usize>,
    /// Its error.
    pub error: Error,
}

/// The error in the body of an `NLMSG_ERROR` or `NLMSG_DONE`. `None` if errno is 0.
fn read_error(flags: u16, body: &[u8]) -> Option<Error> {
    let errno = i32::from_ne_bytes(u32_at(body, 0).to_ne_bytes());
    if errno == 0 {
        return None;
    }
    let mut explanation = String::new();
    if flags & F_ACK_TLVS != 0 {
        // After errno the body has the failed request: its header if capped, otherwise all of it.
        let request = if flags & F_CAPPED != 0 { message::HEADER } else { u32_at(body, 4) as usize };
        let tlvs = body.get(4 + request..).unwrap_or_default();
        if let Some((_, value)) = attrs(tlvs).find(|(kind, _)| *kind == ATTR_MSG) {
            explanation = text(value);
        }
    }
    Some(Error { errno: Errno::from_raw(-errno), explanation })
}
