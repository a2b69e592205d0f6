use proptest::prelude::*;

use super::*;

const OWN: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const ALL: [u8; 8] =
    [ROUTER, NAME_SERVERS, DOMAIN, MTU, STATIC_ROUTES, TIME_SERVERS, SEARCH, CLASSLESS_ROUTES];

fn read(list: &[(u8, &[u8])]) -> (Lease, Vec<u8>) {
    let mut options = Options::default();
    list.iter().for_each(|(code, content)| options.set(*code, *content));
    let (lease, ignored) = settings(&options, &ALL, OWN);
    (lease, ignored.into_iter().collect())
}

#[test]
fn addresses_of_other_hosts_remain() {
    let servers =
        [[0, 0, 0, 0], [10, 0, 0, 2], [127, 0, 0, 1], [224, 0, 0, 1], [255; 4], OWN.octets()].concat();
    for code in [ROUTER, NAME_SERVERS, TIME_SERVERS] {
        let (lease, ignored) = read(&[(code, &servers)]);
        let found = match code {
            ROUTER => lease.gateway.into_iter().collect(),
            NAME_SERVERS => lease.nameservers,
            _ => lease.ntp,
        };
        assert_eq!((found, ignored), (vec!["10.0.0.2".to_owned()], vec![code]));
        for broken in [&[][..], &[10, 0, 0], &[10, 0, 0, 2, 9]] {
            assert_eq!(read(&[(code, broken)]), (Lease::default(), vec![code]), "{broken:?}");
        }
    }
    // A router in another subnet is usual with a mask of 32 bits; the interface plugin says what the kernel thinks of it.
    assert!(read(&[(ROUTER, &[192, 0, 2, 1])]).1.is_empty());
}

#[test]
fn a_router_with_the_leased_address_makes_no_route() {
    let (lease, ignored) = read(&[(ROUTER, &OWN.octets())]);
    assert_eq!((lease, ignored), (Lease::default(), vec![ROUTER]));
}

#[test]
fn names_for_resolv_conf() {
    let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
    for good in ["example.com", "a", "_tcp.x-1.EXAMPLE", &longest] {
        assert_eq!(read(&[(DOMAIN, format!("{good}.\0").as_bytes())]).0.domain, good);
    }
    let long = [&longest, "e"].join(".");
    let label = "a".repeat(64);
    for bad in
        ["", "a b", "a\nnameserver 192.0.2.6", "a..b", ".a", "a\0b", "ä.example", "a\x1b[2J", &long, &label]
    {
        let expected = (Lease::default(), vec![DOMAIN]);
        assert_eq!(read(&[(DOMAIN, bad.as_bytes())]), expected, "{bad:?}");
    }
    assert_eq!(read(&[(DOMAIN, &[0xff, 0xfe])]).1, [DOMAIN]);
}

#[test]
fn search_lists() {
    let search = |content: &[u8]| {
        let (lease, ignored) = read(&[(SEARCH, content)]);
        (lease.search, !ignored.is_empty())
    };
    assert_eq!(
        search(b"\x01a\x07example\0\x01b\xc0\x02"),
        (vec!["a.example".into(), "b.example".into()], false)
    );
    // A pointer to itself, forwards, to the rest of its own name, and beyond the end.
    for loops in
        [&b"\xc0\x00"[..], b"\x01a\xc0\x02", b"\x01a\xc0\x00", b"\xc0\x04\x01a\0", b"\xff\xff", b"\xc0"]
    {
        assert_eq!(search(loops), (vec![], true), "{loops:?}");
    }
    // Cut off, reserved label types, and names that are refused while the next one counts.
    assert_eq!(search(b"\x01a\0\x3fb"), (vec!["a".into()], true));
    assert_eq!(search(b"\x80a\0"), (vec![], true));
    assert_eq!(search(b"\x09a\nnext b1\0\x01c\0"), (vec!["c".into()], true));
    // Pointers that make every name longer than the one before.
    let mut chain = b"\x3faaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\0".to_vec();
    let mut last = 0;
    for _ in 0..300 {
        let at = chain.len();
        chain.extend([1, b'x', 0xc0 | (last >> 8) as u8, last as u8]);
        last = at;
    }
    let (names, was_bad) = search(&chain);
    assert!(was_bad || names.len() == MOST_NAMES);
    assert!(names.iter().all(|name| name.len() <= LONGEST_NAME));
}

#[test]
fn routes_that_the_kernel_can_have() {
    let routes = |list: &[(u8, &[u8])]| {
        let (lease, ignored) = read(list);
        (lease.routes.iter().map(|route| format!("{} {}", route.dst, route.gw)).collect::<Vec<_>>(), ignored)
    };
    // Host bits are cut; a second route to the same destination and impossible routers do not count.
    let classless = [
        &[9, 10, 0xff, 10, 0, 0, 7][..],
        &[9, 10, 0x80, 10, 0, 0, 8],
        &[0, 0, 0, 0, 0],
        &[32, 1, 2, 3, 4, 224, 0, 0, 1],
        &[32, 1, 2, 3, 5, 10, 0, 0, 5],
        &[8, 127, 10, 0, 0, 1],
    ]
    .concat();
    let expected = vec!["10.128.0.0/9 10.0.0.7".to_owned(), "0.0.0.0/0 0.0.0.0".to_owned()];
    assert_eq!(routes(&[(CLASSLESS_ROUTES, &classless)]), (expected, vec![CLASSLESS_ROUTES]));
    // A broken option 121 counts as absent.
    let router = ["0.0.0.0/0 10.0.0.1".to_owned()];
    for broken in
        [&[33, 1, 2, 3, 4, 5, 10, 0, 0, 1][..], &[255; 40], &[24, 10, 0, 0, 10, 0, 0], &[24], &[8, 10, 1, 2]]
    {
        let found = routes(&[(CLASSLESS_ROUTES, broken), (ROUTER, &[10, 0, 0, 1])]);
        assert_eq!(found, (router.to_vec(), vec![CLASSLESS_ROUTES]), "{broken:?}");
    }
    let found = routes(&[(STATIC_ROUTES, &[0, 0, 0, 0, 10, 0, 0, 1, 20, 1, 1, 1, 0, 0, 0, 0])]);
    assert_eq!(found, (vec![], vec![STATIC_ROUTES]));
}

#[test]
fn mtu() {
    for (content, expected) in [(&[0, 0][..], 68), (&[0xff, 0xff], 65535), (&[5], 0), (&[5, 0, 0], 0)] {
        assert_eq!(read(&[(MTU, content)]).0.mtu, expected, "{content:?}");
    }
}

proptest! {
    /// For all answers of a server: the plugin accepts the settings, and nothing but names and addresses gets out.
    #[test]
    fn any_options(contents in prop::collection::vec((0..ALL.len(), prop::collection::vec(any::<u8>(), 0..300)), 0..8)) {
        let list: Vec<_> = contents.iter().map(|(index, content)| (ALL[*index], content.as_slice())).collect();
        let (lease, _) = read(&list);
        let lease = Lease { address: "10.0.0.5/24".to_owned(), ..lease };
        prop_assert!(ferrule_dhcp::result::result_of(std::slice::from_ref(&lease), 0).is_ok());
        prop_assert!(lease.domain.is_empty() || is_name(&lease.domain));
        prop_assert!(lease.search.iter().all(|name| is_name(name)));
        for address in lease.gateway.iter().chain(&lease.nameservers).chain(&lease.ntp) {
            prop_assert!(is_host(address.parse().unwrap()));
        }
    }
}
