//! Repeats a change that failed because another process changed the same objects at the same time.

use std::convert::Infallible;

/// How often a change is attempted.
#[derive(Clone, Copy, Debug)]
pub struct Limit {
    /// The number of attempts.
    pub attempts: u32,
    /// What other processes change, for the error: `ruleset changes`.
    pub changes: &'static str,
}

/// An error whose message can be extended.
pub trait Prefix {
    /// The error with `text` and a colon before its message.
    #[must_use]
    fn prefixed(self, text: &str) -> Self;
}

impl Prefix for std::io::Error {
    fn prefixed(self, text: &str) -> Self {
        std::io::Error::new(self.kind(), format!("{text}: {self}"))
    }
}

/// Calls `attempt` until it succeeds or fails with an error that is not transient. Each attempt must read the
/// current state again.
///
/// `is_transient` says whether a concurrent change caused the error, so that another attempt may succeed.
///
/// # Errors
/// The first error that is not transient. If all attempts fail, the last error, prefixed with `gave up after
/// N concurrent ruleset changes`.
pub fn retry<T, E: Prefix>(
    limit: Limit,
    is_transient: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    let Ok(outcome) = retry_step(limit, is_transient, || Ok::<_, Infallible>(attempt()));
    outcome
}

/// As [`retry`], for attempts that also do other things than the change: the outer error of `attempt` is final, and only the
/// inner one may be transient.
///
/// # Errors
/// As [`retry`].
pub fn retry_step<T, E: Prefix, F>(
    Limit { attempts, changes }: Limit,
    is_transient: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<Result<T, E>, F>,
) -> Result<Result<T, E>, F> {
    for _ in 1..attempts {
        match attempt()? {
            Err(error) if is_transient(&error) => {}
            outcome => return Ok(outcome),
        }
    }
    Ok(attempt()?.map_err(|error| match is_transient(&error) {
        true => error.prefixed(&format!("gave up after {attempts} concurrent {changes}")),
        false => error,
    }))
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    /// Runs attempts with these outcomes. Returns the message of the error, and the number of attempts.
    fn run(outcomes: &[Result<(), ErrorKind>]) -> (Result<(), String>, usize) {
        let mut count = 0;
        let limit = Limit { attempts: 3, changes: "ruleset changes" };
        let outcome = retry(
            limit,
            |error: &Error| error.kind() == ErrorKind::ResourceBusy,
            || {
                count += 1;
                outcomes[count - 1].map_err(|kind| Error::new(kind, "add rule"))
            },
        );
        (outcome.map_err(|error| error.to_string()), count)
    }

    #[test]
    fn outer_errors_are_final() {
        let mut attempts = 0;
        let limit = Limit { attempts: 3, changes: "ruleset changes" };
        let outcome = retry_step(
            limit,
            |_: &Error| true,
            || {
                attempts += 1;
                if attempts == 2 { Err("taken") } else { Ok(Err::<(), _>(ErrorKind::ResourceBusy.into())) }
            },
        );
        assert!(matches!(outcome, Err("taken")) && attempts == 2);
    }

    #[test]
    fn only_transient_errors_are_repeated() {
        let busy = Err(ErrorKind::ResourceBusy);
        let wrong = Err(ErrorKind::InvalidInput);
        assert_eq!(run(&[Ok(())]), (Ok(()), 1));
        assert_eq!(run(&[busy, busy, Ok(())]), (Ok(()), 3));
        assert_eq!(run(&[wrong]), (Err("add rule".to_owned()), 1));
        assert_eq!(run(&[busy, wrong]), (Err("add rule".to_owned()), 2));
        let gave_up = "gave up after 3 concurrent ruleset changes: add rule".to_owned();
        assert_eq!(run(&[busy, busy, busy]), (Err(gave_up), 3));
    }
}
