//! When the next pass starts. The caller has the clock.

use std::time::{Duration, Instant};

/// A pass waits until no damage has been seen for so long: a reload of a firewall makes several changes.
pub const QUIET: Duration = Duration::from_millis(100);
/// A pass waits no longer than this after the first damage.
pub const LONGEST: Duration = Duration::from_millis(300);
/// How long after an incomplete pass the next one starts; twice as long after each more of them.
pub const AGAIN: Duration = Duration::from_secs(5);
/// So many passes may follow each other without a pause.
const BURST: u32 = 3;
const MINUTE: Duration = Duration::from_secs(60);

/// When passes start.
#[derive(Debug)]
pub struct Schedule {
    period: Duration,
    /// The shares of a minute that a pass uses up, and that may be used up in advance.
    share: Duration,
    advance: Duration,
    /// When the shares of all passes so far are over.
    used_until: Instant,
    /// The first and the last damage that no pass has looked at.
    damage: Option<(Instant, Instant)>,
    /// When a pass starts without damage.
    next: Instant,
    incomplete: u32,
}

impl Schedule {
    /// A pass at once, one `period` after each, and at most `most` in a minute.
    pub fn new(period: Duration, most: u32, now: Instant) -> Self {
        let burst = BURST.min(most);
        let share = MINUTE / (most - burst + 1).max(1);
        Schedule {
            period,
            share,
            advance: share * burst.saturating_sub(1),
            used_until: now,
            damage: None,
            next: now,
            incomplete: 0,
        }
    }

    /// Notes damage.
    pub fn damaged(&mut self, now: Instant) {
        self.damage = Some((self.damage.map_or(now, |(first, _)| first), now));
    }

    /// When the next pass starts.
    pub fn next(&self) -> Instant {
        let wanted = self.damage.map(|(first, last)| (last + QUIET).min(first + LONGEST));
        let wanted = wanted.map_or(self.next, |damage| damage.min(self.next));
        self.used_until.checked_sub(self.advance).map_or(wanted, |allowed| wanted.max(allowed))
    }

    /// A pass starts.
    pub fn start(&mut self, now: Instant) {
        self.damage = None;
        self.used_until = self.used_until.max(now) + self.share;
    }

    /// The pass has ended. It is complete if nothing is left to repair.
    pub fn end(&mut self, is_complete: bool, now: Instant) {
        self.incomplete = if is_complete { 0 } else { self.incomplete + 1 };
        let doubled = 1_u32.checked_shl(self.incomplete.saturating_sub(1)).unwrap_or(u32::MAX);
        let wait = if is_complete { self.period } else { AGAIN.saturating_mul(doubled).min(self.period) };
        self.next = now + wait;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PERIOD: Duration = Duration::from_secs(300);

    /// When passes start that take no time.
    fn run(schedule: &mut Schedule) -> Instant {
        let at = schedule.next();
        schedule.start(at);
        schedule.end(true, at);
        at
    }

    #[test]
    fn the_first_pass_and_the_periodic_ones() {
        let now = Instant::now();
        let mut schedule = Schedule::new(PERIOD, 10, now);
        assert_eq!(
            [run(&mut schedule), run(&mut schedule), run(&mut schedule)],
            [now, now + PERIOD, now + 2 * PERIOD]
        );
    }

    #[test]
    fn damage_starts_a_pass_when_it_is_over_or_after_a_while() {
        let now = Instant::now();
        let mut schedule = Schedule::new(PERIOD, 10, now);
        run(&mut schedule);
        let hit = now + Duration::from_secs(90);
        schedule.damaged(hit);
        assert_eq!(schedule.next(), hit + QUIET);
        for step in 1..10 {
            schedule.damaged(hit + step * QUIET / 2);
        }
        assert_eq!(run(&mut schedule), hit + LONGEST);
        assert_eq!(schedule.next(), hit + LONGEST + PERIOD);
        // Damage during a pass starts another one.
        schedule.start(hit + PERIOD);
        schedule.damaged(hit + PERIOD);
        schedule.end(true, hit + PERIOD + Duration::from_secs(2));
        assert_eq!(schedule.next(), hit + PERIOD + QUIET);
    }

    /// Damage without end.
    #[test]
    fn so_many_passes_in_any_minute_and_no_fewer() {
        for most in [1, 2, 3, 4, 10, 60] {
            let start = Instant::now();
            let mut schedule = Schedule::new(PERIOD, most, start);
            let mut passes = Vec::new();
            let mut now = start;
            while now < start + 5 * MINUTE {
                schedule.damaged(now);
                let at = schedule.next();
                if at <= now {
                    passes.push(now);
                    schedule.start(now);
                    schedule.end(true, now);
                }
                now += Duration::from_millis(10);
            }
            let in_minute =
                |first: &Instant| passes.iter().filter(|at| **at >= *first && **at < *first + MINUTE).count();
            let worst = passes.iter().map(in_minute).max();
            assert!(
                worst.is_some_and(|worst| worst <= most as usize && worst + 1 >= most as usize),
                "{most}: {worst:?}"
            );
            assert!(passes.len() as u32 >= 4 * most.saturating_sub(BURST).max(1), "{most}: {}", passes.len());
            // A pause brings the advance back.
            let mut now = start + 2 * PERIOD;
            for _ in 0..most.min(BURST) {
                schedule.damaged(now);
                now += QUIET;
                assert!(schedule.next() <= now, "{most}");
                schedule.start(now);
            }
        }
    }

    #[test]
    fn an_incomplete_pass_is_repeated_less_and_less_often() {
        let mut now = Instant::now();
        let mut schedule = Schedule::new(PERIOD, 60, now);
        let mut end = |is_complete| {
            schedule.start(now);
            schedule.end(is_complete, now);
            let wait = schedule.next() - now;
            now = schedule.next();
            wait.as_secs()
        };
        let waits: Vec<_> = (0..8).map(|_| end(false)).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 300, 300]);
        assert_eq!((end(true), end(false)), (300, 5));
    }
}
