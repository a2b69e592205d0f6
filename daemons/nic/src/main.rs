//! The program `ferrule-nic`.

use std::io;
use std::process::ExitCode;

use cni_common::line::Text;
use ferrule_daemon::program::{self, Failure};
use ferrule_kubelet::SOCKET;
use ferrule_nic::arguments::{Arguments, Command, Options};
use ferrule_nic::config::Config;
use ferrule_nic::daemon;
use ferrule_nic::discovery::Watch;
use ferrule_nic::dra::list;
use ferrule_nic::report;
use ferrule_nic::serve::owners;
use ferrule_nic::tracker::Tracker;

fn main() -> ExitCode {
    program::abort_on_panic();
    program::run(|Arguments { command, options, generate }| {
        if let Some(dir) = generate {
            return Ok(program::generate::<Arguments>(&dir)?);
        }
        let config = || daemon::read(&options).map_err(Failure::bad_config);
        let text = match command {
            None => {
                program::block_on(daemon::run(config()?, &options))?;
                return Ok(ExitCode::SUCCESS);
            }
            Some(Command::Devices { json }) => program::block_on(devices(config()?, &options, json))?,
            Some(Command::Claims { json }) => claims(&options, json)?,
        };
        Ok(program::print(&text))
    })
}

async fn devices(config: Config, options: &Options, json: bool) -> io::Result<Text> {
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
