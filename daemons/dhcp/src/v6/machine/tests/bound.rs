//! A lease that the container has: renewals, restarts of the daemon, and its release.

use super::*;

#[test]
fn renewing_then_rebinding_then_the_end() {
    let mut world = World::bound();
    let mut quiet = 0;
    while !world.machine.has_ended() {
        world.step();
        quiet += u32::from(!world.machine.is_listening());
    }
    let events: Vec<_> = world.events.iter().map(|(time, event)| (time / 1000, event.as_str())).collect();
    let renewals =
        events.iter().filter(|(time, event)| *event == "Renew" && (500..800).contains(time)).count();
    let rebinds =
        events.iter().filter(|(time, event)| *event == "Rebind" && (800..1000).contains(time)).count();
    // After 0, 10, 30, 70, 150 seconds, give or take a tenth.
    assert_eq!((renewals, rebinds, events.last()), (5, 5, Some(&(1000, "Expire"))), "{events:?}");
    assert!(quiet > 5, "the sockets close between the messages");
    assert!(!world.machine.is_bound());
    assert_eq!(world.machine.release(world.now), []);
}

/// The machine was busy: the daemon was kept from sending for three seconds.
#[test]
fn the_wait_for_an_answer_begins_when_the_message_has_left() {
    let mut world = World::new();
    world.machine.sent(3000);
    assert!((4000..=4100).contains(&world.machine.deadline()), "{}", world.machine.deadline());
    let mut world = World::bound();
    world.next();
    world.machine.sent(world.now + 3000);
    assert!((12_000..=13_000).contains(&(world.machine.deadline() - world.now)));
}

#[test]
fn renewals_go_on_for_ever() {
    let mut world = World::bound();
    for _ in 0..5 {
        assert_eq!(world.next(), "Renew");
        assert!(world.names_server() && world.wanted() == Some(ADDRESS));
        let at = world.now;
        world.give(ADDRESS);
        assert_eq!(world.texts(), ["Renew", "Save", "Bound"]);
        assert_eq!(world.machine.deadline(), at + 500_000);
    }
}

#[test]
fn another_server_may_rebind() {
    let mut world = World::bound();
    while world.next() != "Rebind" {}
    assert!(!world.names_server());
    let other = Duid::read(&[0, 3, 0, 1, 9]).unwrap();
    let reply = world.reply(Type::Reply, vec![ia([0, 0], &[(ADDRESS, 100, 100)])]);
    world.receive(&Reply { server: other.clone(), ..reply });
    // Its own server may answer within a second.
    let sent = world.now;
    assert_eq!(world.machine.deadline(), sent + 1000);
    world.step();
    assert_eq!(world.machine.lease().unwrap().server, other);
    assert_eq!(world.machine.deadline(), sent + 50_000);
}

/// The server has forgotten the lease.
#[test]
fn no_binding_leads_to_a_request_for_the_same_address() {
    let refuse = || {
        let mut world = World::bound();
        world.next();
        world.answer(vec![ia([0, 0], &[]), status(Code::NoBinding)]);
        assert_eq!(world.texts(), ["Renew", "Request"]);
        assert!(world.names_server() && world.wanted() == Some(ADDRESS) && world.machine.is_bound());
        world
    };
    let mut world = refuse();
    world.give(ADDRESS);
    assert_eq!(world.texts(), ["Save", "Bound"]);
    // Another address is of no use: the container has this one.
    let mut world = refuse();
    world.give(OTHER);
    assert_eq!(world.texts(), [""; 0]);
    // The search after a refusal asks for it too, until the lease expires.
    world.answer(vec![status(Code::NoAddrsAvail)]);
    assert_eq!((world.next().as_str(), world.wanted()), ("Solicit", Some(ADDRESS)));
    world.offer(255, OTHER);
    assert_eq!((world.until_the_end().as_str(), world.now), ("Expire", 1_000_000));
}

/// The link is another one, or the server withdraws the address: it has ten seconds to give it again.
#[test]
fn an_address_that_is_withdrawn_is_asked_for_once_more() {
    let not_on_link = || vec![status(Code::NotOnLink)];
    let zero = || vec![ia([0, 0], &[(OTHER, 9, 9), (ADDRESS, 0, 0)])];
    for options in [not_on_link, zero as fn() -> Vec<DhcpOption>] {
        let mut world = World::bound();
        world.next();
        world.answer(options());
        assert_eq!((world.texts().last().unwrap().as_str(), world.wanted()), ("Solicit", Some(ADDRESS)));
        world.offer(255, ADDRESS);
        world.give(ADDRESS);
        assert_eq!(world.texts(), ["Save", "Request", "Save", "Bound"]);
        let mut world = World::bound();
        world.next();
        world.answer(options());
        assert_eq!((world.until_the_end().as_str(), world.now), ("Expire", 510_000));
    }
}

/// The state of [`World::bound`], taken up again at this time.
pub(super) fn restarted(now: Millis) -> World {
    let lease = World::bound().machine.lease().unwrap().clone();
    let machine = Machine::resume(client(false), TIMING, lease, random(), now);
    World { machine, now, events: Vec::new(), sent: None }
}

#[test]
fn a_restart_confirms_the_address() {
    let mut world = restarted(100_000);
    assert!(world.machine.is_bound() && !world.machine.is_listening());
    assert_eq!((world.next().as_str(), world.wanted()), ("Confirm", Some(ADDRESS)));
    assert!(world.now > 100_000 && world.now <= 101_000 && !world.names_server());
    world.answer(vec![status(Code::Success)]);
    assert_eq!(world.machine.deadline(), 500_000);
    // No server answers: the lease goes on.
    let mut world = restarted(100_000);
    while world.next() == "Confirm" {}
    let times: Vec<_> = world.events.iter().map(|(time, event)| (*time, event.as_str())).collect();
    assert_eq!(times.last(), Some(&(500_000, "Renew")));
    assert!((4..=6).contains(&(times.len() - 1)) && times[times.len() - 2].0 < 111_000, "{times:?}");
    // Another link.
    let mut world = restarted(100_000);
    world.next();
    world.answer(vec![status(Code::NotOnLink)]);
    assert_eq!(world.until_the_end(), "Expire");
    assert!(world.now <= 111_000);
}

#[test]
fn a_restart_after_t1_t2_and_the_expiry() {
    for (now, expected) in [(500_000, "Renew"), (800_000, "Rebind"), (1_000_000, "Solicit")] {
        let mut world = restarted(now);
        let actions = world.machine.wake(now);
        world.note(actions);
        assert_eq!((world.texts(), world.wanted()), (vec![expected.to_owned()], Some(ADDRESS)));
    }
    let mut world = restarted(1_500_000);
    world.next();
    world.offer(255, ADDRESS);
    world.give(ADDRESS);
    assert_eq!(world.machine.deadline(), 2_000_000);
    let mut world = restarted(1_500_000);
    assert_eq!((world.until_the_end().as_str(), world.now), ("Expire", 1_510_000));
}

#[test]
fn release_is_repeated_once_until_a_server_confirms_it() {
    let released = || {
        let mut world = World::bound();
        let actions = world.machine.release(world.now);
        world.note(actions);
        assert_eq!((world.texts(), world.wanted()), (vec!["Release".to_owned()], Some(ADDRESS)));
        assert!(world.names_server() && world.machine.is_releasing() && !world.machine.is_bound());
        assert_eq!(world.machine.release(world.now), []);
        world
    };
    let mut world = released();
    world.answer(vec![status(Code::NoBinding)]);
    assert!(world.machine.has_ended());
    let mut world = released();
    assert_eq!(world.until_the_end(), "Release");
    assert_eq!(world.events.len(), 1);
    assert!(world.now < 4000, "DEL waits: {}", world.now);
    // An offer that is being requested or probed is released too, a search is not.
    let mut world = World::new();
    assert_eq!(world.machine.release(0), []);
    assert!(world.machine.has_ended());
    let mut world = World::new();
    world.offer(255, ADDRESS);
    world.give(ADDRESS);
    let actions = world.machine.release(world.now);
    world.note(actions);
    assert_eq!(world.texts().last().unwrap(), "Release");
}

#[test]
fn an_infinite_lease_is_never_renewed() {
    let mut world = World::new();
    world.offer(255, ADDRESS);
    world.answer(vec![ia([1, 2], &[(ADDRESS, u32::MAX, u32::MAX)])]);
    world.probed(true);
    assert_eq!(world.machine.deadline(), NEVER);
}
