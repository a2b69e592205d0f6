//! Requests that are sent together, and undone together if one of them fails.

use cni_common::netlink::{Answer, Message, Socket};
use cni_common::spec::CniError;
use nix::errno::Errno;

/// A request with what is said if it fails, and what undoes it.
pub struct Step {
    what: String,
    request: Message,
    undo: Option<Message>,
}

impl Step {
    /// A request that needs no undoing.
    pub fn new(what: impl Into<String>, request: Message) -> Step {
        Step { what: what.into(), request, undo: None }
    }

    /// The same request, undone by another.
    #[must_use]
    pub fn undone_by(self, undo: Message) -> Step {
        Step { undo: Some(undo), ..self }
    }
}

/// Why an ADD failed.
#[derive(Debug)]
pub struct Failed {
    /// What to tell the runtime.
    pub error: CniError,
    /// Whether something was there that had not been a moment before, so that another try may find a way around it.
    pub is_race: bool,
}

impl From<CniError> for Failed {
    fn from(error: CniError) -> Self {
        Failed { error, is_race: false }
    }
}

/// What has been done so far.
#[derive(Default)]
pub struct Done(Vec<Message>);

impl Done {
    /// Sends all requests at once and returns their answers. If one fails everything is undone, the last first, what was done
    /// before included.
    ///
    /// # Errors
    /// The first that failed. A failure to undo goes to standard error.
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

    /// Undoes everything, the last first.
    pub fn undo(&mut self, socket: &mut Socket) {
        let undo: Vec<Message> = self.0.drain(..).rev().collect();
        if undo.is_empty() {
            return;
        }
        for error in socket.requests(undo).into_iter().filter_map(Result::err) {
            eprintln!("undoing the failed ADD: {error}");
        }
    }
}
