//! What `ferrule repair` does with one plugin of an attachment.

use super::dispatch::{check_version, on_attachment};
use super::{AddRequest, Environment, Plugin, Verb};
use crate::spec::{CniError, NetConf};

/// The outcome of [`Delegate::repair`](super::Delegate::repair).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// CHECK agrees.
    Sound,
    /// CHECK refuses this, which the plugin may be able to make again.
    Possible(CniError),
    /// CHECK has refused this, and agrees now.
    Done(CniError),
    /// CHECK refuses this, and it cannot be made again.
    Failed(CniError),
    /// The program is another project's, or of another build.
    Foreign,
}

pub(super) fn repair(plugin: &Plugin, env: &Environment, config: &NetConf, dry_run: bool) -> Repair {
    let outcome = env.validate(Verb::Check).and_then(|()| {
        let version = check_version(plugin, Verb::Check, config)?;
        on_attachment(env, config, version, |call| Ok(mend(plugin, call, dry_run)))
    });
    outcome.unwrap_or_else(Repair::Failed)
}

fn mend(plugin: &Plugin, call: &AddRequest<'_>, dry_run: bool) -> Repair {
    let Err(why) = (plugin.check)(call) else { return Repair::Sound };
    let failed =
        |because: &str| Repair::Failed(CniError::internal(format!("{why}; cannot be made again: {because}")));
    match plugin.repair {
        None => failed(&format!("{} makes nothing again", plugin.name)),
        Some(_) if dry_run => Repair::Possible(why),
        Some(repair) => match repair(call).and_then(|()| (plugin.check)(call)) {
            Ok(()) => Repair::Done(why),
            Err(because) => failed(&because.to_string()),
        },
    }
}
