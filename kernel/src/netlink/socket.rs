//! A netlink socket that sends requests and waits for their answers. Its errors contain the kernel's extended
//! ACK text.
//!
//! The kernel handles all requests of a datagram in their order, before `send` returns, and answers each failed
//! one. So only the last request asks for an acknowledgement: when its answer has come, all requests without an
//! answer have succeeded. The last request may be a dump. The kernel runs only one dump of a socket at a time.

mod interrupted;
mod transport;

use std::time::Duration;

use netlink_sys::SocketAddr;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::errno::Errno;

use self::interrupted::{Interrupted, repeated};
use super::budget::{self, Meter};
use super::error::Error;
use super::message::{F_ACK, Message, failure, messages};
use super::observer::{self, Running};

/// `NLMSG_ERROR`: an error, or an acknowledgement if errno is 0.
const ERROR: u16 = 2;
/// `NLMSG_DONE`: the end of a dump.
const DONE: u16 = 3;
/// `NLM_F_DUMP_INTR`: objects changed during the dump.
const F_DUMP_INTERRUPTED: u16 = 0x10;

/// The largest datagram in bytes that the kernel sends in answer to a dump.
const DATAGRAM: usize = 32 * 1024;
/// The largest datagram in bytes that we send without enlarging the send buffer, which has some 200 KiB by
/// default.
const DEFAULT_SEND_LIMIT: usize = 128 * 1024;
/// The most requests in one datagram. The kernel keeps an answer to each failed one in the receive buffer, which has room for
/// some 200.
const MAX_REQUESTS: usize = 128;
/// How long to wait for an answer that is not there when `send` returns. Linux never needs it.
const NO_ANSWER_WAIT: Duration = Duration::from_secs(1);

/// The answer to a request: the bodies of the answering messages without netlink headers, or an error.
pub type Answer = Result<Vec<Vec<u8>>, Error>;

/// Whether the request has or may have changed something: it succeeded, or its answer is lost.
pub fn may_be_done(answer: &Answer) -> bool {
    answer.as_ref().map_or_else(Error::is_answer_lost, |_| true)
}

/// The answer; without bodies if it is one of these errors, because the object does not exist.
pub(super) fn ignoring(answer: Answer, absent: &[Errno]) -> Answer {
    match answer {
        Err(error) if absent.contains(&error.errno) => Ok(Vec::new()),
        answer => answer,
    }
}

/// Gets the body of each message that answers a dump.
type Visit<'v> = Option<&'v mut dyn FnMut(&[u8])>;

/// A netlink socket. It permanently belongs to the network namespace in which it was opened.
pub struct Socket {
    socket: netlink_sys::Socket,
    sequence: u32,
    buffer: Vec<u8>,
    /// The protocol, `NETLINK_*`.
    protocol: isize,
    /// The protocol's name, for [`observer`].
    name: &'static str,
    interrupted: Interrupted,
    is_of_container: bool,
    /// Whether a dump was given up, whose rest the kernel still has to send.
    is_spent: bool,
    /// Behind `socket`, because fields are dropped in their order: measures how long the kernel takes to close it.
    closing: Option<Running<'static>>,
}

impl Socket {
    /// A socket for links, addresses, routes and qdiscs.
    pub fn route() -> Result<Self, Error> {
        let socket = Socket::open(NETLINK_ROUTE, "rtnetlink")?;
        // Lets the kernel filter dumps by index, since Linux 4.20.
        let _ = socket.socket.set_netlink_get_strict_chk(true);
        Ok(socket)
    }

    /// A socket for nf_tables and connection tracking.
    pub fn netfilter() -> Result<Self, Error> {
        Socket::open(NETLINK_NETFILTER, "nfnetlink")
    }

    /// A socket for the families of generic netlink.
    pub(super) fn generic() -> Result<Self, Error> {
        Socket::open(NETLINK_GENERIC, "genetlink")
    }

    fn open(protocol: isize, name: &'static str) -> Result<Self, Error> {
        let socket = netlink_sys::Socket::new(protocol)?;
        // Also binds the socket. From here on only the kernel can send to it.
        socket.connect(&SocketAddr::new(0, 0))?;
        // These options only add explanations to errors. Kernels before 4.20 do not have all of them.
        let _ = socket.set_ext_ack(true);
        let _ = socket.set_cap_ack(true);
        Ok(Socket {
            socket,
            sequence: 0,
            buffer: Vec::with_capacity(DATAGRAM),
            protocol,
            name,
            interrupted: Interrupted::Repeated,
            is_of_container: false,
            is_spent: false,
            closing: None,
        })
    }

    /// The socket, but a dump that is still interrupted at the last attempt is an error: it may lack objects.
    #[must_use]
    pub fn with_whole_dumps(mut self) -> Self {
        self.interrupted = Interrupted::Refused;
        self
    }

    /// The socket, whose dumps take from the [budget](budget::within) of the container, if there is one.
    #[must_use]
    pub fn of_container(mut self) -> Self {
        self.is_of_container = true;
        self
    }

    /// The socket, but an interrupted dump is not repeated: [`Socket::was_interrupted`] tells.
    #[must_use]
    pub fn with_single_dumps(mut self) -> Self {
        self.interrupted = Interrupted::Told(false);
        self
    }

    /// With [`Socket::with_single_dumps`]: whether objects changed during a dump since the last call of this function.
    pub fn was_interrupted(&mut self) -> bool {
        match &mut self.interrupted {
            Interrupted::Told(was) => std::mem::take(was),
            _ => false,
        }
    }

    /// The port ID: [`Received::port`](super::message::Received::port) in messages about changes that this socket makes.
    ///
    /// # Errors
    /// That of the system call.
    pub fn port(&mut self) -> Result<u32, Error> {
        let mut address = SocketAddr::new(0, 0);
        self.socket.get_address(&mut address)?;
        Ok(address.port_number())
    }

    /// Sends one request, which may be a dump, and returns its answer.
    pub fn request(&mut self, message: Message) -> Answer {
        let [answer] = self.request_each([message]);
        answer
    }

    /// Sends a dump and calls `visit` with the body of each answer, without keeping them. A dump that is interrupted begins
    /// again.
    ///
    /// # Errors
    /// Those of the kernel.
    pub fn visit(&mut self, dump: Message, visit: &mut dyn FnMut(&[u8])) -> Result<(), Error> {
        let must_be_whole = self.interrupted == Interrupted::Refused;
        let again = || {
            let (mut answers, is_interrupted) = self.requests_once(vec![dump.clone()], Some(visit));
            (answers.pop().unwrap_or(Ok(Vec::new())), is_interrupted)
        };
        repeated(again, must_be_whole).map(drop)
    }

    /// Sends several requests, 128 in a datagram, and returns their answers in the same order. Only the last one may be
    /// a dump. The kernel processes all requests, also those after a failed one.
    ///
    /// If one of the requests cannot be encoded, none of its datagram is sent, and all of them have its error.
    pub fn requests(&mut self, mut messages: Vec<Message>) -> Vec<Answer> {
        let mut answers = Vec::new();
        while messages.len() > MAX_REQUESTS {
            let rest = messages.split_off(MAX_REQUESTS);
            answers.append(&mut self.requests_once(messages, None).0);
            messages = rest;
        }
        let dump = messages.last().filter(|last| last.is_dump()).cloned();
        let (mut last, is_interrupted) = self.requests_once(messages, None);
        answers.append(&mut last);
        if let Interrupted::Told(was) = &mut self.interrupted {
            *was |= is_interrupted;
        } else if let (true, Some(dump), Some(last)) = (is_interrupted, dump, answers.last_mut()) {
            let must_be_whole = self.interrupted == Interrupted::Refused;
            let again = || {
                let (mut again, is_interrupted) = self.requests_once(vec![dump.clone()], None);
                (again.pop().unwrap_or(Ok(Vec::new())), is_interrupted)
            };
            *last = repeated(again, must_be_whole);
        }
        answers
    }

    /// As [`Socket::requests`]. Also returns whether objects changed during the dump.
    fn requests_once(&mut self, messages: Vec<Message>, visit: Visit<'_>) -> (Vec<Answer>, bool) {
        let Some(last) = messages.last() else { return (Vec::new(), false) };
        let (end, has_one_answer) = (messages.len() - 1, last.has_one_answer);
        let acknowledged = (!has_one_answer && !last.is_dump()).then_some(end);
        let is_end = |index, is_final| index == end && (is_final || has_one_answer);
        let (mut answers, outcome) = self.exchange(messages, acknowledged, &is_end, visit);
        if let Err(error) = &outcome {
            // An error that has come is the answer to its own request.
            for answer in answers.iter_mut().filter(|answer| answer.is_ok()) {
                *answer = Err(error.clone());
            }
        }
        (answers, outcome.unwrap_or(false))
    }

    /// As [`Socket::requests`], for a fixed number of requests.
    pub fn request_each<const N: usize>(&mut self, messages: [Message; N]) -> [Answer; N] {
        let mut answers = self.requests(messages.into()).into_iter();
        std::array::from_fn(|_| answers.next().unwrap_or(Err(Error::from(Errno::EPROTO))))
    }

    /// Sends requests in one datagram. The one with index `acknowledged` asks for an acknowledgement. Receives until `is_end`
    /// returns true for the index of an answered request and whether the answer is an error, an acknowledgement or the end of
    /// a dump. Returns the bodies and the kernel's errors, and whether objects changed during a dump or why that is unknown.
    fn exchange(
        &mut self,
        messages: Vec<Message>,
        acknowledged: Option<usize>,
        is_end: &dyn Fn(usize, bool) -> bool,
        visit: Visit<'_>,
    ) -> (Vec<Answer>, Result<bool, Error>) {
        let mut answers: Vec<Answer> = messages.iter().map(|_| Ok(Vec::new())).collect();
        let meter =
            (self.is_of_container && messages.last().is_some_and(Message::is_dump)).then(Meter::start);
        let first = self.sequence.wrapping_add(1);
        let outcome = self.encode(messages, acknowledged).and_then(|datagram| {
            let name = self.name;
            observer::step(name, || {
                self.send_and_receive(&datagram, first, &mut answers, is_end, visit, meter)
            })
            .inspect_err(|error| observer::netlink_error(name, error))
        });
        (answers, outcome)
    }

    fn encode(&mut self, messages: Vec<Message>, acknowledged: Option<usize>) -> Result<Vec<u8>, Error> {
        let mut datagram = Vec::new();
        for (index, message) in messages.into_iter().enumerate() {
            self.sequence = self.sequence.wrapping_add(1);
            let flags = if acknowledged == Some(index) { F_ACK } else { 0 };
            let mut bytes = message.finish(self.sequence, flags)?;
            if datagram.is_empty() {
                datagram = bytes;
            } else {
                datagram.append(&mut bytes);
            }
        }
        Ok(datagram)
    }

    fn send_and_receive(
        &mut self,
        datagram: &[u8],
        first: u32,
        answers: &mut [Answer],
        is_end: &dyn Fn(usize, bool) -> bool,
        mut visit: Visit<'_>,
        mut meter: Option<Meter>,
    ) -> Result<bool, Error> {
        if self.is_spent {
            return Err(Error { is_unsent: true, ..budget::exceeded() });
        }
        self.send(datagram)?;
        let (mut is_complete, mut is_interrupted) = (false, false);
        while !is_complete {
            if let Err(error) = self.receive() {
                self.drain();
                return Err(Error { is_answer_lost: true, ..error });
            }
            let (mut kept, mut bytes) = (0, 0);
            for received in messages(&self.buffer) {
                // Answers to earlier requests have other numbers.
                let index = received.sequence.wrapping_sub(first) as usize;
                let Some(answer) = answers.get_mut(index) else { continue };
                is_interrupted |= received.flags & F_DUMP_INTERRUPTED != 0;
                let is_final = matches!(received.kind, ERROR | DONE);
                if is_final {
                    if let Some(error) = failure(received.flags, received.body) {
                        // Netfilter answers only the first request of a process without CAP_NET_ADMIN.
                        if self.protocol == NETLINK_NETFILTER && error.errno == Errno::EPERM {
                            return Err(error);
                        }
                        observer::netlink_error(self.name, &error);
                        *answer = Err(error);
                    }
                } else if let Some(visit) = &mut visit {
                    visit(received.body);
                } else if let Ok(bodies) = answer {
                    (kept, bytes) = (kept + 1, bytes + received.body.len());
                    bodies.push(received.body.to_vec());
                }
                is_complete |= is_end(index, is_final);
            }
            if let Some(Err(error)) = meter.as_mut().map(|meter| meter.spend(kept, bytes)) {
                self.is_spent = !is_complete;
                // The datagram may have had changes before the dump.
                return Err(Error { is_answer_lost: answers.len() > 1, ..error });
            }
        }
        Ok(is_interrupted)
    }

    /// Sends a batch of nf_tables requests between BATCH_BEGIN and BATCH_END. The kernel applies all of them
    /// or none.
    ///
    /// The kernel answers when it has handled the whole batch. An error of the batch comes first and belongs to
    /// BATCH_BEGIN. The errors of the requests follow, then the acknowledgement of the last request, which also
    /// comes if the batch has failed. Only kernels since 6.9 acknowledge BATCH_END.
    ///
    /// # Errors
    /// The error of the first rejected request, or of the batch.
    pub(crate) fn batch(
        &mut self,
        begin: Message,
        requests: Vec<Message>,
        end: Message,
    ) -> Result<(), BatchError> {
        let of_batch = |error| BatchError { request: None, error };
        let last = requests.len();
        let messages: Vec<Message> = [begin].into_iter().chain(requests).chain([end]).collect();
        let (answers, outcome) =
            self.exchange(messages, Some(last), &|index, _| index == 0 || index >= last, None);
        outcome.map_err(of_batch)?;
        for (index, answer) in answers.into_iter().enumerate() {
            if let Err(error) = answer {
                let is_request = (1..=last).contains(&index);
                return Err(BatchError { request: is_request.then(|| index - 1), error });
            }
        }
        Ok(())
    }
}

impl Drop for Socket {
    /// The kernel may make the process wait for deleted nf_tables objects.
    fn drop(&mut self) {
        if self.protocol == NETLINK_NETFILTER {
            self.closing = observer::start("close nfnetlink");
        }
    }
}

/// The error of a rejected batch.
#[derive(Clone, Debug)]
pub(crate) struct BatchError {
    /// The index of the rejected request. `None` if the kernel rejected the whole batch.
    pub(crate) request: Option<usize>,
    /// Its error.
    pub(crate) error: Error,
}

#[cfg(test)]
mod tests;
