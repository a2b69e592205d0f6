//! Programs of the node that only print, with a time limit and without the caller's environment.

use std::convert::Infallible;
use std::env;
use std::process::Command;
use std::time::Duration;

use cni_common::captured::{self, Trouble};

use crate::process;

/// Where they are, if the caller's PATH does not say.
const PATH: &str = "/usr/local/sbin:/usr/sbin:/sbin:/usr/local/bin:/usr/bin:/bin";

/// What a program prints; `None` if the node does not have it.
///
/// # Errors
/// It does not start, fails, or does not end in time. The text is its last line on standard error, if it has one.
pub(super) fn output(words: &[&str], limit: Duration) -> Result<Option<String>, String> {
    let (program, arguments) = words.split_first().ok_or("no program")?;
    let path = env::var("PATH").map_or_else(|_| PATH.to_owned(), |path| format!("{path}:{PATH}"));
    let Some(program) =
        path.split(':').map(|folder| format!("{folder}/{program}")).find(|path| is_program(path))
    else {
        return Ok(None);
    };
    let limit = process::within(limit)?;
    let mut command = Command::new(program);
    command.args(arguments).env_clear().env("PATH", path).env("LC_ALL", "C");
    let ended =
        captured::run(&mut command, "", limit, || Ok::<(), Infallible>(())).map_err(
            |trouble| match trouble {
                Trouble::Start(error) => format!("{}: {error}", words[0]),
                Trouble::TookTooLong(limit) => {
                    format!("{}: still running after {} s", words[0], limit.as_secs())
                }
                Trouble::Stopped(never) => match never {},
            },
        )?;
    match ended.status.success() {
        true => Ok(Some(ended.stdout)),
        false => {
            let why = ended.stderr.lines().last().unwrap_or_default().to_owned();
            Err(format!("{}: {}: {why}", words[0], ended.status))
        }
    }
}

fn is_program(path: &str) -> bool {
    path.starts_with('/') && std::path::Path::new(path).is_file()
}
