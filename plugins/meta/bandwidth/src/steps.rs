//! Requests that are sent in one batch and undone together if one of them fails.

use cni_common::spec::CniError;
use ferrule_kernel::netlink::{Answer, Message, Socket};
use ferrule_kernel::retry::Prefix;
use nix::errno::Errno;

/// A request, its description for errors, and the request that undoes it.
pub struct Step {
    what: String,
    request: Message,
    undo: Option<Message>,
}

impl Step {
    /// A request that need not be undone.
    pub fn new(what: impl Into<String>, request: Message) -> Step {
        Step { what: what.into(), request, undo: None }
    }

    /// Adds the request that undoes this one.
    #[must_use]
    pub fn undone_by(self, undo: Message) -> Step {
        Step { undo: Some(undo), ..self }
    }
}

/// Why an ADD failed.
#[derive(Debug)]
pub struct Failed {
    /// The error for the runtime.
    pub error: CniError,
    /// Whether an object existed that had not existed when the state was read (EEXIST). Another attempt may
    /// succeed.
    pub is_race: bool,
}

impl From<CniError> for Failed {
    fn from(error: CniError) -> Self {
        Failed { error, is_race: false }
    }
}

impl Prefix for Failed {
    fn prefixed(mut self, text: &str) -> Self {
        self.error.msg = format!("{text}: {}", self.error.msg);
        self
    }
}

/// The requests that undo the steps done so far.
#[derive(Default)]
pub struct Done(Vec<Message>);

impl Done {
    /// Sends all requests in one batch and returns their answers. If one fails, undoes all steps of this and
    /// earlier calls, the last one first.
    ///
    /// # Errors
    /// The first request that failed. Failures to undo go to stderr.
    pub fn run(&mut self, socket: &mut Socket, steps: Vec<Step>) -> Result<Vec<Answer>, Failed> {
        let (mut requests, mut rest) = (Vec::new(), Vec::new());
        for Step { what, request, undo } in steps {
            requests.push(request);
            rest.push((what, undo));
        }
        let answers = socket.requests(requests);
        let mut failed = None;
        for (answer, (what, undo)) in answers.iter().zip(rest) {
            match answer {
                Ok(_) => self.0.extend(undo),
                Err(error) if failed.is_none() => {
                    let text = CniError::internal(format!("{what}: {error}"));
                    failed = Some(Failed { error: text, is_race: error.errno == Errno::EEXIST });
                }
                Err(_) => {}
            }
        }
        match failed {
            None => Ok(answers),
            Some(failed) => {
                self.undo(socket);
                Err(failed)
            }
        }
    }

    /// Undoes all steps, the last one first.
    pub fn undo(&mut self, socket: &mut Socket) {
        let undo: Vec<Message> = self.0.drain(..).rev().collect();
        if undo.is_empty() {
            return;
        }
        for error in socket.requests(undo).into_iter().filter_map(Result::err) {
            eprintln!("failed to undo a step of a failed ADD: {error}");
        }
    }
}
