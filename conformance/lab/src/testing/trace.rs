//! System calls of a plugin call.

use cni_runner::Exec;

use crate::{Place, strace};

/// The system calls that one plugin call and its child processes have made.
#[derive(Debug)]
pub struct Trace {
    /// The name and the rest of the line for each call.
    calls: Vec<(String, String)>,
    /// How many programs have been executed, the plugin included.
    executed: usize,
}

impl Trace {
    /// Makes a call, which must succeed, and records the system calls of a list such as `execve,sendto`, or
    /// `all`. Needs strace.
    pub fn of(place: &impl Place, exec: &Exec, names: &str) -> Trace {
        let text = strace::record(place, exec, &["-f", "-e", &format!("trace={names}")]).unwrap();
        // A line is `PID NAME(ARGUMENTS) = RESULT`, or `PID <... NAME resumed>...` for the end of a call.
        let calls = text.lines().filter_map(|line| {
            let (name, rest) =
                line.trim_start_matches(|c: char| c.is_ascii_digit() || c == ' ').split_once('(')?;
            (!name.starts_with('<')).then(|| (name.to_owned(), rest.to_owned()))
        });
        let executed = text.lines().filter(|line| line.contains("execve") && line.ends_with("= 0")).count();
        Trace { calls: calls.collect(), executed }
    }

    /// How many of the recorded calls have one of these names.
    pub fn count(&self, names: &[&str]) -> usize {
        self.calls.iter().filter(|(name, _)| names.contains(&name.as_str())).count()
    }

    /// How many of the recorded calls have this text in their arguments or their result.
    pub fn naming(&self, text: &str) -> usize {
        self.calls.iter().filter(|(_, rest)| rest.contains(text)).count()
    }

    /// The number of all recorded calls.
    pub fn total(&self) -> usize {
        self.calls.len()
    }

    /// How many programs the plugin has started; needs `execve` in the list.
    pub fn programs(&self) -> usize {
        self.executed.checked_sub(1).unwrap_or_else(|| panic!("strace has not seen the plugin: {self:?}"))
    }
}
