//! The program of each stub. It uses nothing but std, because build.rs compiles this file alone: a test run starts it thousands of times,
//! and a static program starts in a quarter of the time of one with glibc.

use std::io::{self, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;
use std::{env, fs, thread};

/// Records the call, and replies as the file of the verb says.
pub fn main() -> ExitCode {
    match record_and_reply(&records_of(Path::new(&env::args_os().next().unwrap_or_default()))) {
        Ok(status) => ExitCode::from(status),
        Err(error) => {
            eprintln!("the stub fails: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The folder of records of the stub with this path.
pub fn records_of(program: &Path) -> PathBuf {
    let mut name = program.as_os_str().to_owned();
    name.push(".calls");
    name.into()
}

/// Each call takes the first free number by mkdir, which the kernel lets only one call win.
fn record_and_reply(dir: &Path) -> io::Result<u8> {
    let mut number = 2;
    let call = loop {
        let call = dir.join(number.to_string());
        match fs::create_dir(&call) {
            Ok(()) => break call,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
            Err(error) => return Err(error),
        }
    };
    let mut variables = String::new();
    for (name, value) in env::vars_os() {
        if let Some(name) = name.to_str().filter(|name| name.starts_with("CNI_")) {
            variables += &format!("{name}={}\0", value.to_string_lossy());
        }
    }
    fs::write(call.join("env"), variables)?;
    fs::write(call.join("netns"), fs::read_link("/proc/self/ns/net")?.as_os_str().as_encoded_bytes())?;
    let mut stdin = Vec::new();
    io::stdin().read_to_end(&mut stdin)?;
    fs::write(call.join("stdin"), stdin)?;
    fs::write(call.join("done"), "")?;
    let verb = env::var("CNI_COMMAND").unwrap_or_else(|_| "none".to_owned());
    let Ok(answer) = fs::read_to_string(dir.join(format!("reply.{verb}"))) else { return Ok(0) };
    let (head, text) = answer.split_once('\n').ok_or(io::ErrorKind::InvalidData)?;
    let mut numbers = head.split(' ').map_while(|word| word.parse().ok());
    let [sleep, crash, status, errors] = std::array::from_fn(|_| numbers.next().unwrap_or(0_u32));
    thread::sleep(Duration::from_secs(sleep.into()));
    if crash == 1 {
        return Err(Command::new("/bin/sh").args(["-c", "kill -KILL $$"]).exec());
    }
    let (errors, output) = text.split_at_checked(errors as usize).ok_or(io::ErrorKind::InvalidData)?;
    io::stderr().write_all(errors.as_bytes())?;
    io::stdout().write_all(output.replace("@N@", &number.to_string()).as_bytes())?;
    Ok(status as u8)
}
