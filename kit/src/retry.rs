//! Repeats a change after a concurrent one, with the errors of CNI.

use cni_common::spec::CniError;
use ferrule_kernel::retry::{self, Limit, Prefix};

/// As [`ferrule_kernel::retry::retry`], for attempts that also do other things than the change: the outer
/// error of `attempt` is final, and only the inner one may be transient.
pub fn retry<T, E: Prefix>(
    limit: Limit,
    is_transient: impl Fn(&E) -> bool,
    mut attempt: impl FnMut() -> Result<Result<T, E>, CniError>,
) -> Result<Result<T, E>, CniError> {
    swap(retry::retry(limit, is_transient, || swap(attempt())))
}

/// Exchanges the outer and the inner error.
fn swap<T, E, F>(outcome: Result<Result<T, E>, F>) -> Result<Result<T, F>, E> {
    match outcome {
        Ok(Ok(value)) => Ok(Ok(value)),
        Ok(Err(inner)) => Err(inner),
        Err(outer) => Ok(Err(outer)),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Error, ErrorKind};

    use super::*;

    #[test]
    fn outer_errors_are_final() {
        let limit = Limit { attempts: 3, changes: "ruleset changes" };
        let run = |is_final: bool| {
            let mut attempts = 0;
            let outcome = retry(
                limit,
                |_: &Error| true,
                || {
                    attempts += 1;
                    let busy: Error = ErrorKind::ResourceBusy.into();
                    if is_final { Err(CniError::internal("taken")) } else { Ok(Err::<(), _>(busy)) }
                },
            );
            (outcome, attempts)
        };
        assert!(matches!(run(true), (Err(error), 1) if error.msg == "taken"));
        assert!(
            matches!(run(false), (Ok(Err(error)), 3) if error.to_string().starts_with("gave up after 3"))
        );
    }
}
