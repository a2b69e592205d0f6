//! `ferrule-dhcp`: the daemon of the `dhcp` plugin. It takes DHCP leases for containers and keeps them renewed.
//!
//! - `arguments`, `listener` and `server` are the process, its socket and its clients.
//! - `registry` has the leases. Each one has a task (`worker`) that does what its state machine (`machine`) wants.
//!   `supervisor` starts it again after a panic.
//! - `frame`, `packet`, `message`, `settings` and `lease` build and read what goes over the wire. With `machine`
//!   they are pure.
//! - `link` reaches the container's interface, `store` keeps the leases on the disk.

mod arguments;
mod clock;
pub mod decoders;
mod frame;
mod lease;
mod link;
mod listener;
mod machine;
mod message;
mod packet;
mod registry;
mod server;
mod settings;
mod store;
mod supervisor;
mod worker;

use std::io::{self, Write as _};
use std::process::ExitCode;

use tokio::runtime::Builder;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use arguments::{Arguments, Misuse, USAGE};
use listener::{Listener, PidFile};
use registry::Daemon;
use store::Store;

/// Writes a line to standard error. `eprintln!` panics if that fails, for example on a full disk.
fn log(text: &str) {
    let _ = io::stderr().write_all(format!("{text}\n").as_bytes());
}

/// The program, with its arguments.
pub fn main() -> ExitCode {
    let arguments = match Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(Misuse::Help) => {
            print!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        Err(Misuse::Wrong(why)) => {
            eprintln!("{why}\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let failed = |step: &str, error: io::Error| io::Error::new(error.kind(), format!("{step}: {error}"));
    let listener =
        Listener::open(&arguments.socket).map_err(|error| failed("Error getting listener", error))?;
    let _pidfile = match &arguments.pidfile {
        Some(path) => {
            let step = format!("Error writing pidfile {:?}", path.display().to_string());
            Some(PidFile::write(path).map_err(|error| failed(&step, error))?)
        }
        None => None,
    };
    let store = Store::open(&arguments.socket, clock::boot_id());
    let store = store.map_err(|error| failed("cannot make the folder of leases", error))?;
    let records = store.load().map_err(|error| failed("cannot read the leases", error))?;
    let daemon = Daemon::new(arguments.timing, store, arguments.prefix.clone(), arguments.broadcast);
    let runtime = Builder::new_current_thread().enable_all().build()?;
    let tasks = LocalSet::new();
    let outcome = tasks.block_on(&runtime, async {
        let [mut terminate, mut interrupt] =
            [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        for record in records {
            daemon.resume(record);
        }
        let socket = tokio::net::UnixListener::from_std(listener.socket.try_clone()?)?;
        listener::notify_ready();
        tokio::select! {
            () = server::serve(daemon, socket) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    });
    // The leases stay: their files tell the next daemon.
    runtime.shutdown_background();
    outcome
}
