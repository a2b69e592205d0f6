//! Builds the client's DHCP messages and reads the server's. Pure.
//!
//! # References
//! RFC 2131, RFC 2132 (options).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ferrule_dhcp::wire::{self, Key, Lease, shorten};
use serde::{Deserialize, Serialize};

use crate::packet::{Options, Packet, REPLY, REQUEST};
use crate::settings::{is_host, settings};

/// The shortest message in bytes that every server takes (BOOTP).
const SHORTEST: usize = 300;
/// The longest message in bytes that the client takes, as the reference says to servers.
const LONGEST: u16 = 1500;

const SUBNET_MASK: u8 = 1;
const WANTED_ADDRESS: u8 = 50;
const LEASE_TIME: u8 = 51;
const MESSAGE_TYPE: u8 = 53;
const SERVER_ID: u8 = 54;
const REQUESTED: u8 = 55;
const TEXT: u8 = 56;
const LONGEST_MESSAGE: u8 = 57;
const T1: u8 = 58;
const T2: u8 = 59;
const CLIENT_ID: u8 = 61;

/// The values of option 53.
const DISCOVER: u8 = 1;
const OFFER: u8 = 2;
const DHCP_REQUEST: u8 = 3;
const ACK: u8 = 5;
const NAK: u8 = 6;
const RELEASE: u8 = 7;

/// What all messages of a client have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    /// The MAC address.
    pub(crate) mac: [u8; 6],
    /// The content of option 61.
    pub(crate) id: Vec<u8>,
    /// From the configuration.
    pub(crate) options: wire::Options,
}

impl Client {
    /// The client ID is the reference's: type 0 and the text, unless the configuration provides option 61.
    pub(crate) fn new(mac: [u8; 6], key: &Key, options: wire::Options) -> Self {
        let provided = options.provide.iter().rev().find(|(code, _)| *code == CLIENT_ID);
        let id =
            provided.map_or_else(|| [&[0], name(key).as_bytes()].concat(), |(_, content)| content.clone());
        Client { mac, id, options }
    }
}

/// The text of the client ID, which also begins the daemon's messages about this lease.
pub(crate) fn name(key: &Key) -> String {
    shorten(&format!("{}/{}/{}", key.container_id, key.network, key.ifname), 254)
}

/// The message to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Looks for servers, and may name the address that the client had.
    Discover { wanted: Option<Ipv4Addr> },
    /// Takes an offer.
    Select { address: Ipv4Addr, server: Ipv4Addr },
    /// Asks whether the client may keep its address (INIT-REBOOT).
    Reboot { address: Ipv4Addr },
    /// Prolongs the lease (RENEWING, REBINDING).
    Renew { address: Ipv4Addr },
    /// Gives the address back.
    Release { address: Ipv4Addr, server: Ipv4Addr },
}

/// The bytes of a message. `secs`: seconds since the exchange began.
pub(crate) fn build(client: &Client, kind: Kind, xid: u32, secs: u16) -> Vec<u8> {
    let (message_type, own, wanted, server) = match kind {
        Kind::Discover { wanted } => (DISCOVER, None, wanted, None),
        Kind::Select { address, server } => (DHCP_REQUEST, None, Some(address), Some(server)),
        Kind::Reboot { address } => (DHCP_REQUEST, None, Some(address), None),
        Kind::Renew { address } => (DHCP_REQUEST, Some(address), None, None),
        Kind::Release { address, server } => (RELEASE, Some(address), None, Some(server)),
    };
    let mut options = Options::default();
    if message_type != RELEASE {
        options.set(LONGEST_MESSAGE, LONGEST.to_be_bytes());
        options.set(REQUESTED, client.options.request.as_slice());
        for (code, content) in &client.options.provide {
            options.set(*code, content.as_slice());
        }
    }
    options.set(CLIENT_ID, client.id.as_slice());
    options.set(MESSAGE_TYPE, [message_type]);
    for (code, address) in [(WANTED_ADDRESS, wanted), (SERVER_ID, server)] {
        if let Some(address) = address {
            options.set(code, address.octets());
        }
    }
    let packet = Packet {
        op: REQUEST,
        xid,
        secs,
        broadcast: client.options.broadcast && message_type != RELEASE,
        ciaddr: own.unwrap_or(Ipv4Addr::UNSPECIFIED),
        yiaddr: Ipv4Addr::UNSPECIFIED,
        mac: client.mac,
        options,
    };
    let mut bytes = packet.encode();
    bytes.resize(bytes.len().max(SHORTEST), 0);
    bytes
}

/// What kind of answer a server gave.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// DHCPOFFER.
    Offer,
    /// DHCPACK.
    Ack,
    /// DHCPNAK.
    Nak,
}

/// An answer of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) verdict: Verdict,
    pub(crate) xid: u32,
    pub(crate) address: Ipv4Addr,
    /// `None` if no host can have the address that the server calls its own.
    pub(crate) server: Option<Ipv4Addr>,
    pub(crate) prefix: Option<u8>,
    /// Lease time, T1 and T2 in seconds.
    pub(crate) times: [Option<u32>; 3],
    /// What the container gets, except for the address.
    pub(crate) settings: Lease,
    /// The codes of options with something that no container can use.
    pub(crate) ignored: BTreeSet<u8>,
    /// The server's explanation in printable characters; may be empty.
    pub(crate) text: String,
}

/// Reads an answer to this client. `None` if it is another message.
pub(crate) fn parse(client: &Client, bytes: &[u8]) -> Option<Reply> {
    let packet = Packet::decode(bytes).filter(|packet| packet.op == REPLY && packet.mac == client.mac)?;
    let options = &packet.options;
    let verdict = match options.first(MESSAGE_TYPE)? {
        [OFFER] => Verdict::Offer,
        [ACK] => Verdict::Ack,
        [NAK] => Verdict::Nak,
        _ => return None,
    };
    let address = packet.yiaddr;
    let (settings, ignored) = settings(options, &client.options.request, address);
    let text = String::from_utf8_lossy(options.get(TEXT).unwrap_or_default());
    Some(Reply {
        verdict,
        xid: packet.xid,
        address,
        server: options.first(SERVER_ID).map(Ipv4Addr::from).filter(|server| is_host(*server)),
        prefix: options.first(SUBNET_MASK).map(u32::from_be_bytes).and_then(prefix),
        times: [LEASE_TIME, T1, T2].map(|code| options.first(code).map(u32::from_be_bytes)),
        settings,
        ignored,
        text: text.trim_end_matches('\0').escape_debug().to_string(),
    })
}

/// The prefix length of a mask. `None` if it is no mask, or says that the whole Internet is on the link.
fn prefix(mask: u32) -> Option<u8> {
    let is_mask = mask.leading_ones() + mask.trailing_zeros() == 32;
    u8::try_from(mask.leading_ones()).ok().filter(|prefix| is_mask && *prefix > 0)
}

#[cfg(test)]
pub(crate) mod tests {
    use dhcproto::v4::{DhcpOption, Encodable as _, Message, MessageType, Opcode, OptionCode, UnknownOption};
    use ferrule_dhcp::wire::Route;

    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    pub(crate) fn client(provide: &[(u8, &str)]) -> Client {
        let key = Key { network: "net".to_owned(), container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
        let provide = provide.iter().map(|(code, text)| (*code, text.as_bytes().to_vec())).collect();
        let request = vec![121, 1, 3, 6, 15, 26, 33, 42, 119];
        Client::new(MAC, &key, wire::Options { provide, request, broadcast: false })
    }

    /// The options of a message as code and content.
    fn options(bytes: &[u8]) -> Vec<(u8, Vec<u8>)> {
        let (mut rest, mut found) = (&bytes[240..], Vec::new());
        while let [code @ 1..=254, len, tail @ ..] = rest {
            found.push((*code, tail[..usize::from(*len)].to_vec()));
            rest = &tail[usize::from(*len)..];
        }
        found
    }

    #[test]
    fn discover_is_the_references() {
        let bytes =
            build(&client(&[(12, "host"), (60, "v")]), Kind::Discover { wanted: None }, 0x0102_0304, 7);
        assert_eq!((bytes.len(), &bytes[..12]), (300, &[1, 1, 6, 0, 1, 2, 3, 4, 0, 7, 0, 0][..]));
        assert_eq!(&bytes[28..34], MAC);
        assert_eq!(
            options(&bytes),
            [
                (12, b"host".to_vec()),
                (53, vec![1]),
                (55, vec![121, 1, 3, 6, 15, 26, 33, 42, 119]),
                (57, vec![5, 220]),
                (60, b"v".to_vec()),
                (61, b"\0c1/net/eth0".to_vec()),
            ]
        );
    }

    #[test]
    fn each_kind_has_its_address_fields() {
        let (address, server) = (Ipv4Addr::new(10, 0, 0, 5), Ipv4Addr::new(10, 0, 0, 1));
        for (kind, number, ciaddr, wanted, to) in [
            (Kind::Discover { wanted: Some(address) }, 1, false, true, false),
            (Kind::Select { address, server }, 3, false, true, true),
            (Kind::Reboot { address }, 3, false, true, false),
            (Kind::Renew { address }, 3, true, false, false),
            (Kind::Release { address, server }, 7, true, false, true),
        ] {
            let bytes = build(&client(&[(61, "own")]), kind, 1, 0);
            let options = options(&bytes);
            let of = |code| options.iter().find(|(found, _)| *found == code).map(|(_, content)| &content[..]);
            assert_eq!(of(53), Some(&[number][..]), "{kind:?}");
            assert_eq!(bytes[12..16] == address.octets(), ciaddr, "{kind:?}");
            assert_eq!(of(50).is_some(), wanted, "{kind:?}");
            assert_eq!(of(54).is_some(), to, "{kind:?}");
            // RELEASE too has the client ID that the configuration provides: the server knows no other.
            assert_eq!(of(61), Some(&b"own"[..]), "{kind:?}");
        }
    }

    #[test]
    fn broadcast_flag() {
        let mut client = client(&[]);
        client.options.broadcast = true;
        assert_eq!(build(&client, Kind::Discover { wanted: None }, 1, 0)[10..12], [0x80, 0]);
    }

    pub(crate) fn answer(verdict: MessageType, xid: u32, options: Vec<DhcpOption>) -> Vec<u8> {
        let mut message = Message::default();
        message.set_opcode(Opcode::BootReply).set_xid(xid).set_chaddr(&MAC).set_yiaddr([10, 0, 0, 5]);
        message.opts_mut().insert(DhcpOption::MessageType(verdict));
        for option in options {
            message.opts_mut().insert(option);
        }
        message.to_vec().unwrap()
    }

    fn raw(code: u8, content: &[u8]) -> DhcpOption {
        DhcpOption::Unknown(UnknownOption::new(OptionCode::from(code), content.to_vec()))
    }

    #[test]
    fn all_options_of_an_answer() {
        let reply = answer(
            MessageType::Ack,
            9,
            vec![
                raw(1, &[255, 255, 255, 0]),
                raw(3, &[10, 0, 0, 1, 10, 0, 0, 2]),
                raw(6, &[10, 0, 0, 3]),
                raw(15, b"example.com\0"),
                raw(26, &[5, 120]),
                raw(33, &[20, 1, 2, 3, 10, 0, 0, 1, 192, 168, 7, 9, 10, 0, 0, 2]),
                raw(42, &[10, 0, 0, 4]),
                raw(51, &[0, 0, 14, 16]),
                raw(54, &[10, 0, 0, 1]),
                raw(58, &[0, 0, 0, 60]),
                raw(119, b"\x01a\x07example\0\x01b\xc0\x02"),
            ],
        );
        let reply = parse(&client(&[]), &reply).unwrap();
        assert_eq!((reply.verdict, reply.xid, reply.prefix), (Verdict::Ack, 9, Some(24)));
        assert_eq!((reply.times, reply.server), ([Some(3600), Some(60), None], Some([10, 0, 0, 1].into())));
        let route = |dst: &str, gw: &str| Route { dst: dst.to_owned(), gw: gw.to_owned() };
        let expected = Lease {
            address: String::new(),
            gateway: Some("10.0.0.1".to_owned()),
            routes: vec![
                route("20.0.0.0/8", "10.0.0.1"),
                route("192.168.7.0/24", "10.0.0.2"),
                route("0.0.0.0/0", "10.0.0.1"),
            ],
            nameservers: vec!["10.0.0.3".to_owned()],
            domain: "example.com".to_owned(),
            search: vec!["a.example".to_owned(), "b.example".to_owned()],
            mtu: 1400,
            ntp: vec!["10.0.0.4".to_owned()],
        };
        assert_eq!(reply.settings, expected);
    }

    #[test]
    fn classless_routes_replace_the_others_and_only_requested_settings_count() {
        let classless = [16, 10, 9, 10, 0, 0, 7, 0, 0, 0, 0, 0];
        let options = vec![raw(3, &[10, 0, 0, 1]), raw(26, &[5, 120]), raw(121, &classless)];
        let mut client = client(&[]);
        client.options.request = vec![3];
        let reply = parse(&client, &answer(MessageType::Ack, 9, options)).unwrap();
        let routes: Vec<_> = reply.settings.routes.iter().map(|r| format!("{} {}", r.dst, r.gw)).collect();
        assert_eq!(routes, ["10.9.0.0/16 10.0.0.7", "0.0.0.0/0 0.0.0.0"]);
        assert_eq!((reply.settings.gateway.as_deref(), reply.settings.mtu), (Some("10.0.0.1"), 0));
        assert_eq!(reply.prefix, None);
    }

    #[test]
    fn foreign_and_broken_answers_are_none() {
        let whole = answer(MessageType::Ack, 9, vec![raw(1, &[255, 0, 255, 0])]);
        assert_eq!(parse(&client(&[]), &whole).unwrap().prefix, None);
        let mut other = client(&[]);
        other.mac[5] = 9;
        assert_eq!(parse(&other, &whole), None);
        assert_eq!(parse(&client(&[]), &answer(MessageType::Discover, 9, vec![])), None);
        for len in 0..whole.len() {
            let _ = parse(&client(&[]), &whole[..len]);
        }
    }

    /// `hlen` is a byte of the message; only six bytes of `chaddr` are a MAC address.
    #[test]
    fn the_length_of_the_hardware_address() {
        let mut bytes = answer(MessageType::Ack, 9, vec![]);
        for len in 0..=255 {
            bytes[2] = len;
            assert_eq!(parse(&client(&[]), &bytes).is_some(), len == 6, "{len}");
        }
    }

    #[test]
    fn texts_and_masks_of_a_refusal() {
        for (mask, expected) in
            [([0; 4], None), ([128, 0, 0, 0], Some(1)), ([255; 4], Some(32)), ([1; 4], None)]
        {
            let options = vec![raw(1, &mask), raw(54, &[0; 4]), raw(56, b"no\n\x1b[2J\xff\0")];
            let reply = parse(&client(&[]), &answer(MessageType::Nak, 9, options)).unwrap();
            assert_eq!((reply.prefix, reply.server), (expected, None));
            assert_eq!(reply.text, "no\\n\\u{1b}[2J\u{fffd}");
        }
        // An option of a wrong length counts as absent.
        for code in [1, 51, 54, 58, 59] {
            for content in [&[][..], &[1], &[255, 255, 255, 0, 1]] {
                let bytes = answer(MessageType::Ack, 9, vec![raw(code, content)]);
                let reply = parse(&client(&[]), &bytes).unwrap();
                assert_eq!((reply.prefix, reply.server, reply.times), (None, None, [None; 3]), "{code}");
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn random_bytes(
            options in proptest::collection::vec(proptest::arbitrary::any::<u8>(), 0..600),
            at in 0..240_usize,
            value in proptest::arbitrary::any::<u8>(),
        ) {
            let mut bytes = answer(MessageType::Ack, 9, vec![]);
            bytes.pop();
            bytes[at] = value;
            bytes.extend(options);
            let _ = parse(&client(&[]), &bytes);
        }
    }
}
