//! Deletions of a process that detaches a container by several plugins, one after the other. The kernel makes each of them wait for an RCU
//! grace period: the removal of a link, and the close of a socket that has deleted nf_tables objects. Together they wait once.
//!
//! Between [`begin`] and [`end`] this thread keeps such sockets open, and the links of [`link()`] wait for the next removal of another link by
//! [`Socket::delete_with_deferred`].

use std::mem;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use nix::unistd::{Pid, gettid};
use rustix::thread::{MembarrierCommand, membarrier};

use super::link::{self, Link, LinkId};
use super::{Error, Socket};
use crate::observer;

/// A deletion that takes longer has waited for other processes: alone it takes 0.3 ms.
const LOCK_WAIT: Duration = Duration::from_millis(3);

/// What each thread defers. A static variable, because thread-local data would be one more mapping at every start of a plugin.
static DEFERRED: Mutex<Vec<Deferred>> = Mutex::new(Vec::new());

struct Deferred {
    thread: Pid,
    links: Vec<Link>,
    sockets: Vec<Socket>,
}

/// Begins to defer.
pub fn begin() {
    let new = Deferred { thread: gettid(), links: Vec::new(), sockets: Vec::new() };
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner).push(new);
}

/// Removes the links that still wait, closes the sockets and ends to defer. Returns each link that could not be removed, with the reason.
pub fn end() -> Vec<(Link, Error)> {
    let taken = with(|deferred| (mem::take(&mut deferred.links), mem::take(&mut deferred.sockets)));
    let Some((links, sockets)) = taken else { return Vec::new() };
    let thread = gettid();
    DEFERRED.lock().unwrap_or_else(PoisonError::into_inner).retain(|deferred| deferred.thread != thread);
    let failures = delete(links);
    drop(sockets);
    failures
}

fn delete(links: Vec<Link>) -> Vec<(Link, Error)> {
    if links.is_empty() {
        return Vec::new();
    }
    let mut socket = match Socket::route() {
        Ok(socket) => socket,
        Err(error) => return links.into_iter().map(|link| (link, error.clone())).collect(),
    };
    links
        .into_iter()
        .filter_map(|link| Some((socket.delete_link(LinkId::Index(link.index)).err()?, link)))
        .map(|(error, link)| (link, error))
        .collect()
}

/// Defers the removal of a link. False if this thread does not defer: then the caller removes it.
pub fn link(link: &Link) -> bool {
    with(|deferred| deferred.links.push(link.clone())).is_some()
}

/// Keeps a socket open that has deleted objects. Returns it if this thread does not defer.
fn keep(socket: Socket) -> Option<Socket> {
    let mut socket = Some(socket);
    with(|deferred| deferred.sockets.extend(socket.take()));
    socket
}

/// Whether links wait.
pub fn has_links() -> bool {
    with(|deferred| !deferred.links.is_empty()).unwrap_or(false)
}

fn with<T>(work: impl FnOnce(&mut Deferred) -> T) -> Option<T> {
    let mut all = DEFERRED.lock().unwrap_or_else(PoisonError::into_inner);
    if all.is_empty() {
        return None;
    }
    let thread = gettid();
    all.iter_mut().find(|deferred| deferred.thread == thread).map(work)
}

impl Socket {
    /// Closes the socket of a process that has deleted nf_tables objects and has nothing else to do meanwhile. `taken` is how long
    /// the deletion took.
    ///
    /// At the close the kernel waits until deleted objects are free, an RCU grace period of about 10 ms, and holds the lock of all
    /// changes of nf_tables. With hundreds of calls at once each of them would wait for those before it. So a call that has waited
    /// for that lock waits for a grace period first, which all of them share; the close then has little left to wait for. If the thread
    /// [defers](self), it has more to do: the socket stays open until the end.
    pub fn close_after_deletion(self, taken: Duration) {
        let Some(_socket) = keep(self) else { return };
        if taken >= LOCK_WAIT {
            // A kernel without the call (`CONFIG_MEMBARRIER`), or with `nohz_full`, waits at the close alone.
            let _ = observer::step("grace period", || membarrier(MembarrierCommand::Global));
        }
    }

    /// Removes these links of the socket's namespace together with those that wait, in one request, by a group number that nothing else has.
    /// Does nothing if no link waits. If it does not succeed, all links are as they were, or gone, and the caller removes its own one by one.
    ///
    /// The kernel removes all links with the number. So it is a random one above those that people use, and only links that are still the same carry it.
    pub fn delete_with_deferred(&mut self, links: &[Link]) {
        let waiting = with(|deferred| mem::take(&mut deferred.links)).unwrap_or_default();
        if waiting.is_empty() {
            return;
        }
        let all: Vec<&Link> = links.iter().chain(&waiting).collect();
        if links.is_empty() || !self.delete_group(&all) {
            with(|deferred| deferred.links = waiting);
        }
    }

    /// Whether all links are gone.
    fn delete_group(&mut self, links: &[&Link]) -> bool {
        let Ok(group) = random_group() else { return false };
        let set = links.iter().map(|link| link::set_group(link.index, group));
        let get = links.iter().map(|link| link::get(LinkId::Index(link.index)));
        let answers = self.requests(set.chain(get).collect());
        let Some((set, found)) = answers.split_at_checked(links.len()) else { return false };
        let is_same = |(link, answer): (&&Link, &super::Answer)| matches!(link::read(answer.clone()), Ok(Some(found)) if found.group == group && found.is_same_link(link));
        set.iter().all(Result::is_ok)
            && links.iter().zip(found).all(is_same)
            && self.request(link::delete_group(group)).is_ok()
    }
}

/// At least 2^30: people number groups from 1.
fn random_group() -> Result<u32, getrandom::Error> {
    let mut bytes = [0; 4];
    getrandom::fill(&mut bytes)?;
    Ok((u32::from_ne_bytes(bytes) >> 2) | 1 << 30)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use cni_lab::testing::isolated;

    use super::*;

    fn ip(commands: &str) -> String {
        let output = Command::new("sh").args(["-c", commands]).output().unwrap();
        assert!(output.status.success(), "{commands}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    }

    fn names() -> Vec<String> {
        let listed = ip("ip -o link show");
        let name = |line: &str| line.split([':', '@']).nth(1).unwrap().trim().to_owned();
        let mut names: Vec<String> = listed.lines().map(name).filter(|name| name != "lo").collect();
        names.sort();
        names
    }

    fn link_of(socket: &mut Socket, name: &str) -> Link {
        socket.link(LinkId::Name(name)).unwrap().unwrap()
    }

    #[test]
    fn links_go_together_and_others_stay() {
        isolated(|| {
            ip(
                "ip link add pa type veth peer name pb; ip link add pi type ifb; ip link add other type ifb; ip link set other group 1073741825",
            );
            let mut socket = Socket::route().unwrap();
            let [pair, ifb] = ["pa", "pi"].map(|name| link_of(&mut socket, name));
            assert!(!link(&ifb), "nothing is deferred yet");
            socket.delete_with_deferred(std::slice::from_ref(&pair));
            assert_eq!(names(), ["other", "pa", "pb", "pi"]);
            begin();
            assert!(link(&ifb) && has_links());
            socket.delete_with_deferred(std::slice::from_ref(&pair));
            assert_eq!((names(), has_links()), (vec!["other".to_owned()], false));
            assert_eq!(end(), []);
        });
    }

    #[test]
    fn a_link_that_is_another_one_now_stays() {
        isolated(|| {
            ip("ip link add pa type veth peer name pb; ip link add pi type ifb");
            let mut socket = Socket::route().unwrap();
            let [pair, ifb] = ["pa", "pi"].map(|name| link_of(&mut socket, name));
            ip("ip link set pa name pc");
            begin();
            assert!(link(&ifb));
            socket.delete_with_deferred(std::slice::from_ref(&pair));
            assert_eq!(names(), ["pb", "pc", "pi"]);
            // Without another link the end removes those that wait; a missing one is success.
            socket.delete_with_deferred(&[]);
            assert!(has_links() && link(&Link { index: 999, ..Link::default() }));
            assert_eq!((end(), names()), (Vec::new(), vec!["pb".to_owned(), "pc".to_owned()]));
            assert!(!link(&ifb));
        });
    }
}
