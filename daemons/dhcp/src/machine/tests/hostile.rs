//! Answers of servers that are broken or hostile.

use proptest::prelude::*;

use super::*;

/// What a server may say instead of the right answer, and the reason in the log.
fn spoilt(reply: &Reply) -> Vec<(Reply, &'static str)> {
    let with = |change: &dyn Fn(&mut Reply)| {
        let mut reply = reply.clone();
        change(&mut reply);
        reply
    };
    vec![
        (with(&|reply| reply.address = [0, 0, 0, 0].into()), "0.0.0.0"),
        (with(&|reply| reply.address = [255; 4].into()), "255.255.255.255"),
        (with(&|reply| reply.address = [224, 0, 0, 9].into()), "224.0.0.9"),
        (with(&|reply| reply.address = [127, 0, 0, 9].into()), "127.0.0.9"),
        (with(&|reply| reply.address = [10, 0, 0, 255].into()), "10.0.0.255"),
        (with(&|reply| reply.address = SERVER), "10.0.0.1"),
        (with(&|reply| reply.server = None), "a server without a valid server identifier"),
    ]
}

#[test]
fn offers_that_no_container_can_use() {
    let world = World::new();
    for (reply, why) in spoilt(&world.reply(MessageType::Offer)) {
        let mut world = World::new();
        world.texts();
        let log = world.machine.receive(&reply, MAC, 0);
        assert!(matches!(&log[..], [Action::Log(text)] if text.contains(why)), "{why}: {log:?}");
        // A flood fills no log.
        assert_eq!(world.machine.receive(&reply, MAC, 0), []);
        while !world.machine.has_ended() {
            world.step();
        }
        let last = world.texts().pop().unwrap();
        assert!(last.starts_with("no more tries; ") && last.contains(why), "{last}");
        // A good offer counts nevertheless.
        let mut world = World::new();
        world.receive(&reply);
        world.answer(MessageType::Offer);
        world.answer(MessageType::Ack);
        assert!(world.machine.is_bound(), "{why}");
    }
}

#[test]
fn the_ack_of_another_address_than_the_offered_one() {
    let mut world = World::new();
    world.answer(MessageType::Offer);
    world.texts();
    let other = Reply { address: [10, 0, 0, 6].into(), ..world.reply(MessageType::Ack) };
    world.receive(&other);
    assert!(world.texts().is_empty() && !world.machine.is_bound());
    world.answer(MessageType::Ack);
    assert!(world.machine.is_bound());
}

/// A lease that the container has goes on after each message: the right answer still counts, and otherwise the lease expires.
#[test]
fn answers_to_a_renewal_that_no_container_can_use() {
    let renewing = || {
        let mut world = World::bound(600);
        world.step();
        world
    };
    let stranger = Reply { server: Some(ADDRESS), ..renewing().reply(MessageType::Ack) };
    let refusal = Reply { verdict: Verdict::Nak, ..stranger.clone() };
    let mut all = spoilt(&renewing().reply(MessageType::Ack));
    all.extend([(stranger, "instead of 10.0.0.1"), (refusal, "instead of 10.0.0.1")]);
    for (reply, why) in all {
        let mut world = renewing();
        for _ in 0..3 {
            world.texts();
            world.receive(&reply);
            assert_eq!(world.texts(), [""; 0], "{why}");
        }
        assert!(world.machine.is_bound() && world.machine.is_listening(), "{why}");
        world.answer(MessageType::Ack);
        assert_eq!(world.texts(), ["Save", "Bound"], "{why}");
        // After T2 and without another answer the interface goes down.
        let mut world = renewing();
        while !world.machine.has_ended() {
            world.step();
            let reply = Reply { xid: world.sent.as_ref().unwrap().xid(), ..reply.clone() };
            if world.machine.is_listening() && reply.verdict == Verdict::Ack && reply.address != ADDRESS {
                world.receive(&reply);
            }
        }
        assert_eq!(world.texts().last().unwrap(), "Expire", "{why}");
    }
}

/// The container does not learn of another mask.
#[test]
fn a_renewal_keeps_the_prefix_length() {
    let mut world = World::bound(600);
    world.step();
    let other = Reply { prefix: Some(8), ..world.reply(MessageType::Ack) };
    world.receive(&other);
    assert_eq!(world.machine.lease().unwrap().settings.address, "10.0.0.5/24");
    assert_eq!(world.machine.deadline(), 600_000);
}

/// A stranger refuses a request to all servers, offers the same address, and is silent then.
#[test]
fn no_stranger_ends_a_lease() {
    let stranger = Some(Ipv4Addr::new(10, 0, 0, 66));
    let start = || {
        let mut world = World::bound(1000);
        while !matches!(world.machine.state, State::Rebinding(_)) {
            world.step();
        }
        world.texts();
        let nak = Reply { server: stranger, ..world.reply(MessageType::Nak) };
        world.receive(&nak);
        let offer = Reply { server: stranger, ..world.reply(MessageType::Offer) };
        world.receive(&offer);
        world
    };
    let expiry = World::bound(1000).machine.lease().unwrap().expires_at;
    // Its own server is silent as well.
    let mut world = start();
    while !world.machine.has_ended() {
        assert!(world.machine.is_bound() && world.now < expiry);
        world.step();
    }
    assert_eq!((world.texts().last().unwrap().as_str(), world.now), ("Expire", expiry));
    // Its own server answers the search.
    let mut world = start();
    world.answer(MessageType::Offer);
    world.answer(MessageType::Ack);
    assert_eq!(world.texts().last().unwrap(), "Bound");
    // A stranger that acknowledges must not shorten the lease.
    let mut world = World::bound(1000);
    while !matches!(world.machine.state, State::Rebinding(_)) {
        world.step();
    }
    let ack = world.reply(MessageType::Ack);
    world.receive(&Reply { server: stranger, times: [Some(1), None, None], ..ack });
    world.step();
    assert_eq!(world.machine.lease().unwrap().expires_at, expiry);
    // Its refusal ends nothing, although it is the server that is asked now, also after a restart of the daemon.
    let lease = world.machine.lease().unwrap().clone();
    world.machine = Machine::resume(client(&[]), TIMING, lease, Box::new(|| 7));
    world.step();
    let nak = Reply { server: stranger, ..world.reply(MessageType::Nak) };
    world.receive(&nak);
    while !world.machine.has_ended() {
        world.step();
    }
    assert_eq!((world.texts().last().unwrap().as_str(), world.now), ("Expire", expiry));
}

#[test]
fn another_server_may_rebind() {
    let mut world = World::bound(600);
    while world.now < 525_000 {
        world.step();
    }
    let other = Ipv4Addr::new(10, 0, 0, 2);
    let reply = Reply { server: Some(other), ..world.reply(MessageType::Ack) };
    world.receive(&reply);
    world.receive(&reply);
    // Its own server may answer within half a second.
    assert_eq!(world.machine.deadline(), 525_500);
    world.step();
    assert_eq!(world.machine.lease().unwrap().server, other);
    assert_eq!(world.machine.deadline(), 825_000);
}

/// A stranger prolongs the lease for a year before its own server does, for the usual time.
#[test]
fn the_own_server_comes_first() {
    let stranger = Some(Ipv4Addr::new(10, 0, 0, 66));
    let mut world = World::bound(1000);
    while !matches!(world.machine.state, State::Rebinding(_)) {
        world.step();
    }
    let (sent, ack) = (world.now, world.reply(MessageType::Ack));
    world.receive(&Reply { server: stranger, times: [Some(31_536_000), None, None], ..ack.clone() });
    world.now += 400;
    world.receive(&ack);
    let lease = world.machine.lease().unwrap();
    assert_eq!((lease.server, lease.expires_at), (SERVER, sent + 1_000_000));
    assert_eq!(world.machine.deadline(), lease.renew_at);
}

/// A refusal under any name comes first, and perhaps an offer. The answer of the lease's own server to the same request counts while
/// the search runs.
#[test]
fn the_right_answer_counts_after_a_refusal() {
    let stranger = Some(Ipv4Addr::new(10, 0, 0, 66));
    for (name, is_offered) in
        [(stranger, false), (stranger, true), (Some(SERVER), false), (Some(SERVER), true)]
    {
        let start = || {
            let mut world = World::bound(1000);
            while !matches!(world.machine.state, State::Rebinding(_)) {
                world.step();
            }
            let (ack, nak) = (world.reply(MessageType::Ack), world.reply(MessageType::Nak));
            world.receive(&Reply { server: name, ..nak.clone() });
            if is_offered {
                let offer = Reply { server: stranger, ..world.reply(MessageType::Offer) };
                world.receive(&offer);
                world.step();
            }
            world.texts();
            world.receive(&Reply { server: stranger, ..ack.clone() });
            world.receive(&Reply { address: SERVER, ..ack.clone() });
            assert_eq!(world.texts(), [""; 0], "{name:?}");
            (world, ack, nak)
        };
        let (mut world, ack, nak) = start();
        let sent = world.now - if is_offered { world.now - 875_000 } else { 0 };
        world.receive(&ack);
        assert_eq!(world.texts(), ["Save", "Bound"], "{name:?}");
        assert_eq!(world.machine.lease().unwrap().expires_at, sent + 1_000_000);
        world.receive(&nak);
        world.receive(&ack);
        assert_eq!(world.texts(), [""; 0]);
        // Its own refusal counts as well: the lease ends if the search finds nothing.
        let (mut world, _, nak) = start();
        world.receive(&nak);
        while !world.machine.has_ended() {
            world.step();
        }
        assert_eq!((world.texts().last().unwrap().as_str(), world.now), ("Expire", 885_000), "{name:?}");
    }
}

#[derive(Clone, Debug)]
enum Event {
    Step,
    Wait(u32),
    Reply(Box<Reply>, bool),
}

fn event() -> impl Strategy<Value = Event> {
    let address = prop_oneof![Just(ADDRESS), Just(SERVER), any::<u32>().prop_map(Ipv4Addr::from)];
    let time = prop::option::of(prop_oneof![
        0..3_u32,
        1..1000_u32,
        Just(u32::MAX - 1),
        Just(u32::MAX),
        any::<u32>()
    ]);
    let verdict =
        prop_oneof![Just(Verdict::Offer), Just(Verdict::Ack), Just(Verdict::Ack), Just(Verdict::Nak)];
    let reply =
        (verdict, any::<u32>(), address.clone(), prop::option::of(address), prop::option::of(1..33_u8));
    let reply = (reply, [time.clone(), time.clone(), time], any::<bool>());
    let reply = reply.prop_map(|((verdict, xid, address, server, prefix), times, is_ours)| {
        let settings = Default::default();
        let ignored = Default::default();
        let text = String::new();
        Event::Reply(
            Box::new(Reply { verdict, xid, address, server, prefix, times, settings, ignored, text }),
            is_ours,
        )
    });
    prop_oneof![2 => Just(Event::Step), 1 => (0..700_000_u32).prop_map(Event::Wait), 4 => reply]
}

proptest! {
    /// Any answers at any time: the lease is one that a container can have, it is the same one until the end, and the machine
    /// wakes.
    #[test]
    fn any_answers(events in prop::collection::vec(event(), 0..40), bound in any::<bool>()) {
        let mut world = if bound { World::bound(600) } else { World::new() };
        let mut had = world.machine.is_bound().then_some(ADDRESS);
        for event in events {
            if world.machine.has_ended() || world.machine.deadline() == NEVER {
                break;
            }
            match event {
                Event::Step => world.step(),
                Event::Wait(time) => {
                    world.now += Millis::from(time);
                    let actions = world.machine.wake(world.now);
                    world.note(actions);
                }
                Event::Reply(reply, is_ours) => {
                    let xid = if is_ours { world.sent.as_ref().unwrap().xid() } else { reply.xid };
                    world.receive(&Reply { xid, ..*reply });
                }
            }
            let Some(lease) = world.machine.lease().filter(|_| world.machine.is_bound()) else { continue };
            prop_assert!(*had.get_or_insert(lease.address) == lease.address);
            prop_assert!(crate::settings::is_host(lease.address) && lease.address != lease.server);
            prop_assert!(lease.renew_at <= lease.rebind_at && lease.rebind_at <= lease.expires_at);
        }
        // A container that had the address loses the interface, unless DEL comes before.
        let ended = world.machine.has_ended() && had.is_some();
        let last = world.texts().pop();
        prop_assert!(!ended || last.as_deref() == Some("Expire"), "{:?}", last);
    }
}
