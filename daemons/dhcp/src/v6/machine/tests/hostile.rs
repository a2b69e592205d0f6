//! Answers of servers that are broken or hostile.

use proptest::prelude::*;

use super::super::super::message::Given;
use super::super::super::settings::is_host;
use super::*;

/// What a server may say instead of the right answer, and the reason in the log.
fn spoilt(reply: &Reply) -> Vec<(Reply, String)> {
    let mut all = Vec::new();
    for address in ["::", "::1", "ff02::1", "fe80::5", "::ffff:10.0.0.5"] {
        let given = Given { address: address.parse().unwrap(), preferred: 9, valid: 9 };
        all.push((Reply { addresses: vec![given], ..reply.clone() }, address.to_owned()));
    }
    all.push((Reply { addresses: Vec::new(), ..reply.clone() }, "gives no address".to_owned()));
    all
}

#[test]
fn offers_that_no_container_can_use() {
    let world = World::new();
    let right = world.reply(Type::Advertise, vec![ia([0, 0], &[(ADDRESS, 9, 9)])]);
    let mut rows = spoilt(&right);
    let given = Given { address: ADDRESS, preferred: 0, valid: 0 };
    rows.push((Reply { addresses: vec![given], ..right.clone() }, "no container can have".to_owned()));
    rows.push((Reply { status: Status::Other(2), ..right }, "answers Other(2)".to_owned()));
    for (reply, why) in rows {
        let mut world = World::new();
        world.texts();
        let log = world.machine.receive(&reply, 0);
        assert!(matches!(&log[..], [Action::Log(text)] if text.contains(&why)), "{why}: {log:?}");
        // A flood fills no log.
        assert_eq!(world.machine.receive(&reply, 0), []);
        let last = world.until_the_end();
        assert!(last.starts_with("no more tries for an IPv6 address; ") && last.contains(&why), "{last}");
        // A good offer counts nevertheless.
        let mut world = World::new();
        world.receive(&reply);
        world.offer(255, ADDRESS);
        world.receive(&Reply { verdict: Verdict::Reply { rapid_commit: false }, ..reply });
        world.give(ADDRESS);
        world.probed(true);
        assert!(world.machine.is_bound() || why.contains("Other"), "{why}");
    }
}

/// A lease that the container has goes on after each message: the right answer still counts, and otherwise the lease expires.
#[test]
fn answers_to_a_renewal_that_no_container_can_use() {
    let renewing = || {
        let mut world = World::bound();
        world.next();
        world
    };
    let right = renewing().reply(Type::Reply, vec![ia([0, 0], &[(ADDRESS, 1000, 1000)])]);
    let mut rows = spoilt(&right);
    let other = Given { address: OTHER, preferred: 9, valid: 9 };
    rows.push((Reply { addresses: vec![other], ..right.clone() }, "another address".to_owned()));
    rows.push((Reply { server: Duid::read(&[9; 9]).unwrap(), ..right.clone() }, "another server".to_owned()));
    rows.push((Reply { xid: right.xid ^ 1, ..right.clone() }, "another transaction".to_owned()));
    rows.push((Reply { verdict: Verdict::Advertise, ..right.clone() }, "an offer".to_owned()));
    rows.push((Reply { status: Status::Other(1), ..right }, "a failure".to_owned()));
    for (reply, why) in rows {
        let mut world = renewing();
        world.texts();
        for _ in 0..3 {
            world.receive(&reply);
            assert_eq!(world.texts(), [""; 0], "{why}");
        }
        assert!(world.machine.is_bound() && world.machine.is_listening(), "{why}");
        world.give(ADDRESS);
        assert_eq!(world.texts(), ["Save", "Bound"], "{why}");
    }
}

/// A stranger answers a message of a client that has a lease, makes the best offer, and is silent then.
#[test]
fn no_stranger_ends_a_lease() {
    let not_on_link = || vec![status(Code::NotOnLink)];
    let zero = || vec![ia([0, 0], &[(ADDRESS, 0, 0)])];
    let no_binding = || vec![ia([0, 0], &[]), status(Code::NoBinding)];
    let cases = [
        ("Confirm", not_on_link as fn() -> Vec<DhcpOption>),
        ("Rebind", not_on_link),
        ("Rebind", zero),
        ("Rebind", no_binding),
    ];
    for (asked, answer) in cases {
        let start = || {
            let mut world =
                if asked == "Confirm" { super::bound::restarted(100_000) } else { World::bound() };
            while world.next() != asked {}
            let reply = Reply { server: stranger(), ..world.reply(Type::Reply, answer()) };
            world.receive(&reply);
            world
        };
        // Its own server is silent as well: the lease goes on until it expires.
        let mut world = start();
        while world.now < 1_000_000 && !world.machine.has_ended() {
            let is_searching = matches!(world.machine.state, State::Exchange(Kind::Solicit, _));
            if is_searching && world.machine.is_listening() {
                let options = vec![DhcpOption::Preference(255), ia([0, 0], &[(ADDRESS, 1000, 1000)])];
                let offer = Reply { server: stranger(), ..world.reply(Type::Advertise, options) };
                world.receive(&offer);
            }
            assert!(world.machine.is_bound(), "{asked} at {}", world.now);
            world.step();
        }
        assert_eq!((world.until_the_end().as_str(), world.now), ("Expire", 1_000_000), "{asked}");
        // Its own server answers the search: the lease is taken from it.
        let mut world = start();
        assert!(matches!(world.machine.state, State::Exchange(Kind::Solicit, _)), "{asked}");
        let options = vec![DhcpOption::Preference(255), ia([0, 0], &[(ADDRESS, 9, 9)])];
        let offer = Reply { server: stranger(), ..world.reply(Type::Advertise, options) };
        world.receive(&offer);
        world.offer(0, ADDRESS);
        assert!(world.names_server(), "{asked}: a stranger's offer came first");
        world.give(ADDRESS);
        assert_eq!(world.machine.deadline(), world.now + 500_000, "{asked}");
    }
}

/// A stranger prolongs the lease for a year before its own server does, for the usual time.
#[test]
fn the_own_server_comes_first() {
    let mut world = World::bound();
    while world.next() != "Rebind" {}
    let year = world.reply(Type::Reply, vec![ia([0, 0], &[(ADDRESS, 31_536_000, 31_536_000)])]);
    world.receive(&Reply { server: stranger(), ..year });
    let sent = world.now;
    world.now += 900;
    world.give(ADDRESS);
    let lease = world.machine.lease().unwrap();
    assert_eq!((lease.server.bytes(), lease.expires_at), (&SERVER[..], sent + 1_000_000));
    assert_eq!(world.machine.deadline(), lease.renew_at);
}

/// A refusal under any name comes first, and perhaps an offer. The answer of the lease's own server to the same message counts while
/// the search runs.
#[test]
fn the_right_answer_counts_after_a_refusal() {
    let not_on_link = || vec![status(Code::NotOnLink)];
    let zero = || vec![ia([0, 0], &[(ADDRESS, 0, 0)])];
    let no_binding = || vec![ia([0, 0], &[]), status(Code::NoBinding)];
    let own = || Duid::read(&SERVER).unwrap();
    let cases = [
        ("Confirm", stranger(), not_on_link as fn() -> Vec<DhcpOption>),
        ("Confirm", own(), not_on_link),
        ("Renew", own(), not_on_link),
        ("Renew", own(), zero),
        ("Renew", own(), no_binding),
        ("Rebind", stranger(), zero),
        ("Rebind", stranger(), no_binding),
        ("Rebind", own(), not_on_link),
    ];
    for (asked, name, refusal) in cases {
        let start = || {
            let mut world =
                if asked == "Confirm" { super::bound::restarted(100_000) } else { World::bound() };
            while world.next() != asked {}
            let right = match asked {
                "Confirm" => vec![status(Code::Success)],
                _ => vec![ia([0, 0], &[(ADDRESS, 1000, 1000)])],
            };
            let (right, no) = (world.reply(Type::Reply, right), world.reply(Type::Reply, not_on_link()));
            let refusal = Reply { server: name.clone(), ..world.reply(Type::Reply, refusal()) };
            world.receive(&refusal);
            assert!(matches!(world.machine.state, State::Exchange(Kind::Solicit | Kind::Request, _)));
            world.texts();
            world.receive(&Reply { server: stranger(), ..right.clone() });
            assert_eq!(world.texts(), [""; 0], "{asked} {name}");
            (world, right, no)
        };
        let (mut world, right, _) = start();
        world.receive(&right);
        assert_eq!(world.machine.state, State::Bound, "{asked} {name}");
        let renew_at = if asked == "Confirm" { 500_000 } else { world.now + 500_000 };
        assert_eq!(world.machine.deadline(), renew_at, "{asked} {name}");
        // Its own refusal counts as well: the lease ends if the search finds nothing.
        let (mut world, _, no) = start();
        world.receive(&no);
        let limit = world.now + 10_000;
        if matches!(world.machine.state, State::Exchange(Kind::Solicit, _)) {
            assert_eq!((world.until_the_end().as_str(), world.now), ("Expire", limit), "{asked} {name}");
        }
    }
}

/// A stranger rebinds the lease for a shorter time.
#[test]
fn no_stranger_shortens_a_lease() {
    let mut world = World::bound();
    while world.next() != "Rebind" {}
    let reply = world.reply(Type::Reply, vec![ia([0, 0], &[(ADDRESS, 100, 100)])]);
    world.receive(&Reply { server: stranger(), ..reply });
    world.step();
    assert_eq!(world.machine.lease().unwrap().expires_at, 1_000_000);
    // It is the server that Renew names now, and refuses, also after a restart of the daemon.
    let lease = world.machine.lease().unwrap().clone();
    world.now = world.now.max(lease.renew_at);
    world.machine = Machine::resume(client(false), TIMING, lease, random(), world.now);
    while world.next() != "Renew" {}
    let reply = world.reply(Type::Reply, vec![status(Code::NotOnLink)]);
    world.receive(&Reply { server: stranger(), ..reply });
    assert_eq!(world.events.last().unwrap().1, "Solicit");
    assert_eq!((world.until_the_end().as_str(), world.now), ("Expire", 1_000_000));
}

fn stranger() -> Duid {
    Duid::read(&[0, 3, 0, 1, 9]).unwrap()
}

#[derive(Clone, Debug)]
enum Event {
    Step,
    Wait(u32),
    Probed(bool),
    Release,
    Reply(Box<Reply>, bool, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let address = prop_oneof![Just(ADDRESS), Just(OTHER), any::<u128>().prop_map(Ipv6Addr::from)];
    let time = prop_oneof![0..3_u32, 1..1000_u32, Just(u32::MAX - 1), Just(u32::MAX), any::<u32>()];
    let given = (address, time.clone(), time.clone()).prop_map(|(address, one, other)| Given {
        address,
        preferred: one.min(other),
        valid: one.max(other),
    });
    let verdict = prop_oneof![
        Just(Verdict::Advertise),
        any::<bool>().prop_map(|rapid_commit| Verdict::Reply { rapid_commit })
    ];
    let status = prop_oneof![
        4 => Just(Status::Success),
        1 => Just(Status::NoBinding),
        1 => Just(Status::NotOnLink),
        1 => Just(Status::Other(2))
    ];
    let reply = (verdict, status, any::<u8>(), [time.clone(), time], prop::collection::vec(given, 0..3));
    let reply = (reply, any::<bool>(), any::<bool>(), any::<bool>());
    let reply =
        reply.prop_map(|((verdict, status, preference, times, addresses), is_server, is_ours, is_probed)| {
            let server = Duid::read(if is_server { &SERVER } else { &[7; 7] }).unwrap();
            let world = World::new();
            let plain = world.reply(Type::Reply, vec![]);
            let reply = Reply { verdict, status, preference, times, addresses, server, ..plain };
            Event::Reply(Box::new(reply), is_ours, is_probed)
        });
    prop_oneof![
        2 => Just(Event::Step),
        1 => (0..700_000_u32).prop_map(Event::Wait),
        1 => any::<bool>().prop_map(Event::Probed),
        1 => Just(Event::Release),
        8 => reply
    ]
}

proptest! {
    /// Any answers at any time: the lease is one that a container can have, it is the same one until the end, and the machine
    /// wakes.
    #[test]
    fn any_answers(events in prop::collection::vec(event(), 0..40), bound in any::<bool>()) {
        let mut world = if bound { World::bound() } else { World::with(true) };
        let mut had = world.machine.is_bound().then_some(ADDRESS);
        let mut is_released = false;
        for event in events {
            match event {
                Event::Step if world.machine.deadline() != NEVER => world.step(),
                Event::Step => {}
                Event::Wait(time) => {
                    world.now += Millis::from(time);
                    let actions = world.machine.wake(world.now);
                    world.note(actions);
                }
                Event::Probed(is_free) => world.probed(is_free),
                Event::Release => {
                    is_released = true;
                    let actions = world.machine.release(world.now);
                    world.note(actions);
                }
                Event::Reply(reply, is_ours, is_probed) => {
                    let xid = world.sent.as_ref().unwrap().xid_num() ^ u32::from(!is_ours);
                    world.receive(&Reply { xid, ..*reply });
                    if is_probed {
                        world.probed(true);
                    }
                }
            }
            if world.machine.has_ended() {
                break;
            }
            let Some(lease) = world.machine.lease().filter(|_| world.machine.is_bound()) else { continue };
            prop_assert!(*had.get_or_insert(lease.address) == lease.address && !is_released);
            prop_assert!(is_host(lease.address));
            prop_assert!(lease.renew_at <= lease.rebind_at && lease.rebind_at <= lease.expires_at);
        }
        // A container that had the address loses it, unless DEL comes before.
        let ended = world.machine.has_ended() && had.is_some() && !is_released;
        let last = world.texts().pop();
        prop_assert!(!ended || last.as_deref() == Some("Expire"), "{:?}", last);
    }
}
