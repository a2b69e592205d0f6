//! The program `ferrule-nic`.

use std::io::Write as _;
use std::process::ExitCode;

use ferrule_nic::arguments::{self, Command, USAGE};
use ferrule_nic::config::Config;
use ferrule_nic::daemon::{self, Options};
use ferrule_nic::discovery::{Sysfs, Watch};
use ferrule_nic::report;
use ferrule_nic::serve::owners;
use ferrule_nic::tracker::Tracker;

/// The exit status after a wrong argument or configuration (EX_CONFIG of sysexits.h): a restart cannot help.
const BAD_CONFIG: u8 = 78;

fn main() -> ExitCode {
    abort_on_panic();
    let (command, options) = match arguments::parse(std::env::args_os().skip(1)) {
        Ok((Command::Help, _)) => return print(USAGE),
        Ok(parsed) => parsed,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    let config = match daemon::read(&options) {
        Ok(config) => config,
        Err(error) => return fail(BAD_CONFIG, &error),
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fail(1, &error.to_string()),
    };
    let outcome = match command {
        Command::Devices { json } => {
            runtime.block_on(devices(config, &options, json)).map(|text| print(&text))
        }
        _ => runtime.block_on(daemon::run(config, &options)).map(|()| ExitCode::SUCCESS),
    };
    runtime.shutdown_background();
    outcome.unwrap_or_else(|error| fail(1, &error.to_string()))
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

async fn devices(config: Config, options: &Options, json: bool) -> std::io::Result<String> {
    let watch = Watch::open()?;
    let mut tracker =
        Tracker::start(config, Sysfs::new(&options.sysfs), options.record.clone(), &watch).await?;
    let plan = tracker.look();
    let config = tracker.config();
    let resources: Vec<String> = config.resources.iter().map(|resource| resource.name.clone()).collect();
    // There may be no kubelet.
    let owners = owners(&options.pod_resources(), &resources).await.unwrap_or_default();
    Ok(match json {
        true => format!("{:#}\n", report::to_json(config, &plan, &owners)),
        false => report::to_text(config, &plan, &owners),
    })
}

fn print(text: &str) -> ExitCode {
    // A reader such as `head` may close the pipe.
    let _ = std::io::stdout().write_all(text.as_bytes());
    ExitCode::SUCCESS
}

fn fail(status: u8, error: &str) -> ExitCode {
    // `eprintln!` panics if it cannot write.
    let _ = writeln!(std::io::stderr(), "ferrule-nic: {error}");
    ExitCode::from(status)
}
