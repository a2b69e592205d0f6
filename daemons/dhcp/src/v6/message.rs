//! Builds the client's DHCPv6 messages and reads the server's. Pure.
//!
//! # References
//! RFC 8415, sections 16 and 21.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use ferrule_dhcp::wire::{Key, Lease};
use serde::{Deserialize, Serialize};

use super::duid::{Duid, iaid};
use super::packet::{Options, Packet, append, header};
use super::settings::{NAME_SERVERS, SEARCH, settings};

const CLIENT_ID: u16 = 1;
const SERVER_ID: u16 = 2;
const IA_NA: u16 = 3;
const IA_ADDRESS: u16 = 5;
const REQUESTED: u16 = 6;
const PREFERENCE: u16 = 7;
const ELAPSED: u16 = 8;
const STATUS: u16 = 13;
const RAPID_COMMIT: u16 = 14;
/// A client must request this option. Its value does not matter: no Solicit is repeated for as long as the least one.
const SOL_MAX_RT: u16 = 82;

const ADVERTISE: u8 = 2;
const REPLY: u8 = 7;

/// The most addresses of an answer that are looked at.
const MOST_ADDRESSES: usize = 16;

/// What all messages of a client have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    pub(crate) duid: Duid,
    pub(crate) iaid: u32,
    /// Whether a server may answer the first message with a lease.
    pub(crate) rapid_commit: bool,
}

impl Client {
    pub(crate) fn new(key: &Key, rapid_commit: bool) -> Self {
        Client { duid: Duid::of(key), iaid: iaid(key), rapid_commit }
    }
}

/// The message to build. The numbers are those on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Looks for servers, and may name the address that the client had.
    Solicit = 1,
    /// Takes an offer.
    Request = 3,
    /// Asks whether the address fits the link.
    Confirm = 4,
    /// Asks the server to prolong the lease.
    Renew = 5,
    /// Asks all servers to prolong the lease.
    Rebind = 6,
    /// Gives the address back.
    Release = 8,
    /// Says that another host has the address.
    Decline = 9,
}

/// The bytes of a message. `elapsed`: hundredths of a second since the exchange began.
pub(crate) fn build(
    client: &Client,
    kind: Kind,
    xid: u32,
    elapsed: u16,
    server: Option<&Duid>,
    address: Option<Ipv6Addr>,
) -> Vec<u8> {
    let mut bytes = header(kind as u8, xid);
    append(&mut bytes, CLIENT_ID, client.duid.bytes());
    if let Some(server) = server {
        append(&mut bytes, SERVER_ID, server.bytes());
    }
    append(&mut bytes, ELAPSED, &elapsed.to_be_bytes());
    // T1 and T2 are the server's to choose, and so are the lifetimes.
    let mut content = [&client.iaid.to_be_bytes()[..], &[0; 8]].concat();
    if let Some(address) = address {
        append(&mut content, IA_ADDRESS, &[&address.octets()[..], &[0; 8]].concat());
    }
    append(&mut bytes, IA_NA, &content);
    if matches!(kind, Kind::Solicit | Kind::Request | Kind::Renew | Kind::Rebind) {
        let codes = [NAME_SERVERS, SEARCH, SOL_MAX_RT];
        append(&mut bytes, REQUESTED, codes.map(u16::to_be_bytes).as_flattened());
    }
    if kind == Kind::Solicit && client.rapid_commit {
        append(&mut bytes, RAPID_COMMIT, &[]);
    }
    bytes
}

/// What kind of answer a server gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Advertise,
    /// To Solicit it counts only with the option of rapid commit.
    Reply {
        rapid_commit: bool,
    },
}

/// The status codes that a client treats in different ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    Success,
    NoBinding,
    NotOnLink,
    Other(u16),
}

/// An address of an answer, with its lifetimes in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Given {
    pub(crate) address: Ipv6Addr,
    pub(crate) preferred: u32,
    pub(crate) valid: u32,
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) verdict: Verdict,
    pub(crate) xid: u32,
    pub(crate) server: Duid,
    pub(crate) preference: u8,
    /// The first one that is no success: of the message, of the IA, or of an address.
    pub(crate) status: Status,
    /// The server's explanation in printable characters; may be empty.
    pub(crate) text: String,
    /// T1 and T2 in seconds; 0 leaves them to the client.
    pub(crate) times: [u32; 2],
    pub(crate) addresses: Vec<Given>,
    pub(crate) options: Vec<u8>,
}

impl Reply {
    /// What a container with this address gets, and the codes of options with something that cannot be used.
    pub(crate) fn settings(&self, own: Ipv6Addr) -> (Lease, BTreeSet<u16>) {
        settings(Options(&self.options), own)
    }
}

/// Reads an answer to this client. `None` if it is another message.
pub(crate) fn parse(client: &Client, bytes: &[u8]) -> Option<Reply> {
    let Packet { kind, xid, options } = Packet::decode(bytes)?;
    let verdict = match kind {
        ADVERTISE => Verdict::Advertise,
        REPLY => Verdict::Reply { rapid_commit: options.get(RAPID_COMMIT) == Some(&[]) },
        _ => return None,
    };
    if options.get(CLIENT_ID)? != client.duid.bytes() {
        return None;
    }
    let mut reply = Reply {
        verdict,
        xid,
        server: Duid::read(options.get(SERVER_ID)?)?,
        preference: options.get(PREFERENCE).and_then(|content| content.first().copied()).unwrap_or(0),
        status: Status::Success,
        text: String::new(),
        times: [0; 2],
        addresses: Vec::new(),
        options: options.0.to_vec(),
    };
    reply.read_status(options);
    for content in options.all(IA_NA) {
        let Some((iaid, rest)) = content.split_first_chunk() else { continue };
        let Some((times, inner)) = numbers(rest) else { continue };
        // Times in the wrong order: the whole option does not count (RFC 8415, section 21.4).
        let [t1, t2] = times;
        if u32::from_be_bytes(*iaid) == client.iaid && (t1 <= t2 || t2 == 0) {
            reply.times = times;
            reply.read_addresses(inner);
            break;
        }
    }
    Some(reply)
}

/// Two numbers, and the options that follow.
fn numbers(content: &[u8]) -> Option<([u32; 2], Options<'_>)> {
    let ([a, b, c, d, e, f, g, h], rest) = content.split_first_chunk()?;
    let numbers = [[*a, *b, *c, *d], [*e, *f, *g, *h]].map(u32::from_be_bytes);
    Some((numbers, Options(rest)))
}

impl Reply {
    fn read_addresses(&mut self, inner: Options<'_>) {
        self.read_status(inner);
        for content in inner.all(IA_ADDRESS).take(MOST_ADDRESSES) {
            let Some((address, rest)) = content.split_first_chunk::<16>() else { continue };
            let Some(([preferred, valid], inner)) = numbers(rest) else { continue };
            self.read_status(inner);
            if preferred <= valid {
                self.addresses.push(Given { address: Ipv6Addr::from(*address), preferred, valid });
            }
        }
    }

    fn read_status(&mut self, options: Options<'_>) {
        let status = options.get(STATUS).and_then(|content| content.split_first_chunk());
        let Some((code, text)) = status.filter(|_| self.status == Status::Success) else { return };
        self.status = match u16::from_be_bytes(*code) {
            0 => return,
            3 => Status::NoBinding,
            4 => Status::NotOnLink,
            other => Status::Other(other),
        };
        let text = &text[..text.len().min(LONGEST_TEXT)];
        self.text = String::from_utf8_lossy(text).trim_end_matches('\0').escape_debug().to_string();
    }
}

/// The most bytes of a server's explanation that get into the log.
const LONGEST_TEXT: usize = 255;

#[cfg(test)]
pub(crate) mod tests;
