//! A plugin as a process, with a time limit.

use std::convert::Infallible;
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use cni_common::captured::{self, Ended, Trouble};
use cni_common::spec::REMEDY;
use itertools::Itertools as _;
use serde_json::Value;

/// What helps if a plugin does not answer.
const WAITS: &str = "end what the plugin waits for, or raise --timeout";
/// What helps if a plugin ends without an answer.
const BROKEN: &str = "install the plugin again";

/// When all calls of this process have to end.
static END: OnceLock<Instant> = OnceLock::new();

/// Lets no call of a plugin last beyond this time, whatever its own limit. Later ones are not made.
pub fn end_calls_at(end: Instant) {
    END.get_or_init(|| end);
}

/// The limit of a call that begins now.
///
/// # Errors
/// No time is left.
pub(crate) fn within(limit: Duration) -> Result<Duration, String> {
    let Some(end) = END.get() else { return Ok(limit) };
    let limit = limit.min(end.saturating_duration_since(Instant::now()));
    if limit.is_zero() { Err("not called: there was no time left".to_owned()) } else { Ok(limit) }
}

/// Calls the plugin in the first of the folders that has it, with these variables and CNI_PATH in addition to the environment.
///
/// # Errors
/// No folder has the program. It cannot be started, takes too long, or fails: the text of its error document.
pub fn call(
    path: &[PathBuf],
    plugin: &str,
    variables: &[(&str, &str)],
    stdin: &str,
    limit: Duration,
) -> Result<Ended, String> {
    let limit = within(limit)?;
    let mut command = Command::new(find(path, plugin)?);
    command.env_remove("CNI_COMMAND").env("CNI_PATH", join(path)).envs(variables.iter().copied());
    let ended =
        captured::run(&mut command, stdin, limit, || Ok::<(), Infallible>(())).map_err(|trouble| {
            match trouble {
                Trouble::Start(error) => format!("cannot run {}: {error}", command.get_program().display()),
                Trouble::TookTooLong(limit) => {
                    format!("no answer within {} s; {REMEDY}{WAITS}", limit.as_secs())
                }
                Trouble::Stopped(never) => match never {},
            }
        })?;
    match ended.status.success() {
        true => Ok(ended),
        false => Err(error_in(&ended.stdout)
            .unwrap_or_else(|| format!("{} without an error document; {REMEDY}{BROKEN}", ended.status))),
    }
}

/// The program of the plugin in the first of the folders that has it.
fn find(path: &[PathBuf], plugin: &str) -> Result<PathBuf, String> {
    if plugin.is_empty() || plugin.contains('/') {
        return Err("the configuration has no valid type".to_owned());
    }
    let program = path.iter().map(|folder| folder.join(plugin)).find(|program| program.is_file());
    program.ok_or_else(|| format!("no such program in {}", join(path)))
}

/// The folders as in CNI_PATH.
fn join(path: &[PathBuf]) -> String {
    path.iter().map(|folder| folder.display()).join(":")
}

/// The text of an error document.
fn error_in(output: &str) -> Option<String> {
    let json: Value = serde_json::from_str(output).ok()?;
    let text = |key: &str| json[key].as_str().filter(|text| !text.is_empty());
    let message = text("msg")?;
    Some(text("details").map_or(message.to_owned(), |details| format!("{message}; {details}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, limit: Duration) -> Result<Ended, String> {
        call(&["/bin".into()], "sh", &[("SCRIPT", script)], r#"eval "$SCRIPT""#, limit)
    }

    #[test]
    fn outcomes() {
        let minute = Duration::from_secs(60);
        let both = shell("printf out; printf err >&2", minute).unwrap();
        assert_eq!((both.stdout.as_str(), both.stderr.as_str()), ("out", "err"));
        let broken = "exit status: 3 without an error document; remedy: install the plugin again";
        assert_eq!(shell("exit 3", minute).unwrap_err(), broken);
        assert_eq!(shell(r#"echo '{"code":7,"msg":"wrong"}'; exit 1"#, minute).unwrap_err(), "wrong");
        let hangs = shell("sleep 1000", Duration::ZERO).unwrap_err();
        assert!(hangs.starts_with("no answer within 0 s; remedy: "), "{hangs}");
    }

    #[test]
    fn an_error_document_is_one_line() {
        assert_eq!(error_in(r#"{"code":7,"msg":"wrong","details":"x is 1"}"#).unwrap(), "wrong; x is 1");
        assert_eq!(error_in(r#"{"code":7,"msg":"wrong"}"#).unwrap(), "wrong");
        assert_eq!((error_in("panic"), error_in("{}")), (None, None));
    }

    #[test]
    fn a_program_is_found_by_its_name_only() {
        assert_eq!(find(&["/bin".into()], "sh").unwrap(), PathBuf::from("/bin/sh"));
        assert_eq!(find(&["/nowhere".into()], "sh").unwrap_err(), "no such program in /nowhere");
        assert!(find(&["/bin".into()], "").is_err() && find(&["/".into()], "bin/sh").is_err());
    }
}
