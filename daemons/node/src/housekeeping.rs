//! Runs `ferrule repair` and `ferrule gc` as children, and keeps them running. The installed program must do it: it calls the plugins
//! within its own process, and only those of its own build.

use std::convert::Infallible;
use std::env;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{self, Stdio};

use ferrule_daemon::Pauses;
use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getppid};
use tokio::process::{Child, Command};
use tokio::time::{Instant, sleep};

use crate::arguments::{CHILD, Options};

/// The pauses before the next start. They begin anew after a child that ran as long as the longest one.
const PAUSES: Pauses = Pauses::millis(1000, 60_000);
/// Where the program is if it is not beside this one.
pub const INSTALLED: &str = "/opt/cni/bin/ferrule";

/// Runs until it is dropped; the children end with it, and also if this process is killed. Their lines go to standard error.
pub async fn run(options: &Options) {
    let program = program(options);
    tokio::join!(keep(&program, repair(options)), keep(&program, gc(options)));
}

fn program(options: &Options) -> PathBuf {
    let beside =
        || env::current_exe().ok().map(|own| own.with_file_name("ferrule")).filter(|path| path.exists());
    options.ferrule.clone().or_else(beside).unwrap_or_else(|| INSTALLED.into())
}

fn repair(options: &Options) -> Option<Vec<OsString>> {
    (!options.no_repair).then(|| with_root(["repair", "--yes", "--watch"].map(OsString::from), options))
}

fn gc(options: &Options) -> Option<Vec<OsString>> {
    let every = options.gc_every.to_string();
    (options.gc_every != 0)
        .then(|| with_root(["gc", "--yes", "--every", &every].map(OsString::from), options))
}

fn with_root<const N: usize>(words: [OsString; N], options: &Options) -> Vec<OsString> {
    let root = options.root.iter().flat_map(|root| [OsString::from("--root"), root.clone().into()]);
    words.into_iter().chain(root).collect()
}

/// Starts the program with these words, again and again. Does nothing without words.
async fn keep(program: &PathBuf, words: Option<Vec<OsString>>) {
    let Some(words) = words else { return };
    let name = words.first().map(OsString::as_os_str).unwrap_or_default().display();
    let mut ends = 0_u32;
    loop {
        let started = Instant::now();
        let ended = match spawn(program, &words) {
            Ok(mut child) => match child.0.wait().await {
                Ok(status) => format!("has ended ({status})"),
                Err(error) => format!("cannot be waited for: {error}"),
            },
            Err(error) => format!("cannot be started: {error}"),
        };
        ends = if started.elapsed() >= PAUSES.longest { 1 } else { ends.saturating_add(1) };
        let wait = PAUSES.after(ends);
        log!("{} {name} {ended}; starts again in {} s", program.display(), wait.as_secs());
        sleep(wait).await;
    }
}

/// A child that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // No ID: it has ended.
        if let Some(pid) = self.0.id().and_then(|id| i32::try_from(id).ok()) {
            let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        }
    }
}

fn spawn(program: &PathBuf, words: &[OsString]) -> io::Result<Running> {
    let log = io::stderr().as_fd().try_clone_to_owned()?;
    let mut command = Command::new("/proc/self/exe");
    command.arg(CHILD).arg(process::id().to_string()).arg(program).args(words);
    command.stdin(Stdio::null()).stdout(log).spawn().map(Running)
}

/// Becomes the program with these words. The kernel ends it with its parent, the process with this ID.
///
/// # Errors
/// The program cannot be started.
pub fn become_child(parent: i32, program: &OsStr, words: &[OsString]) -> io::Result<Infallible> {
    set_pdeathsig(Signal::SIGTERM)?;
    if getppid() != Pid::from_raw(parent) {
        return Err(io::Error::other("ferrule-node has ended meanwhile"));
    }
    let error = process::Command::new(program).args(words).exec();
    Err(io::Error::new(error.kind(), format!("{}: {error}", program.display())))
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::Arguments;

    #[test]
    fn words_of_the_children() {
        for (text, wanted) in [
            ("", [Some("repair --yes --watch"), Some("gc --yes --every 3600")]),
            ("--no-repair --gc-every 0", [None, None]),
            (
                "--root /host --gc-every 60",
                [Some("repair --yes --watch --root /host"), Some("gc --yes --every 60 --root /host")],
            ),
        ] {
            let words = ["ferrule-node"].into_iter().chain(text.split_whitespace());
            let options = Arguments::try_parse_from(words).unwrap().options;
            let found = [repair(&options), gc(&options)]
                .map(|words| words.map(|words| words.join(OsStr::new(" ")).into_string().unwrap()));
            assert_eq!(found.each_ref().map(Option::as_deref), wanted, "{text}");
        }
    }
}
