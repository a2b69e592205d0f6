//! The socket on which `ferrule policy why` and `ferrule inspect policies` ask.

use std::path::Path;
use std::time::Duration;

use ferrule_daemon::asked;
use ferrule_policy_kit::ask::{Answer, Ask, LONGEST, PROTOCOL, Request};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{sleep, timeout};

use super::answer::answer;
use super::enforcer::{Enforcer, Made};
use super::ipvs;

/// The most questions that wait.
pub(super) const QUEUE: usize = 16;
/// How long the thread may take.
const LIMIT: Duration = Duration::from_secs(20);
/// The pause until the socket is made again.
const PAUSE: Duration = Duration::from_secs(60);

/// A question, and where the answer goes.
pub type Question = (Ask, oneshot::Sender<Answer>);

/// Answers until it is dropped. Without a socket the policies hold all the same.
pub async fn run(path: &Path, questions: mpsc::Sender<Question>) {
    let listener = loop {
        match asked::listen(path) {
            Ok(listener) => break listener,
            Err(error) => log!("policy: nobody can ask: {error}"),
        }
        sleep(PAUSE).await;
    };
    let reply = move |request| pass(request, questions.clone());
    asked::answer(listener, LONGEST, "a question about policies", reply).await;
}

async fn pass(request: Request, questions: mpsc::Sender<Question>) -> Result<Answer, String> {
    if request.ferrule_policy != PROTOCOL {
        // The program reads the version of the answer.
        return Ok(Answer { ferrule_policy: PROTOCOL, ..Answer::default() });
    }
    let (sender, answer) = oneshot::channel();
    let ask = async {
        questions.send((request.ask, sender)).await.map_err(|error| error.to_string())?;
        answer.await.map_err(|error| error.to_string())
    };
    timeout(LIMIT, ask).await.unwrap_or_else(|_| Err("the thread of the policies does not answer".to_owned()))
}

impl Enforcer {
    /// What the objects of the API say, as far as they are known.
    pub(super) fn answer(&self, ask: &Ask) -> Answer {
        if !self.listed.is_complete() {
            let away: Vec<_> = self.away.iter().map(|(kind, why)| format!("{kind}: {why}")).collect();
            let error = Some(format!("policies are not known yet: {}", away.join("; ")));
            return Answer { ferrule_policy: PROTOCOL, error, ..Answer::default() };
        }
        let mut answer = answer(ask, &self.compiler);
        let away = self
            .away
            .iter()
            .map(|(kind, why)| format!("{kind} are not followed now, what is known holds: {why}"));
        answer.notes.extend(away);
        answer.notes.extend(self.problem.clone());
        if self.made != Made::All && self.problem.is_none() {
            answer.notes.push("the kernel's table is being made again".to_owned());
        }
        if self.inspected.has_ipvs {
            answer.notes.push(ipvs::REASON.to_owned());
        }
        answer
    }
}
