//! Builds the client's DHCP messages and reads the server's. Pure.
//!
//! # References
//! RFC 2131, RFC 2132 (options), RFC 3397 (119), RFC 3442 (121).

use std::net::Ipv4Addr;

use dhcproto::v4::{
    Decodable as _, DhcpOption, DhcpOptions, Encodable as _, Flags, Message, MessageType, Opcode, OptionCode,
    UnknownOption,
};
use ferrule_dhcp::wire::{Key, Lease, Options, Route, shorten};
use serde::{Deserialize, Serialize};

/// The shortest message in bytes that every server takes (BOOTP).
const SHORTEST: usize = 300;
/// The longest message in bytes that the client takes, as the reference says to servers.
const LONGEST: u16 = 1500;
const CLIENT_ID: u8 = 61;

/// What all messages of a client have in common.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Client {
    /// The MAC address.
    pub(crate) mac: [u8; 6],
    /// The content of option 61.
    pub(crate) id: Vec<u8>,
    /// From the configuration.
    pub(crate) options: Options,
}

impl Client {
    /// The client ID is the reference's: type 0 and the text, unless the configuration provides option 61.
    pub(crate) fn new(mac: [u8; 6], key: &Key, options: Options) -> Self {
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
    let mut message = Message::default();
    message.set_xid(xid).set_secs(secs).set_chaddr(&client.mac);
    let options = message.opts_mut();
    options.insert(DhcpOption::ClientIdentifier(client.id.clone()));
    if !matches!(kind, Kind::Release { .. }) {
        options.insert(DhcpOption::MaxMessageSize(LONGEST));
        let requested = client.options.request.iter().map(|code| OptionCode::from(*code)).collect();
        options.insert(DhcpOption::ParameterRequestList(requested));
        for (code, content) in client.options.provide.iter().filter(|(code, _)| *code != CLIENT_ID) {
            options.insert(DhcpOption::Unknown(UnknownOption::new(OptionCode::from(*code), content.clone())));
        }
    }
    let kind = match kind {
        Kind::Discover { wanted } => {
            wanted.map(|address| options.insert(DhcpOption::RequestedIpAddress(address)));
            MessageType::Discover
        }
        Kind::Select { address, server } => {
            options.insert(DhcpOption::RequestedIpAddress(address));
            options.insert(DhcpOption::ServerIdentifier(server));
            MessageType::Request
        }
        Kind::Reboot { address } => {
            options.insert(DhcpOption::RequestedIpAddress(address));
            MessageType::Request
        }
        Kind::Renew { address } => {
            message.set_ciaddr(address);
            MessageType::Request
        }
        Kind::Release { address, server } => {
            options.insert(DhcpOption::ServerIdentifier(server));
            message.set_ciaddr(address);
            MessageType::Release
        }
    };
    message.opts_mut().insert(DhcpOption::MessageType(kind));
    if client.options.broadcast && kind != MessageType::Release {
        message.set_flags(Flags::default().set_broadcast());
    }
    let mut bytes = message.to_vec().unwrap_or_default();
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
    pub(crate) server: Option<Ipv4Addr>,
    pub(crate) prefix: Option<u8>,
    /// Lease time, T1 and T2 in seconds.
    pub(crate) times: [Option<u32>; 3],
    /// What the container gets, except for the address.
    pub(crate) settings: Lease,
    /// The server's explanation; may be empty.
    pub(crate) text: String,
}

/// Reads an answer to this client. `None` if it is another message.
pub(crate) fn parse(client: &Client, bytes: &[u8]) -> Option<Reply> {
    let message = Message::from_bytes(bytes).ok()?;
    if message.opcode() != Opcode::BootReply || message.chaddr() != client.mac {
        return None;
    }
    let options = message.opts();
    let verdict = match options.msg_type()? {
        MessageType::Offer => Verdict::Offer,
        MessageType::Ack => Verdict::Ack,
        MessageType::Nak => Verdict::Nak,
        _ => return None,
    };
    let seconds = |code| match options.get(code)? {
        DhcpOption::AddressLeaseTime(time) | DhcpOption::Renewal(time) | DhcpOption::Rebinding(time) => {
            Some(*time)
        }
        _ => None,
    };
    Some(Reply {
        verdict,
        xid: message.xid(),
        address: message.yiaddr(),
        server: match options.get(OptionCode::ServerIdentifier) {
            Some(DhcpOption::ServerIdentifier(server)) => Some(*server),
            _ => None,
        },
        prefix: prefix(options),
        times: [OptionCode::AddressLeaseTime, OptionCode::Renewal, OptionCode::Rebinding].map(seconds),
        settings: settings(options, &client.options.request),
        text: match options.get(OptionCode::Message) {
            Some(DhcpOption::Message(text)) => text.clone(),
            _ => String::new(),
        },
    })
}

/// The prefix length of option 1. `None` if it is absent or no mask.
fn prefix(options: &DhcpOptions) -> Option<u8> {
    let Some(DhcpOption::SubnetMask(mask)) = options.get(OptionCode::SubnetMask) else { return None };
    let bits = u32::from(*mask);
    (bits.leading_ones() + bits.trailing_zeros() >= 32).then(|| bits.leading_ones().try_into().ok())?
}

/// What the container gets. Routes and the gateway count even if the server sends them unasked, as in the reference;
/// everything else only if the configuration requests it.
fn settings(options: &DhcpOptions, requested: &[u8]) -> Lease {
    let asked = |code: u8| options.get(OptionCode::from(code)).filter(|_| requested.contains(&code));
    let texts = |list: &[Ipv4Addr]| list.iter().map(Ipv4Addr::to_string).collect::<Vec<_>>();
    let trim = |text: &str| text.trim_end_matches(['\0', '.']).to_owned();
    let mut lease = Lease::default();
    if let Some(DhcpOption::Router(routers)) = options.get(OptionCode::Router) {
        lease.gateway = routers.first().map(Ipv4Addr::to_string);
    }
    lease.routes = routes(options, lease.gateway.as_deref());
    if let Some(DhcpOption::DomainNameServer(servers)) = asked(6) {
        lease.nameservers = texts(servers);
    }
    if let Some(DhcpOption::DomainName(domain)) = asked(15) {
        lease.domain = trim(domain);
    }
    if let Some(DhcpOption::InterfaceMtu(mtu)) = asked(26) {
        // RFC 2132: 68 is the least.
        lease.mtu = u32::from(*mtu).max(68);
    }
    if let Some(DhcpOption::NtpServers(servers)) = asked(42) {
        lease.ntp = texts(servers);
    }
    if let Some(DhcpOption::DomainSearch(names)) = asked(119) {
        lease.search = names.iter().map(|name| trim(&name.to_string())).collect();
    }
    lease
}

/// Option 121, or else option 33 and the default route through the first router.
fn routes(options: &DhcpOptions, router: Option<&str>) -> Vec<Route> {
    if let Some(DhcpOption::ClasslessStaticRoute(routes)) = options.get(OptionCode::ClasslessStaticRoute)
        && !routes.is_empty()
    {
        let route = routes.iter().map(|(dst, gw)| Route { dst: dst.trunc().to_string(), gw: gw.to_string() });
        return route.collect();
    }
    let mut list = Vec::new();
    if let Some(DhcpOption::StaticRoutingTable(routes)) = options.get(OptionCode::StaticRoutingTable) {
        for (dst, gw) in routes {
            let (prefix, mask) = match dst.octets()[0] {
                0 | 224.. => continue,
                1..128 => (8, 0xff00_0000),
                128..192 => (16, 0xffff_0000),
                192.. => (24, 0xffff_ff00),
            };
            let network = Ipv4Addr::from(u32::from(*dst) & mask);
            list.push(Route { dst: format!("{network}/{prefix}"), gw: gw.to_string() });
        }
    }
    list.extend(router.map(|gw| Route { dst: "0.0.0.0/0".to_owned(), gw: gw.to_owned() }));
    list
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];

    pub(crate) fn client(provide: &[(u8, &str)]) -> Client {
        let key = Key { network: "net".to_owned(), container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
        let provide = provide.iter().map(|(code, text)| (*code, text.as_bytes().to_vec())).collect();
        let request = vec![121, 1, 3, 6, 15, 26, 33, 42, 119];
        Client::new(MAC, &key, Options { provide, request, broadcast: false })
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
}
