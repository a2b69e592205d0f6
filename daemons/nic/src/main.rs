//! The program `ferrule-nic`.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::{CommandFactory as _, Parser as _};
use clap_complete::Shell;
use cni_common::line::{Line, Text};
use ferrule_kubelet::SOCKET;
use ferrule_nic::arguments::{Arguments, Command, Options};
use ferrule_nic::config::Config;
use ferrule_nic::daemon;
use ferrule_nic::discovery::Watch;
use ferrule_nic::dra::list;
use ferrule_nic::report;
use ferrule_nic::serve::owners;
use ferrule_nic::tracker::Tracker;

/// The exit status after a wrong argument or configuration (EX_CONFIG of sysexits.h): a restart cannot help.
const BAD_CONFIG: u8 = 78;

fn main() -> ExitCode {
    abort_on_panic();
    let Arguments { command, options, generate } = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(message) => {
            let _ = message.print();
            return ExitCode::from(if message.use_stderr() { BAD_CONFIG } else { 0 });
        }
    };
    if let Some(dir) = generate {
        return generate_into(&dir).map_or_else(|error| fail(1, &error.to_string()), |()| ExitCode::SUCCESS);
    }
    if let Some(Command::Claims { json }) = command {
        return claims(&options, json).map_or_else(|error| fail(1, &error.to_string()), |text| print(&text));
    }
    let config = match daemon::read(&options) {
        Ok(config) => config,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error.to_string()),
    };
    let outcome = match command {
        Some(Command::Devices { json }) => {
            runtime.block_on(devices(config, &options, json)).map(|text| print(&text))
        }
        Some(Command::Claims { .. }) | None => {
            runtime.block_on(daemon::run(config, &options)).map(|()| ExitCode::SUCCESS)
        }
    };
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| fail(1, &error.to_string()))
}

/// Writes the man pages and completions.
fn generate_into(dir: &Path) -> io::Result<()> {
    clap_mangen::generate_to(Arguments::command(), dir)?;
    for shell in [Shell::Bash, Shell::Zsh, Shell::Fish] {
        clap_complete::generate_to(shell, &mut Arguments::command(), "ferrule-nic", dir)?;
    }
    Ok(())
}

/// A panic in a task would end the registration of one resource and nothing else. So it ends the process, which the service
/// manager starts again.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

async fn devices(config: Config, options: &Options, json: bool) -> std::io::Result<Text> {
    let watch = Watch::open()?;
    let mut tracker = Tracker::start(config, options, &watch).await?;
    let plan = tracker.preview();
    let config = &tracker.config;
    let resources: Vec<String> = config.resources.iter().map(|resource| resource.name.clone()).collect();
    // There may be no kubelet, and the user may have no right to read the claims.
    let mut owners = owners(&options.kubelet.join(SOCKET), &resources).await.unwrap_or_default();
    if let Some(dra) = &config.dra {
        let entries = list::entries(&options.records(), &options.attached()).unwrap_or_default();
        owners.extend(
            entries.iter().map(|entry| ((dra.driver().to_owned(), entry.device_id()), entry.owner())),
        );
    }
    Ok(match json {
        true => Text::json(format_args!("{:#}\n", report::to_json(config, &plan, &owners))),
        false => Text::lines(report::to_text(config, &plan, &owners)),
    })
}

/// The claims that are prepared, whether or not there is a daemon.
fn claims(options: &Options, json: bool) -> io::Result<Text> {
    let entries = list::entries(&options.records(), &options.attached())?;
    Ok(match json {
        true => Text::json(format_args!("{:#}\n", list::to_json(&entries))),
        false => Text::lines(list::to_text(&entries)),
    })
}

fn print(text: &Text) -> ExitCode {
    // A reader such as `head` may close the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(status: u8, error: &str) -> ExitCode {
    // `eprintln!` panics if it cannot write.
    let _ = writeln!(std::io::stderr(), "ferrule-nic: {}", Line::new(error));
    ExitCode::from(status)
}
