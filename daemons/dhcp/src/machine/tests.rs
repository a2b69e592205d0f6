//! Virtual time: the tests go from deadline to deadline.

use std::net::Ipv4Addr;

mod hostile;

use super::*;
use crate::message::{self, tests::client};
use dhcproto::v4::{Decodable as _, DhcpOption, Message, MessageType, OptionCode};

const ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 5);
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 0, 0, 1);
const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
const TIMING: Timing = Timing { answer: 10_000, pause: 62_000, limit: 208_000 };

/// A machine, a clock, and a log of what the machine did: time and event.
struct World {
    machine: Machine,
    now: Millis,
    events: Vec<(Millis, String)>,
    /// The last message.
    sent: Option<Message>,
    /// The lease time that the server gives, in seconds.
    lease_time: u32,
}

impl World {
    fn new() -> World {
        let mut number = 0;
        let random = Box::new(move || {
            number += 1000;
            number
        });
        let (machine, actions) = Machine::acquire(client(&[]), TIMING, 90_000, random, 0);
        let mut world = World { machine, now: 0, events: Vec::new(), sent: None, lease_time: 600 };
        world.note(actions);
        world
    }

    fn bound(lease_time: u32) -> World {
        let mut world = World { lease_time, ..World::new() };
        world.answer(MessageType::Offer);
        world.answer(MessageType::Ack);
        assert!(world.machine.is_bound());
        world.events.clear();
        world
    }

    fn note(&mut self, actions: Vec<Action>) {
        for action in actions {
            let event = match action {
                Action::Send { way, message } => {
                    let message = Message::from_bytes(&message).unwrap();
                    let kind = message.opts().msg_type().unwrap();
                    self.sent = Some(message);
                    let way = match way {
                        Way::Broadcast => "broadcast".to_owned(),
                        Way::Unicast(peer) => format!("to {}", peer.server),
                        Way::Direct(peer) => format!("directly to {}", peer.server),
                        Way::Multicast => panic!("DHCPv4 by multicast"),
                    };
                    format!("{kind:?} {way}")
                }
                Action::Log(_) => continue,
                Action::Fail(why) => why,
                other => format!("{other:?}"),
            };
            self.events.push((self.now, event));
        }
    }

    /// Goes to the next deadline.
    fn step(&mut self) {
        self.now = self.machine.deadline();
        assert_ne!(self.now, NEVER);
        let actions = self.machine.wake(self.now);
        self.note(actions);
    }

    fn reply(&self, verdict: MessageType) -> Reply {
        let sent = self.sent.as_ref().unwrap();
        let time = self.lease_time;
        let bytes = message::tests::answer(
            verdict,
            sent.xid(),
            vec![
                DhcpOption::ServerIdentifier(SERVER),
                DhcpOption::SubnetMask([255, 255, 255, 0].into()),
                DhcpOption::AddressLeaseTime(time),
            ],
        );
        message::parse(&client(&[]), &bytes).unwrap()
    }

    fn answer(&mut self, verdict: MessageType) {
        let reply = self.reply(verdict);
        self.receive(&reply);
    }

    fn receive(&mut self, reply: &Reply) {
        let actions = self.machine.receive(reply, MAC, self.now);
        self.note(actions);
    }

    fn texts(&mut self) -> Vec<String> {
        self.events.drain(..).map(|(_, event)| event).collect()
    }
}

#[test]
fn four_messages_make_a_lease() {
    let mut world = World::new();
    assert_eq!(world.texts(), ["Discover broadcast"]);
    assert!(world.machine.is_listening());
    world.answer(MessageType::Offer);
    assert_eq!(world.texts(), ["Save", "Request broadcast"]);
    assert!(!world.machine.is_bound());
    let request = world.sent.as_ref().unwrap().opts();
    assert_eq!(request.get(OptionCode::ServerIdentifier), Some(&DhcpOption::ServerIdentifier(SERVER)));
    // A request has the `secs` of the message that the server has answered.
    let mut late = World::new();
    (0..3).for_each(|_| late.step());
    let secs = late.sent.as_ref().unwrap().secs();
    late.now += 1500;
    late.answer(MessageType::Offer);
    assert_eq!((late.sent.as_ref().unwrap().secs(), secs), (3, 3));
    // Duplicates and answers to others change nothing.
    let duplicate = world.reply(MessageType::Offer);
    world.answer(MessageType::Ack);
    assert_eq!(world.texts(), ["Save", "Bound"]);
    world.receive(&duplicate);
    world.answer(MessageType::Ack);
    world.answer(MessageType::Nak);
    assert!(world.texts().is_empty() && !world.machine.is_listening());
    assert_eq!(world.machine.lease().unwrap().settings.address, "10.0.0.5/24");
}

/// The pauses are 0.5, 1, 2, 4, 8 and then 10 seconds, give or take a tenth.
#[test]
fn a_silent_server_is_asked_until_the_limit() {
    let mut world = World::new();
    while !world.machine.has_ended() {
        world.step();
    }
    let times: Vec<Millis> = world.events.iter().map(|(time, _)| *time).collect();
    let texts = world.texts();
    assert_eq!((texts.last().unwrap().as_str(), *times.last().unwrap()), ("no more tries", 90_000));
    assert!(texts[..texts.len() - 1].iter().all(|text| text == "Discover broadcast"), "{texts:?}");
    for (index, wait) in [500, 1000, 2000, 4000, 8000, 10_000, 10_000].into_iter().enumerate() {
        let pause = times[index + 1] - times[index];
        assert!((wait * 9 / 10..=wait * 11 / 10).contains(&pause), "pause {index}: {pause}");
    }
}

#[test]
fn a_lost_ack_is_asked_for_again_and_given_back_in_the_end() {
    let mut world = World::new();
    world.answer(MessageType::Offer);
    world.texts();
    for _ in 0..5 {
        world.step();
    }
    assert_eq!(world.texts(), [&["Request broadcast"; 4][..], &["Discover broadcast"]].concat());
    while !world.machine.has_ended() {
        world.step();
    }
    let texts = world.texts();
    assert_eq!(texts[texts.len() - 2..], ["Release directly to 10.0.0.1", "no more tries"]);
}

#[test]
fn a_refusal_leads_to_a_new_search_after_a_pause() {
    let mut world = World::new();
    let mut pauses = Vec::new();
    for _ in 0..3 {
        world.answer(MessageType::Offer);
        // Only the server that made the offer counts.
        let stranger = Reply { server: Some(ADDRESS), ..world.reply(MessageType::Nak) };
        world.receive(&stranger);
        assert!(world.machine.is_listening());
        let refused = world.now;
        world.answer(MessageType::Nak);
        assert!(!world.machine.is_listening(), "the pause needs no socket");
        world.step();
        pauses.push(world.now - refused);
    }
    assert_eq!(pauses, [1000, 2000, 4000]);
    world.answer(MessageType::Offer);
    world.answer(MessageType::Ack);
    assert!(world.machine.is_bound());
}

#[test]
fn an_ack_without_subnet_mask_is_released() {
    let mut world = World::new();
    world.answer(MessageType::Offer);
    world.texts();
    let reply = Reply { prefix: None, ..world.reply(MessageType::Ack) };
    world.receive(&reply);
    assert_eq!(
        world.texts(),
        ["Release directly to 10.0.0.1", "DHCP option Subnet Mask not found in DHCPACK"]
    );
    assert!(world.machine.has_ended() && !world.machine.is_bound());
}

/// An hour with a lease of ten minutes: every five minutes one unicast request.
#[test]
fn an_hour_of_renewals() {
    let mut world = World::bound(600);
    while world.now < 3_600_000 {
        assert!(!world.machine.is_listening(), "no socket between exchanges");
        world.step();
        let request = world.sent.as_ref().unwrap();
        assert_eq!((request.ciaddr(), request.opts().get(OptionCode::RequestedIpAddress)), (ADDRESS, None));
        world.answer(MessageType::Ack);
    }
    let events: Vec<(Millis, String)> = std::mem::take(&mut world.events);
    let expected: Vec<(Millis, String)> = (1..=12)
        .flat_map(|n| ["Request to 10.0.0.1", "Save", "Bound"].map(|event| (n * 300_000, event.to_owned())))
        .collect();
    assert_eq!(events, expected);
}

/// The machine was busy: the daemon was kept from sending for three seconds.
#[test]
fn the_wait_for_an_answer_begins_when_the_message_has_left() {
    let mut world = World::new();
    world.machine.sent(3000);
    assert!((3450..=3550).contains(&world.machine.deadline()), "{}", world.machine.deadline());
    let mut world = World::bound(600);
    world.step();
    world.machine.sent(world.now + 3000);
    assert_eq!(world.machine.deadline(), world.now + 13_000);
    // The lease began with the request nevertheless.
    let sent = world.now;
    world.now += 4000;
    world.answer(MessageType::Ack);
    assert_eq!(world.machine.lease().unwrap().expires_at, sent + 600_000);
}

/// The server loses its memory of the clock, answers only every third message, and late.
#[test]
fn an_hour_of_renewals_with_losses() {
    let mut world = World::bound(600);
    let mut messages = 0;
    while world.now < 3_600_000 {
        let before = world.events.len();
        world.step();
        if world.events.len() > before {
            messages += 1;
            if messages % 3 == 0 {
                world.now += 9_000;
                world.answer(MessageType::Ack);
            }
        }
        assert!(world.machine.is_bound(), "{:?}", world.events);
        assert!(world.now < world.machine.lease().unwrap().expires_at);
    }
    // 300 s, then half of what is left until T2 at 525 s: 412.5 s and 472.5 s.
    let sent: Vec<_> = world
        .events
        .iter()
        .filter(|(_, event)| event.starts_with("Request"))
        .map(|(time, _)| *time)
        .collect();
    assert_eq!(sent[..3], [300_000, 412_500, 472_500]);
}

#[test]
fn renewing_then_rebinding_then_the_end() {
    let mut world = World::bound(600);
    while !world.machine.has_ended() {
        world.step();
    }
    let events: Vec<_> = world.events.iter().map(|(time, event)| (time / 1000, event.as_str())).collect();
    assert_eq!(
        events,
        [
            (300, "Request to 10.0.0.1"),
            (412, "Request to 10.0.0.1"),
            (472, "Request to 10.0.0.1"),
            (525, "Request broadcast"),
            (585, "Request broadcast"),
            (600, "Expire"),
        ]
    );
    assert!(!world.machine.is_bound());
    assert_eq!(world.machine.release(), []);
}

#[test]
fn a_refused_renewal_keeps_only_the_same_address() {
    let refuse = || {
        let mut world = World::bound(600);
        world.step();
        world.texts();
        world.answer(MessageType::Nak);
        let wanted = world.sent.as_ref().unwrap().opts().get(OptionCode::RequestedIpAddress);
        assert_eq!(wanted, Some(&DhcpOption::RequestedIpAddress(ADDRESS)));
        assert_eq!(world.texts(), ["Discover broadcast"]);
        world
    };
    let mut world = refuse();
    world.answer(MessageType::Offer);
    world.answer(MessageType::Ack);
    assert_eq!(world.texts(), ["Save", "Request broadcast", "Save", "Bound"]);
    // Another address is of no use: the container has this one.
    let mut world = refuse();
    let other = Reply { address: SERVER, ..world.reply(MessageType::Offer) };
    world.receive(&other);
    while !world.machine.has_ended() {
        world.step();
    }
    assert_eq!((world.texts().last().unwrap().as_str(), world.now), ("Expire", 310_000));
}

#[test]
fn an_ack_with_another_address_is_ignored() {
    let mut world = World::bound(600);
    world.step();
    let other = Reply { address: SERVER, ..world.reply(MessageType::Ack) };
    world.receive(&other);
    assert_eq!(world.machine.lease().unwrap().address, ADDRESS);
    assert!(world.machine.is_listening());
}

/// The daemon did not run, or the machine slept, until after the expiry.
#[test]
fn a_lease_that_expired_meanwhile_is_asked_for_again() {
    let sleep = || {
        let mut world = World::bound(600);
        world.now = 700_000;
        let actions = world.machine.wake(world.now);
        world.note(actions);
        assert_eq!(world.texts(), ["Request broadcast"]);
        let request = world.sent.as_ref().unwrap().opts();
        assert_eq!(request.get(OptionCode::ServerIdentifier), None);
        world
    };
    let mut world = sleep();
    world.answer(MessageType::Ack);
    assert_eq!((world.texts(), world.machine.deadline()), (vec!["Save".into(), "Bound".into()], 1_000_000));
    // A server that has lost its memory refuses, and has time to give the same address again.
    let mut world = sleep();
    world.answer(MessageType::Nak);
    assert!(world.machine.deadline() >= world.now + 400);
    world.answer(MessageType::Offer);
    world.answer(MessageType::Ack);
    assert!(world.machine.is_bound());
    let mut world = sleep();
    while !world.machine.has_ended() {
        world.step();
    }
    assert_eq!((world.texts().last().unwrap().as_str(), world.now), ("Expire", 710_000));
}

#[test]
fn an_infinite_lease_is_never_renewed() {
    let world = World::bound(u32::MAX);
    assert_eq!(world.machine.deadline(), NEVER);
}

#[test]
fn short_leases_are_renewed_without_haste() {
    let mut world = World::bound(1);
    while !world.machine.has_ended() {
        world.step();
    }
    let requests = world.events.iter().filter(|(_, event)| event.starts_with("Request")).count();
    assert!((2..20).contains(&requests), "{:?}", world.events);
}

#[test]
fn release_is_sent_once() {
    let mut world = World::bound(600);
    let actions = world.machine.release();
    world.note(actions);
    assert_eq!(world.texts(), ["Release directly to 10.0.0.1"]);
    assert_eq!(world.machine.release(), []);
    // An offer that is being requested is released too, a search is not.
    let mut world = World::new();
    assert!(world.machine.release().is_empty());
    let mut world = World::new();
    world.answer(MessageType::Offer);
    world.texts();
    let actions = world.machine.release();
    world.note(actions);
    assert_eq!(world.texts(), ["Release directly to 10.0.0.1"]);
}
