//! Virtual time: the tests go from deadline to deadline.

use std::net::Ipv6Addr;

mod bound;
mod hostile;

use dhcproto::v6::{Decodable as _, DhcpOption, Message, MessageType as Type, OptionCode, Status as Code};

use super::super::message::parse;
use super::super::message::tests::{ADDRESS, SERVER, answer, client, ia, status};
use super::*;

const OTHER: Ipv6Addr = Ipv6Addr::new(0xfd00, 9, 0, 0, 0, 0, 0, 6);
const TIMING: Timing = Timing { answer: 10_000, pause: 62_000, limit: 208_000 };

/// A machine, a clock, and a log of what the machine did: time and event.
struct World {
    machine: Machine,
    now: Millis,
    events: Vec<(Millis, String)>,
    /// The last message.
    sent: Option<Message>,
}

fn random() -> Box<dyn FnMut() -> u32> {
    let mut number = 0;
    Box::new(move || {
        number += 1000;
        number
    })
}

impl World {
    fn new() -> World {
        World::with(false)
    }

    fn with(rapid_commit: bool) -> World {
        let (machine, actions) = Machine::acquire(client(rapid_commit), TIMING, 90_000, random(), 0);
        let mut world = World { machine, now: 0, events: Vec::new(), sent: None };
        world.note(actions);
        world
    }

    /// A lease for 1000 seconds, with T1 at 500 and T2 at 800.
    fn bound() -> World {
        let mut world = World::new();
        world.offer(255, ADDRESS);
        world.give(ADDRESS);
        world.probed(true);
        assert!(world.machine.is_bound());
        world.events.clear();
        world
    }

    fn note(&mut self, actions: Vec<Action>) {
        for action in actions {
            let event = match action {
                Action::Send { message, .. } => {
                    let message = Message::from_bytes(&message).unwrap();
                    let kind = format!("{:?}", message.msg_type());
                    self.sent = Some(message);
                    kind
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
        self.now = self.now.max(self.machine.deadline());
        assert_ne!(self.now, NEVER);
        let actions = self.machine.wake(self.now);
        self.note(actions);
    }

    /// Goes on until the machine does something.
    fn next(&mut self) -> String {
        let before = self.events.len();
        while self.events.len() == before {
            self.step();
        }
        self.events[before].1.clone()
    }

    fn until_the_end(&mut self) -> String {
        while !self.machine.has_ended() {
            self.step();
        }
        self.events.last().unwrap().1.clone()
    }

    fn reply(&self, kind: Type, options: Vec<DhcpOption>) -> Reply {
        let xid = self.sent.as_ref().unwrap().xid_num();
        parse(&client(false), &answer(kind, xid, options)).unwrap()
    }

    fn receive(&mut self, reply: &Reply) {
        let actions = self.machine.receive(reply, self.now);
        self.note(actions);
    }

    fn answer(&mut self, options: Vec<DhcpOption>) {
        let reply = self.reply(Type::Reply, options);
        self.receive(&reply);
    }

    fn offer(&mut self, preference: u8, address: Ipv6Addr) {
        let options = vec![DhcpOption::Preference(preference), ia([0, 0], &[(address, 1000, 1000)])];
        let reply = self.reply(Type::Advertise, options);
        self.receive(&reply);
    }

    fn give(&mut self, address: Ipv6Addr) {
        self.answer(vec![ia([0, 0], &[(address, 1000, 1000)])]);
    }

    fn probed(&mut self, is_free: bool) {
        let actions = self.machine.probed(is_free, self.now);
        self.note(actions);
    }

    fn texts(&mut self) -> Vec<String> {
        self.events.drain(..).map(|(_, event)| event).collect()
    }

    fn wanted(&self) -> Option<Ipv6Addr> {
        let Some(DhcpOption::IANA(ia)) = self.sent.as_ref().unwrap().opts().get(OptionCode::IANA) else {
            panic!("no IA")
        };
        match ia.opts.get(OptionCode::IAAddr) {
            Some(DhcpOption::IAAddr(address)) => Some(address.addr),
            _ => None,
        }
    }

    fn names_server(&self) -> bool {
        self.sent.as_ref().unwrap().opts().get(OptionCode::ServerId)
            == Some(&DhcpOption::ServerId(SERVER.to_vec()))
    }
}

#[test]
fn four_messages_and_a_probe_make_a_lease() {
    let mut world = World::new();
    assert_eq!((world.texts(), world.wanted()), (vec!["Solicit".to_owned()], None));
    world.offer(255, ADDRESS);
    assert_eq!((world.texts(), world.wanted()), (vec!["Save".into(), "Request".into()], Some(ADDRESS)));
    assert!(world.names_server() && !world.machine.is_bound());
    let duplicate = world.reply(Type::Reply, vec![ia([0, 0], &[(ADDRESS, 9, 9)])]);
    world.give(ADDRESS);
    assert_eq!(world.texts(), ["Save".to_owned(), format!("Probe({ADDRESS})")]);
    assert!(!world.machine.is_bound() && !world.machine.is_listening());
    world.receive(&duplicate);
    world.probed(true);
    assert_eq!(world.texts(), ["Save", "Bound"]);
    world.receive(&duplicate);
    world.probed(false);
    assert!(world.texts().is_empty() && !world.machine.is_listening());
    let lease = world.machine.lease().unwrap();
    assert_eq!((lease.renew_at, lease.rebind_at, lease.expires_at), (500_000, 800_000, 1_000_000));
    assert_eq!(lease.settings.address, "fd00:9::5/128");
}

/// The pauses are 1, 2, 4, .. 32 seconds, give or take a tenth; the first one is never shorter.
#[test]
fn silent_servers_are_asked_until_the_limit() {
    let mut world = World::new();
    assert_eq!(world.until_the_end(), "no more tries for an IPv6 address");
    assert_eq!(world.now, 90_000);
    let times: Vec<Millis> = world.events.iter().map(|(time, _)| *time).collect();
    let mut base = 1000;
    for (index, pair) in times.windows(2).take(6).enumerate() {
        let pause = pair[1] - pair[0];
        let least = if index == 0 { base + 1 } else { base * 2 - base / 10 };
        let most = if index == 0 { base + base / 10 } else { base * 2 + base / 10 };
        assert!((least..=most).contains(&pause), "pause {index}: {pause} of {base}");
        base = pause;
    }
    let texts = world.texts();
    assert!(texts.len() > 6 && texts[..texts.len() - 1].iter().all(|text| text == "Solicit"), "{texts:?}");
}

#[test]
fn the_first_second_is_for_the_best_offer() {
    let mut world = World::new();
    world.offer(1, OTHER);
    world.offer(7, ADDRESS);
    world.offer(7, OTHER);
    world.offer(0, OTHER);
    assert_eq!(world.texts(), ["Solicit"]);
    assert_eq!(world.next(), "Save");
    assert!(world.now > 1000, "{}", world.now);
    assert_eq!((world.texts(), world.wanted()), (vec!["Save".into(), "Request".into()], Some(ADDRESS)));
    // Later the first one counts.
    let mut world = World::new();
    assert_eq!(world.next(), "Solicit");
    world.offer(0, OTHER);
    assert_eq!(world.wanted(), Some(OTHER));
}

#[test]
fn rapid_commit() {
    let reply = |world: &World| {
        world.reply(Type::Reply, vec![DhcpOption::RapidCommit, ia([0, 0], &[(ADDRESS, 9, 9)])])
    };
    let mut world = World::with(true);
    // Without the option a Reply to Solicit does not count.
    world.give(ADDRESS);
    assert_eq!(world.texts(), ["Solicit"]);
    let reply_to_solicit = reply(&world);
    world.receive(&reply_to_solicit);
    world.probed(true);
    assert_eq!(world.texts()[2..], ["Save", "Bound"]);
    // Nor does one that was not asked for.
    let mut world = World::new();
    let reply_to_solicit = reply(&world);
    world.receive(&reply_to_solicit);
    assert_eq!(world.texts(), ["Solicit"]);
}

#[test]
fn a_lost_reply_is_asked_for_again_and_given_back_in_the_end() {
    let mut world = World::new();
    world.offer(255, ADDRESS);
    world.texts();
    assert_eq!([(); 5].map(|()| world.next()), ["Request"; 5]);
    world.until_the_end();
    let texts = world.texts();
    assert_eq!(texts[texts.len() - 2..], ["Release", "no more tries for an IPv6 address"]);
    assert_eq!(world.wanted(), Some(ADDRESS));
}

#[test]
fn a_request_is_sent_ten_times_before_a_new_search() {
    let (machine, actions) = Machine::acquire(client(false), TIMING, 900_000, random(), 0);
    let mut world = World { machine, now: 0, events: Vec::new(), sent: None };
    world.note(actions);
    world.offer(255, ADDRESS);
    world.texts();
    let texts: Vec<_> = (0..10).map(|_| world.next()).collect();
    assert_eq!(texts[..9], ["Request"; 9]);
    assert_eq!(texts[9], "Solicit");
}

#[test]
fn a_refusal_leads_to_a_new_search_after_a_pause() {
    let mut world = World::new();
    let mut pauses = Vec::new();
    for code in [Code::NoAddrsAvail, Code::NotOnLink, Code::UnspecFail] {
        world.offer(255, ADDRESS);
        let refused = world.now;
        world.answer(vec![status(code)]);
        assert!(!world.machine.is_listening(), "the pause needs no socket");
        assert_eq!(world.next(), "Solicit");
        pauses.push(world.now - refused);
    }
    assert_eq!(pauses, [1000, 2000, 4000]);
    let text = world.until_the_end();
    assert!(text.contains("answers Other(1): why"), "{text}");
}

#[test]
fn a_duplicate_is_declined_and_another_address_searched() {
    let mut world = World::new();
    world.offer(255, ADDRESS);
    world.give(ADDRESS);
    world.texts();
    world.probed(false);
    assert_eq!((world.texts(), world.wanted()), (vec!["Decline".to_owned()], Some(ADDRESS)));
    assert!(world.names_server());
    assert_eq!(world.next(), "Decline");
    world.answer(vec![status(Code::Success)]);
    assert_eq!((world.texts().last().unwrap().as_str(), world.wanted()), ("Solicit", None));
    world.offer(255, OTHER);
    world.give(OTHER);
    world.probed(true);
    assert_eq!(world.machine.lease().unwrap().address, OTHER);
    // A server that gives nothing but duplicates, and confirms nothing.
    let mut world = World::new();
    while !world.machine.has_ended() {
        match world.sent.as_ref().unwrap().msg_type() {
            Type::Solicit => world.offer(255, ADDRESS),
            Type::Request => world.give(ADDRESS),
            _ => world.step(),
        }
        world.probed(false);
    }
    let texts = world.texts();
    assert_eq!(texts.iter().filter(|text| *text == "Decline").count() % 4, 0, "{texts:?}");
    assert!(
        texts.last().unwrap().ends_with(&format!("gives {ADDRESS}, which another host has")),
        "{texts:?}"
    );
    assert!(world.now <= 90_000);
}
