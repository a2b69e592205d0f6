//! `ferrule-dhcp`: the daemon of the `dhcp` plugin. It takes DHCP leases for containers and keeps them renewed.
//!
//! - `arguments`, `listener` and `server` are the process, its socket and its clients.
//! - `registry` has the leases. Each one has a task (`worker`) that does what its state machine (`binding`) wants, as an
//!   `action`. `supervisor` runs the task, again after a panic.
//! - DHCPv4: `frame`, `packet`, `message`, `settings` and `lease` build and read what goes over the wire, `machine` is the state
//!   machine. DHCPv6 has the same in `v6`. All of it is pure.
//! - `link` reaches the container's interface, `store` keeps the leases on the disk.

mod action;
mod arguments;
mod binding;
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
mod v6;
mod worker;

use std::io;
use std::process::ExitCode;

use ferrule_daemon::{log, program};
use ferrule_kernel::sysctl;
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::LocalSet;

use arguments::Arguments;
use listener::Listener;
use registry::Daemon;
use store::Store;

/// The program, with its arguments.
pub fn main() -> ExitCode {
    let arguments = Arguments::read();
    let outcome = match &arguments.generate {
        Some(dir) => program::generate::<Arguments>(dir),
        None => run(&arguments).map(|()| ExitCode::SUCCESS),
    };
    outcome.unwrap_or_else(|error| {
        log!("{error}");
        ExitCode::FAILURE
    })
}

/// Adds the step that has failed to an error.
fn at(step: &str) -> impl FnOnce(io::Error) -> io::Error {
    move |error| io::Error::new(error.kind(), format!("{step}: {error}"))
}

fn run(arguments: &Arguments) -> io::Result<()> {
    let socket = arguments.socket();
    let listener = Listener::open(&socket).map_err(at("Error getting listener"))?;
    let store = Store::open(&socket, sysctl::boot_id()).map_err(at("cannot make the folder of leases"))?;
    let states = store.list().map_err(at("cannot read the leases"))?;
    let daemon = Daemon::new(arguments.timing(), store, arguments.prefix.clone(), arguments.broadcast);
    if let Some(path) = &arguments.pidfile {
        let step = format!("Error writing pidfile {:?}", path.display().to_string());
        listener::write_pid(path).map_err(at(&step))?;
    }
    // The leases stay at the end: their files tell the next daemon.
    let outcome = program::block_on(LocalSet::new().run_until(async {
        let [mut terminate, mut interrupt] =
            [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?];
        states.into_iter().for_each(|state| daemon.resume(state));
        let socket = tokio::net::UnixListener::from_std(listener.socket.try_clone()?)?;
        if let Err(error) = sd_notify::notify(&[sd_notify::NotifyState::Ready]) {
            log!("cannot notify systemd: {error}");
        }
        tokio::select! {
            () = server::serve(daemon, socket) => {}
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        Ok(())
    }));
    if let Some(path) = &arguments.pidfile {
        let _ = std::fs::remove_file(path);
    }
    outcome
}
