//! What a panic leaves: an error object, and for an ADD of several plugins a DEL.
//!
//! The release profile aborts, so nothing of the process's own state can be trusted after a panic. The process replaces itself by a new one
//! of the same program, which runs DEL and prints nothing. The locks of the old one are free then.

use std::fs::File;
use std::io::{Seek as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::{Mutex, TryLockError};

use rustix::fs::{MemfdFlags, memfd_create};

use crate::netns::{Netns, is_own};
use crate::remark;

/// The variable of a process that undoes an ADD which has panicked.
pub(super) const UNDOES: &str = "CNI_FERRULE_UNDOES";

static STEP: Mutex<Step> = Mutex::new(Step { name: String::new(), undo: None });

/// What the process is doing.
#[derive(Clone, Default)]
struct Step {
    name: String,
    undo: Option<Vec<u8>>,
}

/// From now on an error object of a panic begins with `name`. With `undo`, a configuration, DEL of this program's plugin follows the panic,
/// unless the thread is in the container's namespace then: that is left to the runtime's DEL.
pub fn in_case_of_panic(name: String, undo: Option<&[u8]>) {
    if let Ok(mut step) = STEP.lock() {
        let undo = undo.map(<[u8]>::to_vec);
        *step = Step { name, undo };
    }
}

/// The beginning of the error's message.
pub(super) fn name() -> String {
    step().name
}

/// Runs DEL if there is something to undo. Then it does not return.
pub(super) fn undo() {
    let Some(config) = step().undo else { return };
    let netns = std::env::var("CNI_NETNS").unwrap_or_default();
    let is_outside = match Netns::open(&netns) {
        Ok(netns) => is_own(&netns).is_ok_and(|is_own| !is_own),
        Err(error) => error.is_absent,
    };
    if is_outside && let Ok(stdin) = in_memory(&config) {
        let name = std::env::args_os().next().unwrap_or_default();
        let mut program = Command::new("/proc/self/exe");
        program.arg0(name).env("CNI_COMMAND", "DEL").env(UNDOES, "1").stdin(stdin).stdout(Stdio::null());
        remark!("DEL after the panic: {}", program.exec());
    }
}

fn in_memory(bytes: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(memfd_create("ferrule", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

fn step() -> Step {
    match STEP.try_lock() {
        Ok(step) => step.clone(),
        Err(TryLockError::Poisoned(step)) => step.into_inner().clone(),
        Err(TryLockError::WouldBlock) => Step::default(),
    }
}
