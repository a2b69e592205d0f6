//! Says the word: in the log, in events, in the status and in the figures.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant, SystemTime};

use ferrule_kernel::ip::IpFamily;
use humantime::parse_rfc3339;
use tokio::sync::mpsc;

use crate::api::{Event, Report};
use crate::proof::{Proof, Proofs};
use crate::serve::Figures;
use crate::status::{self, Status};
use crate::word::{Book, Code, Facts, Standing, Told, Verdict, look};

/// A daemon that starts again believes the proofs of the former one for so long: a rolling update makes no node unready.
const FRESH: Duration = Duration::from_secs(120);
/// How often a node's standing is looked at that time alone may change.
const AGAIN: Duration = Duration::from_secs(1);
/// How old the ages in the status file may be: a fixed part and one for each node.
const AGES: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(10)];

pub(super) struct Voice {
    book: Book,
    told: Told,
    verdict: Verdict,
    /// When the verdict was made.
    at: Instant,
    /// When the ages were written.
    written: Option<Instant>,
    /// The last answers that the former daemon got.
    former: BTreeMap<IpFamily, SystemTime>,
    reports: mpsc::Sender<Report>,
    /// The events that the queue had no room for.
    waiting: Vec<Event>,
}

impl Voice {
    /// `former`: the status of the former daemon of this node.
    pub(super) fn new(reports: mpsc::Sender<Report>, former: &Status) -> Voice {
        let rows = former.health.iter().flat_map(|health| &health.local);
        let proved = |row: &status::Row| {
            let family = IpFamily::ALL.into_iter().find(|family| family.to_string() == row.family)?;
            Some((family, parse_rfc3339(row.since.as_deref().filter(|_| row.proof == "proved")?).ok()?))
        };
        Voice {
            book: Book::default(),
            told: Told::default(),
            verdict: Verdict::default(),
            at: Instant::now(),
            written: None,
            former: rows.filter_map(proved).collect(),
            reports,
            waiting: Vec::new(),
        }
    }

    /// When the word is due again although nothing has happened.
    pub(super) fn due(&self) -> Option<Instant> {
        self.verdict.is_unsettled.then(|| self.at + AGAIN)
    }

    /// The proofs, with those of the former daemon in place of what was not asked yet.
    pub(super) fn with_former(&self, proofs: &Proofs, now: SystemTime) -> Proofs {
        let mut proofs = proofs.clone();
        for (family, at) in &self.former {
            if now.duration_since(*at).is_ok_and(|age| age < FRESH) {
                proofs.local.entry(*family).or_insert(Proof::Proved { at: *at });
            }
        }
        proofs
    }

    /// An event that is sent with the next word.
    pub(super) fn add(&mut self, event: Event) {
        self.waiting.push(event);
    }

    /// Judges, logs what is new and sends the events. Returns whether the status file is to be written. `has_worked`: whether more
    /// than the proofs may have changed.
    pub(super) fn say(
        &mut self,
        node: &str,
        facts: &Facts<'_>,
        status: &mut Status,
        has_worked: bool,
    ) -> bool {
        let verdict = look(facts, &mut self.book);
        let has_changed = verdict.reasons != self.verdict.reasons || status.word.is_empty();
        self.log(&verdict);
        self.waiting.extend(self.told.news(node, &verdict, facts.now));
        self.waiting =
            std::mem::take(&mut self.waiting).into_iter().filter_map(|event| self.send(event)).collect();
        status.word = verdict.word.to_string();
        status.reasons = verdict.reasons.iter().map(reason).collect();
        status.health = Some(status::Health::from(facts.proofs));
        for node in &mut status.nodes {
            node.standing =
                verdict.peers.get(&node.name).map_or_else(String::new, |peer| peer.key().to_owned());
        }
        (self.verdict, self.at) = (verdict, Instant::now());
        let [fixed, each] = AGES;
        let gap = fixed + each * u32::try_from(status.nodes.len()).unwrap_or(u32::MAX);
        let is_due = has_worked || has_changed || self.written.is_none_or(|written| written.elapsed() >= gap);
        if is_due {
            self.written = Some(self.at);
        }
        is_due
    }

    /// Returns the event if there is no room for it.
    fn send(&self, event: Event) -> Option<Event> {
        match self.reports.try_send(Report::Event(event)) {
            Err(mpsc::error::TrySendError::Full(Report::Event(event))) => Some(event),
            Ok(()) | Err(_) => None,
        }
    }

    /// Parts and refused podCIDRs have lines of their own.
    fn log(&self, new: &Verdict) {
        let has_lines = |code: Code| {
            matches!(
                code,
                Code::Local | Code::LocalFamily | Code::First | Code::Peers | Code::Peer | Code::Waits
            )
        };
        let keys = |verdict: &Verdict| -> BTreeSet<(Code, String)> {
            verdict.reasons.iter().map(|reason| (reason.code, reason.about.clone())).collect()
        };
        let (old, now) = (keys(&self.verdict), keys(new));
        for reason in &new.reasons {
            if has_lines(reason.code) && !old.contains(&(reason.code, reason.about.clone())) {
                log!("{}: {}", reason.code.key(), reason.text);
            }
        }
        for (code, about) in old.difference(&now).filter(|(code, _)| has_lines(*code)) {
            log!(
                "{}: {}works again",
                code.key(),
                if about.is_empty() { String::new() } else { format!("{about} ") }
            );
        }
        if new.word != self.verdict.word {
            log!("this node is {}", new.word);
        }
    }

    /// The figures of the word.
    pub(super) fn figures(&self, figures: &mut Figures, proofs: &Proofs) {
        let Verdict { word, reasons, counts, peers, .. } = &self.verdict;
        figures.word = *word;
        figures.reasons =
            reasons.iter().map(|reason| format!("{}: {}", reason.code.key(), reason.text)).collect();
        let count = |code: Code| counts.get(&code).copied().unwrap_or(0);
        figures.counts = Code::ALL.into_iter().map(|code| (code.key(), count(code))).collect();
        let standing = |key| peers.values().filter(|peer| peer.key() == key).count();
        figures.peers = Standing::KEYS.into_iter().map(|key| (key, standing(key))).collect();
        let all = proofs.local.values().chain(proofs.peers.values().flat_map(BTreeMap::values));
        figures.oldest = all
            .filter_map(|proof| match proof {
                Proof::Proved { at } => Some(*at),
                Proof::Unknown(_) | Proof::Lost { .. } => None,
            })
            .min();
    }
}

fn reason(reason: &crate::word::Reason) -> status::Reason {
    status::Reason {
        code: reason.code.key().to_owned(),
        about: reason.about.clone(),
        text: reason.text.clone(),
        remedy: reason.code.remedy().to_owned(),
        word: reason.code.word().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fresh_proofs_of_the_former_daemon_count_until_there_are_others() {
        let (reports, _receiver) = mpsc::channel(1);
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let both = IpFamily::ALL.map(|family| (family, Proof::Proved { at })).into();
        let health = status::Health::from(&Proofs { local: both, ..Proofs::none() });
        let former = Status { health: Some(health), ..Status::default() };
        let voice = Voice::new(reports, &former);
        let families = |proofs: &Proofs, age: u64| -> Vec<IpFamily> {
            voice.with_former(proofs, at + Duration::from_secs(age)).local.into_keys().collect()
        };
        assert_eq!(families(&Proofs::none(), 119), IpFamily::ALL);
        assert_eq!(families(&Proofs::none(), 120), []);
        let lost = Proof::Lost { since: at, why: String::new() };
        let new = Proofs { local: [(IpFamily::V4, lost.clone())].into(), ..Proofs::none() };
        assert_eq!(voice.with_former(&new, at).local[&IpFamily::V4], lost);
        let before = Proofs::none();
        assert_eq!(voice.with_former(&before, at - Duration::from_secs(1)), before, "a clock that went back");
    }
}
