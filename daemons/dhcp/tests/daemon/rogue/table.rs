//! A container with an interface for each row of a table, and a server that forges the answers to each of them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread;

use cni_lab::{Place as _, Pod, TIMEOUT, eventually};
use cni_runner::Attachment;
use dhcproto::v4::{DhcpOption, Encodable as _, Message, MessageType, OptionCode};
use serde_json::{Value, json};

use crate::lab::{Lab, config};
use crate::server::Server;

/// An answer before it is encoded.
#[derive(Clone)]
pub(crate) struct Draft {
    /// All up to the options.
    pub(crate) fixed: Vec<u8>,
    pub(crate) options: Vec<(u8, Vec<u8>)>,
    /// What follows the options.
    pub(crate) tail: Vec<u8>,
    /// Where the message is cut off.
    pub(crate) cut: usize,
}

impl Draft {
    pub(crate) fn of(bytes: &[u8]) -> Draft {
        let (fixed, mut rest) = bytes.split_at(240);
        let mut options = Vec::new();
        while let [code @ 1..=254, len, tail @ ..] = rest {
            let (content, tail) = tail.split_at(usize::from(*len));
            options.push((*code, content.to_vec()));
            rest = tail;
        }
        Draft { fixed: fixed.to_vec(), options, tail: vec![255], cut: usize::MAX }
    }

    pub(crate) fn set(&mut self, code: u8, content: &[u8]) {
        self.remove(code);
        self.options.push((code, content.to_vec()));
    }

    pub(crate) fn remove(&mut self, code: u8) {
        self.options.retain(|(found, _)| *found != code);
    }

    pub(crate) fn field(&mut self, at: usize, content: &[u8]) {
        self.fixed[at..at + content.len()].copy_from_slice(content);
    }

    /// Replaces an option by one that is longer than the message.
    pub(crate) fn overrun(&mut self, code: u8) {
        let (_, mut content) = self.options.iter().find(|(found, _)| *found == code).unwrap().clone();
        self.remove(code);
        self.tail = vec![code, 200];
        self.tail.append(&mut content);
    }

    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut bytes = self.fixed.clone();
        for (code, content) in &self.options {
            bytes.extend([*code, content.len() as u8]);
            bytes.extend(content);
        }
        bytes.extend(&self.tail);
        bytes.truncate(self.cut);
        bytes
    }
}

pub(crate) type Change = Box<dyn Fn(&mut Draft) + Send + Sync>;

/// A row: its name, and how the answer differs from the right one.
pub(crate) fn row(name: &str, change: impl Fn(&mut Draft) + Send + Sync + 'static) -> (String, Change) {
    (name.to_owned(), Box::new(change))
}

/// What the server sends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Right answers.
    Right,
    /// Forged ones before the right ones.
    Both,
    /// Forged ones.
    Forged,
    /// To each client one forged one, then right ones.
    OneForged,
    /// To each client a right answer with a lease of two seconds, then forged ones.
    ShortLease,
}

/// A container with an interface for each row of a table, and the server that forges the answers to each of them.
pub(crate) struct Table {
    pub(crate) lab: Lab,
    pub(crate) server: Server,
    names: Vec<String>,
    pub(crate) pod: Pod,
    phase: Arc<Mutex<Phase>>,
    pub(crate) conf: Value,
}

impl Table {
    pub(crate) fn new(rows: Vec<(String, Change)>) -> Table {
        let lab = Lab::new();
        let server = Server::start(&lab, 3600);
        let pod = lab.ctx.pod("one");
        let (names, changes): (Vec<_>, Vec<_>) = rows.into_iter().unzip();
        // A broadcast to so many links would overflow the kernel's queue. So each gets its answers alone.
        let batch = |line: &dyn Fn(usize, &str) -> String| {
            let lines = (0..names.len()).map(|number| line(number, &format!("02:00:00:00:00:{number:02x}")));
            lab.ctx.node.sh(&format!("ip -batch - <<END\n{}END", lines.collect::<String>())).unwrap();
        };
        batch(&|number, mac| {
            format!(
                "link add v{number} master br0 type veth peer name e{number} address {mac} netns one\n\
                 link set v{number} up type bridge_slave isolated on\n"
            )
        });
        // The kernel takes up to a second, and longer on a busy machine, to let a port forward. What a client sends before is lost.
        pod.sh(&format!("for number in $(seq 0 {}); do ip link set e$number up; done", names.len() - 1))
            .unwrap();
        let forwards = || lab.ctx.node.sh("bridge link").unwrap().matches("state forwarding").count();
        assert!(eventually(TIMEOUT, || forwards() == names.len()), "{} of {} ports", forwards(), names.len());
        // Each port may change the bridge's address, which removes the entries.
        batch(&|number, mac| format!("neigh add {} lladdr {mac} dev br0\n", address(number).ip()));
        let phase = Arc::new(Mutex::new(Phase::Forged));
        let (shared, mut seen) = (Arc::clone(&phase), BTreeSet::new());
        server.forge(move |message, right| {
            let number = number(message);
            let is_discover = message.opts().msg_type() == Some(MessageType::Discover);
            let mut forged = Draft::of(&right);
            changes[number](&mut forged);
            let forged = forged.bytes();
            let all = match *shared.lock().unwrap() {
                Phase::Right => vec![right],
                Phase::Both => vec![forged, right],
                Phase::OneForged if !seen.insert(number) => vec![right],
                Phase::ShortLease if is_discover => vec![right],
                Phase::ShortLease if seen.insert(number) => {
                    let mut short = Draft::of(&right);
                    short.set(51, &2_u32.to_be_bytes());
                    short.remove(59);
                    vec![short.bytes()]
                }
                Phase::Forged | Phase::OneForged | Phase::ShortLease => vec![forged],
            };
            all.into_iter().map(|bytes| (bytes, address(number))).collect()
        });
        Table { lab, server, names, pod, phase, conf: config(&json!({})) }
    }

    pub(crate) fn set(&self, phase: Phase) {
        *self.phase.lock().unwrap() = phase;
    }

    pub(crate) fn attachment(&self, number: usize) -> Attachment {
        self.pod.attachment(&format!("e{number}"))
    }

    /// Does the work for each row at once.
    pub(crate) fn each<T: Send>(&self, work: impl Fn(usize, &str, &Attachment) -> T + Sync) -> Vec<T> {
        thread::scope(|scope| {
            let start = |number: usize| {
                let work = &work;
                scope.spawn(move || work(number, &self.names[number], &self.attachment(number)))
            };
            let threads: Vec<_> = (0..self.names.len()).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// Waits until the daemon has said this so often of each row's interface.
    pub(crate) fn wait_for(&self, text: &str, times: usize) {
        let missing = || -> Vec<&str> {
            let log = self.lab.log();
            let lines = |number| format!("one/net/e{number}: {text}");
            let is_missing = |number: &usize| {
                let wanted = lines(*number);
                log.lines().filter(|line| line.starts_with(&wanted)).count() < times
            };
            (0..self.names.len()).filter(is_missing).map(|number| self.names[number].as_str()).collect()
        };
        let come = eventually(TIMEOUT, || missing().is_empty());
        assert!(come, "not {times} times {text:?}: {:?} {}", missing(), self.lab.log());
    }

    /// DEL gives every lease back.
    pub(crate) fn del(&self) {
        self.each(|_, _, attachment| self.lab.ctx.del(attachment, &self.conf));
        assert!(self.lab.files().is_empty(), "{:?}", self.lab.files());
        assert!(eventually(TIMEOUT, || self.server.leased().is_empty()), "{:?}", self.server.leased());
    }
}

/// Where this interface gets its answers.
pub(crate) fn address(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 9, 0, 100 + number as u8], 68))
}

/// The number of the interface that sent the message, from the client ID.
fn number(message: &Message) -> usize {
    let option = message.opts().get(OptionCode::ClientIdentifier).map(DhcpOption::to_vec);
    let id = String::from_utf8(option.unwrap().unwrap()).unwrap();
    id.rsplit_once("/e").unwrap().1.parse().unwrap()
}
