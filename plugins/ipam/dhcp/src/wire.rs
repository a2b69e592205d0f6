//! What the plugin and the daemon say to each other over the Unix socket: one request and one answer for each
//! connection, both a JSON object in one line.
//!
//! The reference speaks HTTP and Go's gob on the same socket. Its daemon answers our line with an HTTP error, because the
//! line is no HTTP request; its plugin begins with `CONNECT`. So each side recognises a foreign peer by its first bytes.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The version of this protocol.
pub const PROTOCOL: u32 = 1;
/// The socket, if the configuration and the daemon's flags name no other.
pub const SOCKET: &str = "/run/cni/dhcp.sock";
/// How the reference's plugin begins.
pub const REFERENCE_PLUGIN: &[u8] = b"CONNECT ";
/// How the reference's daemon answers.
pub const REFERENCE_DAEMON: &[u8] = b"HTTP/";
/// The longest line in bytes. GC sends all attachments of a network.
pub const LONGEST: u64 = 16 * 1024 * 1024;

/// What the plugin asks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Operation {
    /// ADD: get a lease, or return the one that the attachment has.
    Acquire,
    /// CHECK: return the lease that the attachment has.
    Show,
    /// DEL: release the lease.
    Release,
    /// GC: release the leases of the network that are not in `valid`.
    Collect,
    /// STATUS: answer.
    #[default]
    Ping,
}

/// The version of IP of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Family {
    /// DHCPv4.
    Ipv4,
    /// DHCPv6.
    Ipv6,
}

impl Family {
    /// Both, in the order of results.
    pub const ALL: [Family; 2] = [Family::Ipv4, Family::Ipv6];
}

/// A request of the plugin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Request {
    /// [`PROTOCOL`].
    pub ferrule_dhcp: u32,
    /// What to do.
    pub operation: Operation,
    /// The attachment. GC and STATUS: only the network.
    pub key: Key,
    /// The absolute path of the container's namespace.
    pub netns: String,
    /// ADD and CHECK: the families. None means IPv4, as plugins send it that know no other.
    pub families: Vec<Family>,
    /// What the configuration says about DHCPv4.
    pub options: Options,
    /// DHCPv6: offer the server to answer the first message with a lease.
    pub rapid_commit: bool,
    /// The attachments that GC keeps: container ID and interface name.
    pub valid: Vec<(String, String)>,
    /// How many milliseconds the plugin waits for the lease.
    pub wait: u64,
}

impl Request {
    /// The request as a line.
    pub fn to_line(&self) -> Vec<u8> {
        // Numbers and texts can always be written as JSON.
        let mut line = serde_json::to_vec(self).unwrap_or_default();
        line.push(b'\n');
        line
    }
}

/// The identity of an attachment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Key {
    /// The network's name.
    pub network: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_IFNAME.
    pub ifname: String,
}

/// What the configuration says about the messages to the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Options {
    /// Options that every message carries: code and content.
    pub provide: Vec<(u8, Vec<u8>)>,
    /// The parameter request list.
    pub request: Vec<u8>,
    /// Ask the server to broadcast its answers.
    pub broadcast: bool,
}

/// An answer of the daemon: an error, or success with the lease if the request asks for one.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Answer {
    /// [`PROTOCOL`].
    pub ferrule_dhcp: u32,
    /// Why the request failed.
    pub error: Option<Failure>,
    /// The lease of IPv4.
    pub lease: Option<Lease>,
    /// The lease of IPv6.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lease6: Option<Lease>,
}

impl Answer {
    /// The lease of a family.
    pub fn lease(&mut self, family: Family) -> &mut Option<Lease> {
        match family {
            Family::Ipv4 => &mut self.lease,
            Family::Ipv6 => &mut self.lease6,
        }
    }
}

/// Why a request failed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// The code of a CNI error.
    pub code: u32,
    /// The message of a CNI error.
    pub msg: String,
}

/// What the server has given to the container.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Lease {
    /// The address with its prefix length.
    pub address: String,
    /// The first router.
    pub gateway: Option<String>,
    /// The routes in the server's order.
    pub routes: Vec<Route>,
    /// Name servers.
    pub nameservers: Vec<String>,
    /// The domain; may be empty.
    pub domain: String,
    /// The search list.
    pub search: Vec<String>,
    /// The interface's MTU in bytes; 0 if the server says none.
    pub mtu: u32,
    /// Time servers. A result of ADD has no place for them; the lease's file shows them.
    pub ntp: Vec<String>,
}

/// A route of a lease.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Route {
    /// The destination with its prefix length.
    pub dst: String,
    /// The next hop; 0.0.0.0 if the destination is on the link.
    pub gw: String,
}

/// The folder where the daemon keeps its leases: beside its socket, so that the plugin finds it without the daemon.
pub fn lease_dir(socket: &Path) -> PathBuf {
    socket.with_extension("leases")
}

/// The file of an attachment's lease. None of the three names can contain a colon.
pub fn lease_file(socket: &Path, key: &Key, family: Family) -> PathBuf {
    let end = if family == Family::Ipv6 { ":ipv6" } else { "" };
    let name = format!("{}:{}:{}{end}", key.container_id, key.ifname, key.network);
    lease_dir(socket).join(shorten(&name, 240))
}

/// The text if it has at most `limit` bytes; otherwise its beginning and a hash of all of it.
pub fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    // FNV-1a with 64 bits.
    let hash = text.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let mut end = limit - 17;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}~{hash:016x}", &text[..end])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_differ() {
        assert_eq!(shorten("abc", 20), "abc");
        let [one, other] = ["x", "y"].map(|end| shorten(&format!("{}ä{end}", "a".repeat(300)), 254));
        assert!(one.len() <= 254 && one[..237] == other[..237] && one != other, "{one} {other}");
    }

    #[test]
    fn a_request_survives_the_line() {
        let request = Request {
            ferrule_dhcp: PROTOCOL,
            operation: Operation::Collect,
            key: Key { network: "n\n".to_owned(), ..Key::default() },
            netns: "/x".to_owned(),
            families: Family::ALL.into(),
            rapid_commit: true,
            options: Options { provide: vec![(12, vec![0, 255])], request: vec![3, 1], broadcast: true },
            valid: vec![("c1".to_owned(), "eth0".to_owned())],
            wait: 5,
        };
        let line = request.to_line();
        assert_eq!(line.iter().position(|byte| *byte == b'\n'), Some(line.len() - 1));
        assert_eq!(serde_json::from_slice::<Request>(&line).unwrap(), request);
    }

    #[test]
    fn files_are_beside_the_socket() {
        let key = Key { network: "net".to_owned(), container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
        let file = |family| lease_file(Path::new(SOCKET), &key, family);
        assert_eq!(file(Family::Ipv4), Path::new("/run/cni/dhcp.leases/c1:eth0:net"));
        assert_eq!(file(Family::Ipv6), Path::new("/run/cni/dhcp.leases/c1:eth0:net:ipv6"));
    }
}
