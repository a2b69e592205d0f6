//! Calls that [`Exec`] does not support: unusual standard input and output, or another program that starts
//! the plugin.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::process::{Child, Command};
use std::time::Instant;

use cni_runner::{Exec, Output};

use crate::Place;

/// The call with the environment of `exec`, but with another program in place of the plugin.
pub fn in_place_of_the_plugin<S: AsRef<OsStr>>(program: &str, args: &[S], exec: &Exec) -> Command {
    let mut command = Exec { binary: program.into(), ..exec.clone() }.to_command();
    command.args(args);
    command
}

/// The call's standard input as a file.
pub fn stdin_file(exec: &Exec) -> File {
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&exec.stdin).unwrap();
    file.rewind().unwrap();
    file
}

/// Runs a command to its end.
pub fn run_command(place: &impl Place, command: &mut Command) -> Output {
    run_command_with(place, command, |_| {})
}

/// Runs a command to its end. `feed` may write to its standard input.
pub fn run_command_with(
    place: &impl Place,
    command: &mut Command,
    feed: impl FnOnce(&mut Child) + Send,
) -> Output {
    let work = || {
        let start = Instant::now();
        let mut child = command.spawn().unwrap();
        feed(&mut child);
        let std::process::Output { status, stdout, stderr } = child.wait_with_output().unwrap();
        Output { status, stdout, stderr, wall: start.elapsed() }
    };
    place.run(work).unwrap()
}
