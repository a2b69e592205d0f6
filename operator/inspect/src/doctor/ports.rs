//! Host ports that a program of the node listens on, too: packets from outside reach the container instead.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::io;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;

use cni_common::spec::CniError;
use ferrule_kernel::ip::from_octets;
use ferrule_kernel::netlink::Socket;
use ferrule_kit::{owner, socket};
use ferrule_portmap::plan::HostPort;
use ferrule_portmap::{list, nft, reference};

use super::{Finding, Subject};
use crate::sight::{self, unread};

/// The subject.
pub(super) const SUBJECT: &str = "host ports";
/// Programs that keep other programs off the host ports of their containers by listening on these.
const KEEPERS: [&str; 6] = ["conmon", "crio", "docker-proxy", "dockerd", "podman", "rootlessport"];
/// How many open files of a process are looked at that is in another network namespace, as all processes of a container are.
const MOST_INSIDE: usize = 1024;
/// `TCP_LISTEN`, and `TCP_CLOSE`, which a UDP socket without a peer has.
const LISTENS: [(&str, &str); 2] = [("tcp", "0A"), ("udp", "07")];

/// A host port.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Taken {
    ip: Option<IpAddr>,
    is_v6: bool,
    proto: String,
    port: u16,
    owner: String,
}

/// A socket of the node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    ip: IpAddr,
    proto: &'static str,
    port: u16,
    inode: u64,
}

/// What the subject needs to know.
pub struct Facts {
    taken: BTreeSet<Taken>,
    listeners: Vec<Listener>,
}

impl Facts {
    /// Reads them.
    ///
    /// # Errors
    /// The kernel refuses to list host ports, or a file cannot be read.
    pub fn read(socket: &mut Socket) -> Result<Facts, CniError> {
        let mut taken = BTreeSet::new();
        for owned in nft::list(socket)? {
            taken.insert(Taken::of(&owned.host_port, owner::describe(&owned.label)));
        }
        for (container, host_port) in reference::list(socket)? {
            taken.extend(host_port.map(|found| Taken::of(&found, format!("container {container}"))));
        }
        for chain in list::chains(socket)? {
            let who = format!("container {} on network {}", chain.container_id, chain.network);
            taken.extend(chain.host_ports.iter().filter_map(|text| Taken::parse(text, &who)));
        }
        let mut listeners = Vec::new();
        if !taken.is_empty() {
            for (name, is_v6) in [("tcp", false), ("tcp6", true), ("udp", false), ("udp6", true)] {
                let path = format!("/proc/thread-self/net/{name}");
                match fs::read_to_string(&path) {
                    Ok(text) => listeners.extend(text.lines().filter_map(|line| listener(name, line))),
                    // A kernel without IPv6.
                    Err(error) if is_v6 && error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(CniError::internal(unread(&path, &error))),
                }
            }
        }
        Ok(Facts { taken, listeners })
    }

    fn clashes(&self) -> impl Iterator<Item = (&Taken, &Listener)> {
        let pairs = self.taken.iter().flat_map(|taken| self.listeners.iter().map(move |one| (taken, one)));
        pairs.filter(|(taken, listener)| taken.meets(listener))
    }

    /// The subject; `None` on a node without host ports.
    pub fn judge(&self) -> Option<Subject> {
        let inodes = self.clashes().map(|(_, listener)| listener.inode).collect();
        self.judge_by(&processes(&inodes))
    }

    fn judge_by(&self, processes: &HashMap<u64, (u32, String)>) -> Option<Subject> {
        let finding = |(taken, listener): (&Taken, &Listener)| {
            let Taken { proto, port, owner, .. } = taken;
            let process = processes.get(&listener.inode);
            if process.is_some_and(|(_, name)| KEEPERS.contains(&name.as_str())) {
                return None;
            }
            let who = process.map_or("a program".to_owned(), |(pid, name)| format!("{name} (process {pid})"));
            let problem = format!("{who} of the node listens on it, but its packets go to {owner}");
            let remedy = "give the container another host port, or the program another port";
            Some(Finding::warning(format!("host port {port}/{proto}"), problem, remedy))
        };
        let mut findings: Vec<Finding> = self.clashes().filter_map(finding).collect();
        findings.sort();
        findings.dedup();
        let seen = format!("{}, and no program of the node listens on one", self.taken.len());
        (!self.taken.is_empty()).then(|| Subject::new(SUBJECT, seen, findings))
    }
}

/// The findings as sentences; one if they cannot be read.
pub(crate) fn warnings() -> Vec<String> {
    let found = socket::netfilter().and_then(|mut socket| Facts::read(&mut socket));
    let text = |Finding { subject, problem, .. }: Finding| format!("{subject}: {problem}");
    match found {
        Ok(facts) => {
            facts.judge().map_or_else(Vec::new, |found| found.findings.into_iter().map(text).collect())
        }
        Err(error) => vec![format!("{SUBJECT}: cannot be looked at: {error}")],
    }
}

impl Taken {
    fn of(HostPort { key, target, .. }: &HostPort, owner: String) -> Taken {
        let (proto, is_v6) = (key.proto.name().to_owned(), target.is_ipv6());
        Taken { ip: key.host_ip, is_v6, proto, port: key.port, owner }
    }

    /// Decodes the text of [`list::Chain::host_ports`].
    fn parse(text: &str, owner: &str) -> Option<Taken> {
        let (key, target) = text.split_once(" -> ")?;
        let (place, proto) = key.rsplit_once('/')?;
        let (host, port) = place.rsplit_once(':').unwrap_or(("", place));
        let (ip, port) = (host.trim_end_matches("/128").parse().ok(), port.parse().ok()?);
        let is_v6 = target.starts_with('[');
        Some(Taken { ip, is_v6, proto: proto.to_owned(), port, owner: owner.to_owned() })
    }

    /// Whether some packets are for both. A socket of all IPv6 addresses usually has those of IPv4 too.
    fn meets(&self, listener: &Listener) -> bool {
        let Listener { ip, proto, port, .. } = listener;
        let has_address = match self.ip {
            _ if ip.is_unspecified() => ip.is_ipv6() || !self.is_v6,
            // A host port leaves ::1 alone.
            None => ip.is_ipv6() == self.is_v6 && !(ip.is_ipv6() && ip.is_loopback()),
            Some(own) => own == *ip,
        };
        self.proto == *proto && self.port == *port && has_address
    }
}

/// The socket in a line of `/proc/net/tcp` and similar files, if it has no peer.
fn listener(file: &str, line: &str) -> Option<Listener> {
    let (proto, state) = LISTENS.into_iter().find(|(proto, _)| file.starts_with(proto))?;
    let mut fields = line.split_whitespace().skip(1);
    let (local, _, found) = (fields.next()?, fields.next()?, fields.next()?);
    let inode = fields.nth(5)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let word = |at: usize| Some(u32::from_str_radix(ip.get(at..at + 8)?, 16).ok()?.to_ne_bytes());
    let octets: Option<Vec<[u8; 4]>> = (0..ip.len()).step_by(8).map(word).collect();
    let (ip, port) = (from_octets(&octets?.concat())?, u16::from_str_radix(port, 16).ok()?);
    (found == state).then_some(Listener { ip, proto, port, inode })
}

/// A process of each of these sockets, and its name.
fn processes(inodes: &BTreeSet<u64>) -> HashMap<u64, (u32, String)> {
    let mut found = HashMap::new();
    let own = fs::metadata("/proc/thread-self/ns/net").map(|meta| meta.ino()).ok();
    let all = if inodes.is_empty() { None } else { fs::read_dir("/proc").ok() };
    for process in all.into_iter().flatten().flatten() {
        if found.len() == inodes.len() {
            break;
        }
        let Some(pid) = process.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        let is_here = fs::metadata(process.path().join("ns/net")).is_ok_and(|meta| Some(meta.ino()) == own);
        let files = fs::read_dir(process.path().join("fd")).into_iter().flatten().flatten();
        let files = files.take(if is_here { usize::MAX } else { MOST_INSIDE });
        for inode in files.filter_map(|file| socket_inode(fs::read_link(file.path()).ok()?.to_str()?)) {
            if inodes.contains(&inode) {
                let name = sight::read(&format!("/proc/{pid}/comm")).unwrap_or_default();
                found.entry(inode).or_insert((pid, name.trim_end().to_owned()));
            }
        }
    }
    found
}

fn socket_inode(link: &str) -> Option<u64> {
    link.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn sockets_of_proc() {
        let tcp = "   0: 0100007F:2766 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100 0 0 10 0";
        let found = listener("tcp", tcp).unwrap();
        assert_eq!((found.ip, found.port, found.inode), ([127, 0, 0, 1].into(), 10086, 4711));
        let udp6 = "  77: 00000000000000000000000001000000:0035 00000000000000000000000000000000:0000 07 00000000:00000000 00:00000000 00000000 0 0 12 2 0 0";
        let found = listener("udp6", udp6).unwrap();
        assert_eq!((found.ip, found.port, found.proto), ("::1".parse::<IpAddr>().unwrap(), 53, "udp"));
        assert_eq!(listener("tcp", &tcp.replace(" 0A ", " 01 ")), None);
        assert_eq!(listener("tcp", "  sl  local_address rem_address   st"), None);
    }

    #[test]
    fn host_ports_meet_programs() {
        let taken = |text: &str| Taken::parse(text, "container c1").unwrap();
        let all = [
            "22/tcp -> 10.1.0.2:22",
            "53/udp -> [fd00::2]:53",
            "192.0.2.1:80/tcp -> 10.1.0.2:80",
            "2001:db8::1/128:90/tcp -> [fd00::2]:90",
            "9000/tcp -> 10.1.0.2:9000",
        ];
        let listener =
            |ip: &str, proto, port, inode| Listener { ip: ip.parse().unwrap(), proto, port, inode };
        let listeners = vec![
            listener("::", "tcp", 22, 1),
            listener("0.0.0.0", "udp", 53, 2),
            listener("::1", "udp", 53, 2),
            listener("192.0.2.9", "tcp", 80, 2),
            listener("192.0.2.1", "tcp", 80, 3),
            listener("2001:db8::1", "tcp", 90, 4),
            listener("127.0.0.1", "tcp", 9000, 5),
            listener("0.0.0.0", "tcp", 10250, 2),
        ];
        let facts = Facts { taken: all.map(taken).into(), listeners };
        let processes = [(1, (7, "sshd".to_owned())), (4, (8, "conmon".to_owned()))].into();
        let subject = facts.judge_by(&processes).unwrap();
        let found: Vec<_> = subject.findings.iter().map(|one| one.subject.as_str()).collect();
        assert_eq!(found, ["host port 22/tcp", "host port 80/tcp", "host port 9000/tcp"]);
        assert_eq!(
            subject.findings[0].problem,
            "sshd (process 7) of the node listens on it, but its packets go to container c1"
        );
        assert!(Facts { taken: BTreeSet::new(), ..facts }.judge_by(&processes).is_none());
    }

    #[test]
    fn the_process_of_a_socket() {
        let socket = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = socket.local_addr().unwrap().port();
        let text = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
        let found = text.lines().filter_map(|line| listener("tcp", line)).find(|found| found.port == port);
        let inode = found.unwrap().inode;
        assert_eq!(processes(&[inode].into())[&inode].0, std::process::id());
    }
}
