//! Netlink requests with names for errors: sent in one batch, and undone if a step of ADD fails.

use std::fmt::Display;

use cni_common::remark;
use cni_common::spec::{CniError, Code, Failures};
use ferrule_kernel::netlink::{self, Answer, Message, Socket, may_be_done};
use ferrule_kernel::retry::Prefix;
use nix::errno::Errno;

/// A request, its description for errors, and the request that undoes it.
pub struct Step {
    what: String,
    request: Message,
    undo: Option<Message>,
    done: &'static [Errno],
}

impl Step {
    /// A request that need not be undone.
    pub fn new(what: impl Into<String>, request: Message) -> Step {
        Step { what: what.into(), request, undo: None, done: &[] }
    }

    /// Adds the request that undoes this one.
    pub fn undone_by(self, undo: Message) -> Step {
        Step { undo: Some(undo), ..self }
    }

    /// Treats these errors as success: they say that the change has already been made, and it stays.
    pub fn unless(self, done: &'static [Errno]) -> Step {
        Step { done, ..self }
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

impl From<Failed> for CniError {
    fn from(failed: Failed) -> Self {
        failed.error
    }
}

/// The requests that undo the steps done so far.
#[derive(Default)]
pub struct UndoStack(Vec<(String, Message)>);

impl UndoStack {
    /// Adds the request that undoes a step done by other means than [`UndoStack::run`].
    pub fn push(&mut self, what: impl Into<String>, undo: Message) {
        self.0.push((what.into(), undo));
    }

    /// Sends all requests in one batch and returns the bodies of the last answer. If one fails, undoes all
    /// steps of this and earlier calls, the last one first. A step whose answer is lost counts as done.
    ///
    /// # Errors
    /// The first request that failed. Failures to undo go to stderr.
    pub fn run(&mut self, socket: &mut Socket, steps: Vec<Step>) -> Result<Vec<Vec<u8>>, Failed> {
        let (mut last, mut failed) = (Vec::new(), None);
        for (step, answer) in send(socket, steps) {
            if let Err(error) = &answer
                && failed.is_none()
                && !step.done.contains(&error.errno)
            {
                let text = CniError::internal(format!("{}: {error}", step.what));
                failed = Some(Failed { error: text, is_race: error.errno == Errno::EEXIST });
            }
            if may_be_done(&answer) {
                self.0.extend(step.undo.map(|undo| (step.what, undo)));
            }
            last = answer.unwrap_or_default();
        }
        let Some(failed) = failed else { return Ok(last) };
        self.undo(socket);
        Err(failed)
    }

    /// Undoes all steps, the last one first. A missing object is success.
    pub fn undo(&mut self, socket: &mut Socket) {
        let (steps, undo): (Vec<String>, Vec<Message>) = self.0.drain(..).rev().unzip();
        for (step, answer) in steps.into_iter().zip(socket.requests(undo)) {
            if let Err(error) = answer
                && !matches!(error.errno, Errno::ENODEV | Errno::ENOENT)
            {
                remark!("failed to undo {step:?} of a failed ADD: {error}");
            }
        }
    }
}

/// Reports an undo that has failed: ADD returns the error that made it necessary.
pub fn report_undo<T>(outcome: Result<T, impl Display>) {
    if let Err(error) = outcome {
        remark!("failed to undo the ADD: {error}");
    }
}

/// Sends all requests of a DEL or GC in one batch, and collects their errors.
pub fn run_all(socket: &mut Socket, steps: Vec<Step>) -> Result<(), CniError> {
    let mut failures = Failures::default();
    for (step, answer) in send(socket, steps) {
        if !matches!(&answer, Err(error) if step.done.contains(&error.errno)) {
            failures.keep(answer.map_err(|error| error_of(&step.what, &error)));
        }
    }
    failures.into_result()
}

/// The error of a request: code 11, try again later, if it could not be sent, so that the kernel has refused nothing.
pub fn error_of(what: &str, error: &netlink::Error) -> CniError {
    let code = if error.is_unsent() { Code::TryAgainLater } else { Code::Internal };
    CniError::new(code, format!("{what}: {error}"))
}

fn send(socket: &mut Socket, steps: Vec<Step>) -> impl Iterator<Item = (Step, Answer)> {
    let requests = steps.iter().map(|step| step.request.clone()).collect();
    steps.into_iter().zip(socket.requests(requests))
}
