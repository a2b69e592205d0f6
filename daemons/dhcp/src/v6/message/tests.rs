use dhcproto::v6::{
    Decodable as _, DhcpOption, Encodable as _, IAAddr, IANA, Message, MessageType, OptionCode,
    Status as Code, StatusCode, UnknownOption,
};
use proptest::prelude::*;

use super::super::lease::Lease;
use super::super::settings::is_host;
use super::*;

pub(crate) const ADDRESS: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 5);
/// The server's DUID.
pub(crate) const SERVER: [u8; 8] = [0, 3, 0, 1, 2, 0, 0, 9];

pub(crate) fn client(rapid_commit: bool) -> Client {
    let key = Key { network: "net".to_owned(), container_id: "c1".to_owned(), ifname: "eth0".to_owned() };
    Client::new(&key, rapid_commit)
}

/// An IA with these addresses and their preferred and valid lifetimes.
pub(crate) fn ia([t1, t2]: [u32; 2], addresses: &[(Ipv6Addr, u32, u32)]) -> DhcpOption {
    let address = |(addr, preferred_life, valid_life): &(Ipv6Addr, u32, u32)| {
        let opts = std::iter::empty().collect();
        DhcpOption::IAAddr(IAAddr {
            addr: *addr,
            preferred_life: *preferred_life,
            valid_life: *valid_life,
            opts,
        })
    };
    DhcpOption::IANA(IANA { id: client(false).iaid, t1, t2, opts: addresses.iter().map(address).collect() })
}

pub(crate) fn status(status: Code) -> DhcpOption {
    DhcpOption::StatusCode(StatusCode { status, msg: "why\n".to_owned() })
}

/// An answer to the client, with more options.
pub(crate) fn answer(kind: MessageType, xid: u32, options: Vec<DhcpOption>) -> Vec<u8> {
    let mut message = Message::new(kind);
    message.set_xid_num(xid);
    let client = DhcpOption::ClientId(client(false).duid.bytes().to_vec());
    let all = [client, DhcpOption::ServerId(SERVER.to_vec())].into_iter().chain(options);
    all.for_each(|option| message.opts_mut().insert(option));
    message.to_vec().unwrap()
}

fn read(options: Vec<DhcpOption>) -> Reply {
    parse(&client(false), &answer(MessageType::Reply, 7, options)).unwrap()
}

#[test]
fn each_kind_has_its_options() {
    let server = Duid::read(&SERVER).unwrap();
    for (kind, number, names_server, requests) in [
        (Kind::Solicit, MessageType::Solicit, false, true),
        (Kind::Request, MessageType::Request, true, true),
        (Kind::Confirm, MessageType::Confirm, false, false),
        (Kind::Renew, MessageType::Renew, true, true),
        (Kind::Rebind, MessageType::Rebind, false, true),
        (Kind::Release, MessageType::Release, true, false),
        (Kind::Decline, MessageType::Decline, true, false),
    ] {
        let server = Some(&server).filter(|_| names_server);
        let bytes = build(&client(true), kind, 0x00a1_b2c3, 150, server, Some(ADDRESS));
        let message = Message::from_bytes(&bytes).unwrap();
        assert_eq!((message.msg_type(), message.xid_num()), (number, 0x00a1_b2c3));
        let option = |code| message.opts().get(code);
        assert_eq!(
            option(OptionCode::ClientId),
            Some(&DhcpOption::ClientId(client(true).duid.bytes().into()))
        );
        assert_eq!(option(OptionCode::ElapsedTime), Some(&DhcpOption::ElapsedTime(150)));
        assert_eq!(option(OptionCode::IANA), Some(&ia([0, 0], &[(ADDRESS, 0, 0)])), "{kind:?}");
        assert_eq!(option(OptionCode::ServerId).is_some(), names_server, "{kind:?}");
        assert_eq!(option(OptionCode::ORO).is_some(), requests, "{kind:?}");
        assert_eq!(option(OptionCode::RapidCommit).is_some(), kind == Kind::Solicit, "{kind:?}");
    }
    let plain = build(&client(false), Kind::Solicit, 1, 0, None, None);
    let message = Message::from_bytes(&plain).unwrap();
    assert_eq!(message.opts().get(OptionCode::RapidCommit), None);
    assert_eq!(message.opts().get(OptionCode::IANA), Some(&ia([0, 0], &[])));
}

#[test]
fn all_options_of_an_answer() {
    let reply = read(vec![
        ia([100, 200], &[(ADDRESS, 300, 400)]),
        DhcpOption::Preference(9),
        DhcpOption::RapidCommit,
        DhcpOption::DomainNameServers(vec!["fd00:9::2".parse().unwrap()]),
        DhcpOption::Unknown(UnknownOption::new(OptionCode::from(24), b"\x01a\x07example\0".to_vec())),
    ]);
    assert_eq!(reply.verdict, Verdict::Reply { rapid_commit: true });
    assert_eq!((reply.xid, reply.server.bytes(), reply.preference), (7, &SERVER[..], 9));
    assert_eq!((reply.status, reply.times), (Status::Success, [100, 200]));
    assert_eq!(reply.addresses, [Given { address: ADDRESS, preferred: 300, valid: 400 }]);
    let (settings, ignored) = reply.settings(ADDRESS);
    assert_eq!(
        (settings.address.as_str(), settings.nameservers),
        ("fd00:9::5/128", vec!["fd00:9::2".to_owned()])
    );
    assert_eq!((settings.search, ignored.len()), (vec!["a.example".to_owned()], 0));
}

#[test]
fn foreign_messages_are_none() {
    let whole = answer(MessageType::Reply, 7, vec![]);
    assert!(parse(&client(false), &whole).is_some());
    let other = Client { duid: Duid::read(&[0, 4, 1]).unwrap(), ..client(false) };
    assert_eq!(parse(&other, &whole), None);
    for kind in [MessageType::Solicit, MessageType::Renew, MessageType::Reconfigure, MessageType::RelayRepl] {
        assert_eq!(parse(&client(false), &answer(kind, 7, vec![])), None, "{kind:?}");
    }
    // Without a client or a server, and with one whose length is forbidden.
    for server in [None, Some(0), Some(2), Some(131)] {
        let mut bytes = header(REPLY, 7);
        append(&mut bytes, CLIENT_ID, client(false).duid.bytes());
        server.iter().for_each(|len| append(&mut bytes, SERVER_ID, &vec![1; *len]));
        assert_eq!(parse(&client(false), &bytes), None, "{server:?}");
    }
    let mut bytes = header(REPLY, 7);
    append(&mut bytes, SERVER_ID, &SERVER);
    assert_eq!(parse(&client(false), &bytes), None);
}

#[test]
fn statuses() {
    for (code, expected) in [
        (Code::Success, Status::Success),
        (Code::NoBinding, Status::NoBinding),
        (Code::NotOnLink, Status::NotOnLink),
        (Code::NoAddrsAvail, Status::Other(2)),
        (Code::Unknown(0xffff), Status::Other(0xffff)),
    ] {
        let reply = read(vec![status(code)]);
        let text = if expected == Status::Success { "" } else { "why\\n" };
        assert_eq!((reply.status, reply.text.as_str()), (expected, text));
        // Of the IA, and of its address.
        let DhcpOption::IANA(mut outer) = ia([0, 0], &[(ADDRESS, 1, 1)]) else { panic!() };
        outer.opts.insert(status(code));
        assert_eq!(read(vec![DhcpOption::IANA(outer)]).status, expected);
        let inner = [status(code)].into_iter().collect();
        let address = IAAddr { addr: ADDRESS, preferred_life: 1, valid_life: 1, opts: inner };
        let opts = [DhcpOption::IAAddr(address)].into_iter().collect();
        let outer = IANA { id: client(false).iaid, t1: 0, t2: 0, opts };
        assert_eq!(read(vec![DhcpOption::IANA(outer)]).status, expected);
    }
    let long = StatusCode { status: Code::NoBinding, msg: "x".repeat(1000) };
    assert_eq!(read(vec![DhcpOption::StatusCode(long)]).text.len(), LONGEST_TEXT);
}

#[test]
fn addresses_that_count() {
    let other = DhcpOption::IANA(IANA { id: 1, t1: 0, t2: 0, opts: std::iter::empty().collect() });
    let usual = ia([0, 0], &[(ADDRESS, 1, 2)]);
    assert_eq!(read(vec![other, usual]).addresses.len(), 1);
    assert_eq!(read(vec![ia([3, 2], &[(ADDRESS, 1, 2)])]).addresses, [], "T1 > T2");
    assert_eq!(read(vec![ia([3, 0], &[(ADDRESS, 1, 2)])]).addresses.len(), 1, "T2 is left to the client");
    assert_eq!(read(vec![ia([0, 0], &[(ADDRESS, 3, 2)])]).addresses, [], "preferred > valid");
    let many = vec![(ADDRESS, 1, 1); 1000];
    assert_eq!(read(vec![ia([0, 0], &many)]).addresses.len(), MOST_ADDRESSES);
}

proptest! {
    /// For all answers of a server: no lease that a container cannot have.
    #[test]
    fn any_bytes(
        random in prop::collection::vec(any::<u8>(), 0..300),
        mutations in prop::collection::vec((0..400_usize, any::<u8>()), 0..6),
        len in 0..400_usize,
    ) {
        let _ = parse(&client(false), &random);
        let mut bytes = answer(MessageType::Reply, 7, vec![ia([1, 2], &[(ADDRESS, 3, 4); 3]), status(Code::Success)]);
        bytes.extend(&random);
        for (at, value) in mutations {
            let at = at % bytes.len();
            bytes[at] = value;
        }
        bytes.truncate(len.max(60));
        let Some(reply) = parse(&client(false), &bytes) else { return Ok(()) };
        let Ok(lease) = Lease::of(&reply, None, 5) else { return Ok(()) };
        prop_assert!(is_host(lease.address) && lease.expires_at > 5);
        prop_assert!(lease.renew_at <= lease.rebind_at && lease.rebind_at <= lease.expires_at);
        prop_assert!(ferrule_dhcp::result::result_of(&[lease.settings], 0).is_ok());
    }
}
