//! Starts the process that makes or removes the endpoint.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, getpid};
use tokio::io::AsyncWriteExt as _;
use tokio::process::Command;
use tokio::time::timeout;

use super::endpoint::{self, NETNS, Outcome, Request, Wanted};
use crate::arguments::{ENDPOINT, Options};
use crate::housekeeping::INSTALLED;

/// How long the whole work may take. Each plugin has a limit of its own.
const LIMIT: Duration = Duration::from_secs(180);

/// The request with these options, to a process that [`call`] starts.
pub(super) fn request(options: &Options, wanted: Option<Wanted>) -> Request {
    Request {
        state: options.state.clone(),
        plugins: plugins(options),
        root: options.root.clone(),
        wanted,
        daemon: Some(getpid().as_raw()),
    }
}

fn plugins(options: &Options) -> PathBuf {
    let named = options.plugins.clone().or_else(|| Some(options.ferrule.as_ref()?.parent()?.to_owned()));
    named.unwrap_or_else(|| Path::new(INSTALLED).parent().unwrap_or(Path::new("/")).to_owned())
}

/// Looks for a plugin.
///
/// # Errors
/// It is not there, or cannot be seen.
pub fn has_plugin(options: &Options, name: &str) -> Result<(), String> {
    let path = plugins(options).join(name);
    // It may be a link that leads elsewhere in this mount namespace.
    let found = std::fs::symlink_metadata(options.seen(&path));
    found.map(drop).map_err(|error| format!("{}: {error}", path.display()))
}

/// Runs the process to its end.
pub(super) async fn call(request: Request) -> Outcome {
    run(&request).await.unwrap_or_else(|error| Outcome::Failed(format!("{error:#}")))
}

async fn run(request: &Request) -> Result<Outcome> {
    let mut command = Command::new("/proc/self/exe");
    // A group of its own, so that the plugins end with it.
    command.arg(ENDPOINT).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    let mut child = command.spawn().context("start the process for the health endpoint")?;
    let group = child.id().and_then(|id| i32::try_from(id).ok());
    let work = async {
        if let Some(mut pipe) = child.stdin.take() {
            pipe.write_all(&serde_json::to_vec(request)?).await?;
        }
        let output = child.wait_with_output().await?;
        serde_json::from_slice(&output.stdout)
            .with_context(|| format!("the process for the health endpoint has ended ({})", output.status))
    };
    match timeout(LIMIT, work).await {
        Ok(outcome) => outcome,
        Err(_) => {
            if let Some(group) = group {
                let _ = kill(Pid::from_raw(-group), Signal::SIGKILL);
            }
            bail!("making the health endpoint took longer than {LIMIT:?}")
        }
    }
}

/// Removes the endpoint. Returns what was removed, for the report.
///
/// # Errors
/// A part could not be removed.
pub fn cleanup(options: &Options) -> Result<Vec<String>> {
    match endpoint::perform(&Request { daemon: None, ..request(options, None) }) {
        Outcome::Failed(why) | Outcome::Refused(why) => bail!("remove the health endpoint: {why}"),
        outcome => {
            endpoint::forget(&options.state)?;
            Ok(match outcome {
                Outcome::Removed(true) => vec![format!("health endpoint {}", NETNS[0])],
                _ => Vec::new(),
            })
        }
    }
}
