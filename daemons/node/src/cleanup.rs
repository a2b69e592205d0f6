//! `ferrule-node cleanup`: removes what the daemon made. Needs neither the API server nor a state file.

use std::io::ErrorKind;
use std::time::{Duration, Instant};
use std::{fs, thread};

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::netlink::Socket;
use ferrule_kit::cluster::{LOCK_FILE, STATUS_FILE};
use ferrule_policy_kit::ask::SOCKET_FILE;

use crate::arguments::Options;
use crate::{
    conflist, forward_chain, forwarding, guard, masquerade, plan_file, policy, proof, routes, status, vxlan,
    wireguard,
};

/// A process that a daemon was starting when it was killed has the daemon's lock until its exec.
const PATIENCE: Duration = Duration::from_secs(2);

/// Removes the conflist first: new pods cannot start without it. Returns the report.
///
/// # Errors
/// A daemon runs and would make everything again, or some objects could not be removed; the others are gone.
pub fn run(options: &Options) -> Result<String> {
    let begin = Instant::now();
    while status::runs(&options.state) {
        if begin.elapsed() > PATIENCE {
            bail!("ferrule-node runs (lock {}/lock): stop it first", options.state.display());
        }
        thread::sleep(Duration::from_millis(20));
    }
    let path = &options.conflist;
    let conflist = conflist::file::remove(path)
        .map(|is_gone| listed(is_gone, || format!("conflist {}", path.display())));
    let steps = [
        conflist,
        proof::cleanup(options),
        routes(),
        vxlan::cleanup(),
        wireguard::cleanup(),
        masquerade::cleanup(),
        guard::cleanup(),
        policy::cleanup(),
        plan_file(options),
        forward_chain::cleanup(),
        forwarding::cleanup(),
        state(options),
    ];
    let (mut report, mut errors) = (String::new(), Vec::new());
    for step in steps {
        match step {
            Ok(removed) => removed.iter().for_each(|what| report.push_str(&format!("removed {what}\n"))),
            Err(error) => errors.push(format!("{error:#}")),
        }
    }
    match errors.is_empty() {
        true if report.is_empty() => Ok("nothing to remove\n".to_owned()),
        true => Ok(report),
        false => bail!("{}", errors.join("; ")),
    }
}

fn listed(is_gone: bool, what: impl FnOnce() -> String) -> Vec<String> {
    is_gone.then(what).into_iter().collect()
}

fn routes() -> Result<Vec<String>> {
    let count =
        Socket::route().and_then(|mut socket| routes::remove_all(&mut socket)).context("remove routes")?;
    Ok(listed(count > 0, || format!("{count} routes")))
}

fn plan_file(options: &Options) -> Result<Vec<String>> {
    let path = &options.plan_file;
    let is_gone = plan_file::remove(path).with_context(|| format!("remove {}", path.display()))?;
    Ok(listed(is_gone, || format!("file {}", path.display())))
}

/// The files that the daemon makes, and the folder if nothing else is in it.
fn state(options: &Options) -> Result<Vec<String>> {
    let folder = &options.state;
    let mut removed = Vec::new();
    for name in [STATUS_FILE, status::PENDING, SOCKET_FILE, LOCK_FILE] {
        let path = folder.join(name);
        match fs::remove_file(&path) {
            Ok(()) => removed.push(format!("file {}", path.display())),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error).with_context(|| format!("remove {}", path.display())),
        }
    }
    let _ = fs::remove_dir(folder);
    Ok(removed)
}
