use std::collections::VecDeque;

use super::*;

fn at(mono: Duration) -> Now {
    Now { mono, wall: SystemTime::UNIX_EPOCH + mono }
}

fn target(last: usize) -> Target {
    let number = u32::try_from(last).unwrap();
    Target { address: IpAddr::from(number.to_be_bytes()), size: 1450 }
}

/// Targets of a node with so many peers, in both families.
fn targets(peers: usize) -> BTreeMap<Key, Target> {
    let local = IpFamily::ALL.into_iter().flat_map(|family| [Key::Gateway(family), Key::Forwarded(family)]);
    let peers = (0..peers).flat_map(|peer| {
        let name: Arc<str> = format!("node-{peer}").into();
        IpFamily::ALL.map(|family| Key::Peer(Arc::clone(&name), family))
    });
    local.chain(peers).enumerate().map(|(at, key)| (key, target(at))).collect()
}

/// A node whose targets answer after a millisecond, except those that are down.
struct Run {
    schedule: Schedule,
    now: Duration,
    down: BTreeSet<Key>,
    answers: VecDeque<(Duration, Key)>,
    sent: Vec<(Duration, Key)>,
}

impl Run {
    fn new(peers: usize) -> Run {
        let mut schedule = Schedule::new();
        schedule.set(&targets(peers), at(Duration::ZERO));
        Run {
            schedule,
            now: Duration::ZERO,
            down: BTreeSet::new(),
            answers: VecDeque::new(),
            sent: Vec::new(),
        }
    }

    /// Runs until the time is over or the condition holds.
    fn until(&mut self, end: Duration, mut holds: impl FnMut(&Schedule) -> bool) {
        while self.now < end && !holds(&self.schedule) {
            let answer = self.answers.front().map(|(due, _)| *due);
            self.now = self.schedule.wake().into_iter().chain(answer).min().unwrap().max(self.now).min(end);
            while self.answers.front().is_some_and(|(due, _)| *due <= self.now) {
                let (_, key) = self.answers.pop_front().unwrap();
                self.schedule.answered(&key, at(self.now));
            }
            self.schedule.expire(at(self.now));
            while let Some((key, _)) = self.schedule.next(at(self.now)) {
                if !self.down.contains(&key) {
                    self.answers.push_back((self.now + Duration::from_millis(1), key.clone()));
                }
                self.sent.push((self.now, key));
            }
        }
    }

    /// The most requests in a second.
    fn busiest(&self) -> usize {
        let times: Vec<Duration> = self.sent.iter().map(|(time, _)| *time).collect();
        let within = |(first, time): (usize, &Duration)| {
            times[first..].partition_point(|later| *later < *time + Duration::from_secs(1))
        };
        times.iter().enumerate().map(within).max().unwrap_or(0)
    }

    fn is_lost(schedule: &Schedule, key: &Key) -> bool {
        matches!(schedule.proof(key), Some(Proof::Lost { .. }))
    }
}

fn peer(number: usize, family: IpFamily) -> Key {
    Key::Peer(format!("node-{number}").into(), family)
}

/// The figures of README.md: requests a second (an answer each), the first round, the worst detection of a lost peer, and of a
/// new one.
#[test]
fn rate_and_detection_at_3_500_and_5000_nodes() {
    for (nodes, regular, worst, first) in [(3, 2, 9, 2), (500, 9, 131, 105), (5000, 9, 1260, 1010)] {
        let mut run = Run::new(nodes - 1);
        let all = (nodes - 1) * 2 + 4;
        let seconds = Duration::from_secs;
        run.until(seconds(7200), |schedule| schedule.entries.values().all(|entry| entry.answered.is_some()));
        let round = run.now;
        assert!(round <= seconds(first), "{nodes}: the first round took {round:?}");
        assert!(run.busiest() <= 10, "{nodes}");
        // At rest.
        run.until(round + seconds(1400), |_| false);
        run.sent.clear();
        let begin = run.now;
        run.until(begin + seconds(1400), |_| false);
        let rate = run.sent.len() / 1400;
        assert!(rate < regular && run.busiest() <= 10, "{nodes}: {rate} a second, {all} targets");
        // The peer that was asked last is lost.
        let lost = run.sent.iter().rev().find(|(_, key)| matches!(key, Key::Peer(..))).unwrap().1.clone();
        run.until(run.now + Duration::from_millis(2), |_| false);
        run.down.insert(lost.clone());
        let begin = run.now;
        run.until(begin + seconds(7200), |schedule| Run::is_lost(schedule, &lost));
        let took = run.now - begin;
        assert!(took <= seconds(worst), "{nodes}: lost after {took:?}");
        run.down.clear();
        // A peer with another address is asked soon.
        let mut changed = targets(nodes - 1);
        let key = peer(0, IpFamily::V6);
        changed.insert(key.clone(), target(1 << 20));
        run.schedule.set(&changed, at(run.now));
        assert!(matches!(run.schedule.proof(&key), Some(Proof::Unknown(_))));
        let begin = run.now;
        run.until(begin + seconds(60), |s| matches!(s.proof(&key), Some(Proof::Proved { .. })));
        let new = run.now - begin;
        assert!(new <= seconds(10), "{nodes}: new after {new:?}");
        println!(
            "{nodes} nodes: first round {round:?}, {rate} requests/s, lost after {took:?}, new after {new:?}"
        );
    }
}

#[test]
fn a_loss_takes_three_requests_and_ends_with_an_answer() {
    let mut run = Run::new(1);
    run.until(Duration::from_secs(3), |_| false);
    let key = peer(0, IpFamily::V4);
    run.down.insert(key.clone());
    run.schedule.take_changed();
    run.until(Duration::from_secs(30), |schedule| schedule.misses(&key) == 2);
    assert!(matches!(run.schedule.proof(&key), Some(Proof::Proved { .. })) && !run.schedule.take_changed());
    run.until(Duration::from_secs(30), |schedule| Run::is_lost(schedule, &key));
    let Some(Proof::Lost { since, why }) = run.schedule.proof(&key) else { panic!() };
    assert!(run.schedule.take_changed() && why.contains("no answer from 0.0.0."), "{why}");
    // The first request without an answer, not the last one.
    assert!(at(run.now).wall.duration_since(since).unwrap() >= Duration::from_secs(3));
    let others = targets(1).into_keys().filter(|other| *other != key);
    others.for_each(|other| assert!(!Run::is_lost(&run.schedule, &other), "{other:?}"));
    run.down.clear();
    run.until(run.now + Duration::from_secs(20), |schedule| !Run::is_lost(schedule, &key));
    assert!(matches!(run.schedule.proof(&key), Some(Proof::Proved { .. })));
    // A gone target has no proof.
    run.schedule.set(&targets(0), at(run.now));
    assert_eq!(run.schedule.proof(&key), None);
    assert_eq!(run.schedule.lanes.len() + run.schedule.asked.len(), 4);
}

/// Many lost peers do not hold up the others.
#[test]
fn lost_peers_are_asked_seldom() {
    let mut run = Run::new(500);
    run.until(Duration::from_secs(300), |_| false);
    run.down = (0..250).flat_map(|number| IpFamily::ALL.map(|family| peer(number, family))).collect();
    let down = run.down.clone();
    run.until(Duration::from_secs(3600), |s| down.iter().all(|key| Run::is_lost(s, key)));
    let took = run.now - Duration::from_secs(300);
    assert!(took < Duration::from_secs(400), "{took:?}");
    run.until(run.now + Duration::from_secs(300), |_| false);
    let live = peer(400, IpFamily::V4);
    let asked: Vec<Duration> =
        run.sent.iter().filter(|(_, key)| *key == live).map(|(time, _)| *time).collect();
    let longest = asked.windows(2).map(|pair| pair[1] - pair[0]).max().unwrap();
    assert!(longest < Duration::from_secs(400) && run.busiest() <= 10, "{longest:?}");
}

/// A daemon that starts finds losses before it has asked everybody.
#[test]
fn losses_are_found_in_the_first_round() {
    let mut run = Run::new(2000);
    run.down = (0..2000).flat_map(|number| IpFamily::ALL.map(|family| peer(number, family))).collect();
    let down = run.down.clone();
    run.until(Duration::from_secs(30), |_| false);
    assert!(down.iter().filter(|key| Run::is_lost(&run.schedule, key)).count() > 10);
}
