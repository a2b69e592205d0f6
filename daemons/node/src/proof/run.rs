//! Keeps the endpoint, and asks.

use std::collections::BTreeMap;
use std::future::pending;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use ferrule_daemon::Pauses;
use ferrule_kernel::ip::IpFamily;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until};

use super::attach::{call, request};
use super::denied::{self, Rounds};
use super::echo::Echo;
use super::endpoint::{Endpoint, NETNS, Outcome, Place, Wanted, has_room, is_kept, used};
use super::judge::{Missing, proofs, targets};
use super::schedule::{Key, Now, Schedule};
use super::{Input, Proofs};
use crate::arguments::{Options, Switch};

/// How often the pods' addresses are counted.
const LOOK: Duration = Duration::from_secs(10);
/// The least time between two looks at an endpoint whose gateway does not answer.
const CALM: Duration = Duration::from_secs(30);
/// So many requests to this node without an answer make it look at the endpoint: before they are a loss.
const DOUBT: u32 = 2;
/// The time until a failed attachment is tried again.
const RETRY: Pauses = Pauses::millis(5000, 60_000);
/// The least time between two changes of the output, and the most time between two ages: a fixed part and one for each peer.
const CHANGES: [Duration; 2] = [Duration::from_millis(200), Duration::from_micros(400)];
const AGES: [Duration; 2] = [Duration::from_secs(5), Duration::from_millis(10)];
/// Nothing is to be done.
const LONG: Duration = Duration::from_secs(3600);

/// Runs until the daemon drops the input.
pub async fn run(options: Options, mut input: watch::Receiver<Input>, output: watch::Sender<Proofs>) {
    let mut keeper = Keeper::new(options, output);
    let (mut echo, mut attaching) = (None::<Echo<Key>>, None::<JoinHandle<Outcome>>);
    let mut asking = None::<JoinHandle<Option<denied::Answers>>>;
    loop {
        if attaching.is_none()
            && let Some(wanted) = keeper.take_due()
        {
            attaching = Some(tokio::spawn(call(request(&keeper.options, wanted))));
        }
        if asking.is_none()
            && let Some((path, places)) = keeper.take_round()
        {
            asking = Some(tokio::spawn(async move { denied::round(&path, &places).await.ok() }));
        }
        let wake = keeper.wake(attaching.is_some(), asking.is_some());
        let attached = async {
            match &mut attaching {
                Some(handle) => handle.await.unwrap_or_else(|error| Outcome::Failed(error.to_string())),
                None => pending().await,
            }
        };
        let asked = async {
            match &mut asking {
                Some(handle) => handle.await.ok().flatten(),
                None => pending().await,
            }
        };
        let answer = async {
            match &mut echo {
                Some(echo) => echo.answer().await,
                None => pending().await,
            }
        };
        tokio::select! {
            changed = input.changed() => {
                if changed.is_err() {
                    return;
                }
                keeper.take(input.borrow_and_update().clone());
            }
            outcome = attached => {
                attaching = None;
                // The old sockets hold a namespace that may be gone.
                asking = None;
                echo = keeper.attached(outcome);
            }
            answers = asked => {
                asking = None;
                keeper.asked(answers.as_ref());
            }
            key = answer => keeper.schedule.answered(&key, keeper.now()),
            () = sleep_until(wake) => {}
        }
        if let Some(echo) = &mut echo {
            keeper.ask(echo).await;
        }
        keeper.look(echo.as_ref());
        keeper.publish();
    }
}

/// What [`run`] knows.
struct Keeper {
    options: Options,
    output: watch::Sender<Proofs>,
    start: Instant,
    input: Input,
    schedule: Schedule,
    rounds: Rounds,
    /// The endpoint, or why there is none.
    endpoint: Result<Endpoint, Missing>,
    /// Since when the plugins refuse it.
    refused: Option<SystemTime>,
    /// The one that the process makes or has made.
    wanted: Option<Wanted>,
    /// When the process is started next.
    due: Option<Instant>,
    failures: u32,
    /// Whether pods need the addresses.
    is_denied: bool,
    looked: Instant,
    doubted: Option<Instant>,
    published: Instant,
    has_changed: bool,
}

impl Keeper {
    fn new(options: Options, output: watch::Sender<Proofs>) -> Keeper {
        let now = Instant::now();
        let is_off = options.health == Switch::Off;
        let missing = if is_off { Missing::Unknown("--health is off".to_owned()) } else { Missing::Yet };
        Keeper {
            options,
            output,
            start: now,
            input: Input::default(),
            schedule: Schedule::new(),
            rounds: Rounds::default(),
            endpoint: Err(missing),
            refused: None,
            wanted: None,
            // One of a former daemon goes. Otherwise the first plan decides.
            due: is_off.then_some(now),
            failures: 0,
            is_denied: false,
            looked: now,
            doubted: None,
            published: now,
            has_changed: true,
        }
    }

    fn now(&self) -> Now {
        Now { mono: self.start.elapsed(), wall: SystemTime::now() }
    }

    fn is_off(&self) -> bool {
        self.options.health == Switch::Off
    }

    fn take(&mut self, input: Input) {
        let has_other_table = self.input.probed != input.probed;
        self.input = input;
        if has_other_table {
            self.rounds.suspect();
        }
        if self.input.wanted != self.wanted && !self.is_off() {
            (self.due, self.failures) = (Some(Instant::now()), 0);
        }
        self.retarget();
    }

    fn retarget(&mut self) {
        let targets = self
            .endpoint
            .as_ref()
            .map_or_else(|_| BTreeMap::new(), |endpoint| targets(endpoint, &self.input));
        self.schedule.set(&targets, self.now());
        self.has_changed = true;
    }

    /// When the next round is due; `None` while the table lacks the endpoint's addresses.
    fn round_due(&self) -> Option<Instant> {
        let entries = self.endpoint.as_ref().ok()?.entries();
        let is_in_table = !entries.is_empty() && self.input.probed.as_ref() == Some(&entries);
        self.rounds.due().filter(|_| is_in_table).map(|mono| self.start + mono)
    }

    /// The round that is due: the namespace and the addresses.
    fn take_round(&mut self) -> Option<(PathBuf, Vec<Place>)> {
        self.round_due().filter(|due| *due <= Instant::now())?;
        self.rounds.begin();
        let places = self.endpoint.as_ref().ok()?.places.clone();
        Some((self.options.seen(Path::new(NETNS[0])), places))
    }

    fn asked(&mut self, answers: Option<&denied::Answers>) {
        match answers {
            Some(answers) => self.rounds.take(answers, self.now()),
            None => self.rounds.failed(self.now()),
        }
        self.has_changed = true;
    }

    /// The endpoint that the process should make now.
    fn take_due(&mut self) -> Option<Option<Wanted>> {
        self.due.take_if(|due| *due <= Instant::now())?;
        self.wanted = self.input.wanted.clone().filter(|_| !self.is_off());
        Some(self.wanted.clone())
    }

    fn attached(&mut self, outcome: Outcome) -> Option<Echo<Key>> {
        let former = self.endpoint.clone();
        let path = self.options.seen(Path::new(NETNS[0]));
        let is_refused = matches!(outcome, Outcome::Refused(_));
        self.refused = self.refused.or_else(|| Some(SystemTime::now())).filter(|_| is_refused);
        let made = match outcome {
            Outcome::Made(endpoint) => {
                Echo::open(&path).map(|echo| (endpoint, echo)).map_err(|error| (format!("{error:#}"), true))
            }
            Outcome::Failed(why) | Outcome::Refused(why) => Err((why, true)),
            Outcome::Denied(why) => Err((why, false)),
            Outcome::Removed(_) if self.is_off() => Err(("--health is off".to_owned(), false)),
            Outcome::Removed(_) => Err(("no conflist is in place".to_owned(), false)),
        };
        self.is_denied = matches!(made, Err((_, false))) && self.wanted.is_some();
        let (endpoint, echo) = match made {
            Ok((endpoint, echo)) => {
                self.failures = 0;
                (Ok(endpoint), Some(echo))
            }
            Err((why, is_failure)) => {
                if is_failure {
                    self.failures = self.failures.saturating_add(1);
                    self.due = Some(Instant::now() + RETRY.after(self.failures));
                }
                // A plugin may be replaced just now: the second attempt counts.
                let missing = match self.refused {
                    Some(_) if self.failures < 2 => self.endpoint.clone().err().unwrap_or(Missing::Yet),
                    Some(since) => Missing::Refused(since, why),
                    None => Missing::Unknown(why),
                };
                (Err(missing), None)
            }
        };
        self.endpoint = endpoint;
        if self.endpoint != former {
            self.rounds.forget();
        }
        self.rounds.suspect();
        if self.endpoint != former && !self.is_off() {
            match &self.endpoint {
                Ok(endpoint) => log!("health endpoint: {endpoint}"),
                Err(missing) => log!("no health endpoint: {}", missing.why()),
            }
        }
        if self.input.wanted != self.wanted && !self.is_off() {
            self.due = Some(Instant::now());
        }
        self.retarget();
        echo
    }

    async fn ask(&mut self, echo: &mut Echo<Key>) {
        self.schedule.expire(self.now());
        while let Some((key, target)) = self.schedule.next(self.now()) {
            if let Err(error) = echo.send(key.clone(), target, &[]).await {
                let why = format!("cannot send {} bytes to {}: {error}", target.size, target.address);
                self.schedule.failed(&key, self.now(), why);
            }
        }
    }

    /// Has the endpoint made again if it is damaged, or removed if pods need its addresses.
    fn look(&mut self, echo: Option<&Echo<Key>>) {
        let now = Instant::now();
        let is_doubtful = IpFamily::ALL.into_iter().any(|family| {
            [Key::Gateway(family), Key::Forwarded(family)]
                .iter()
                .any(|key| self.schedule.misses(key) >= DOUBT)
        });
        if is_doubtful && self.doubted.is_none_or(|doubted| doubted + CALM <= now) {
            (self.doubted, self.due) = (Some(now), Some(now));
        }
        if now < self.looked + LOOK {
            return;
        }
        self.looked = now;
        let Some(wanted) = &self.wanted else { return };
        let store = self.options.seen(&wanted.store);
        let Ok(used) = used(&store) else { return };
        let is_due = match &self.endpoint {
            Ok(endpoint) => {
                let path = self.options.seen(Path::new(NETNS[0]));
                !echo.is_some_and(|echo| echo.is_of(&path)) || !is_kept(endpoint, wanted, &store, &used)
            }
            Err(_) => self.is_denied && has_room(wanted, &used),
        };
        if is_due {
            self.due = Some(now);
        }
    }

    fn gap(&self, [fixed, each]: [Duration; 2]) -> Duration {
        fixed + each * u32::try_from(self.input.peers.len()).unwrap_or(u32::MAX)
    }

    fn wake(&self, is_attaching: bool, is_asking: bool) -> Instant {
        let now = Instant::now();
        let next = self.schedule.wake().map(|mono| self.start + mono);
        let look = (self.endpoint.is_ok() || self.is_denied).then(|| self.looked + LOOK);
        let publish = match self.has_changed {
            true => Some(self.published + self.gap(CHANGES)),
            false => self.endpoint.is_ok().then(|| self.published + self.gap(AGES)),
        };
        let due = self.due.filter(|_| !is_attaching);
        let round = self.round_due().filter(|_| !is_asking);
        [next, look, publish, due, round].into_iter().flatten().min().unwrap_or(now + LONG)
    }

    fn publish(&mut self) {
        self.has_changed |= self.schedule.take_changed();
        let waited = self.published.elapsed();
        if waited >= self.gap(if self.has_changed { CHANGES } else { AGES }) {
            (self.published, self.has_changed) = (Instant::now(), false);
            let new = proofs(self.endpoint.as_ref(), &self.input, &self.schedule, &self.rounds);
            self.output.send_if_modified(|former| {
                let differs = *former != new;
                *former = new;
                differs
            });
        }
    }
}
