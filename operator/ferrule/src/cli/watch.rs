//! `ferrule policy watch`.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use cni_common::call_log::rfc3339;
use cni_common::line::Line;
use ferrule_inspect::denials::Watch;
use ferrule_install::console::say;
use ferrule_install::signals::Signals;

/// How often it looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Prints denials until a signal.
pub(super) fn watch() -> Result<u8> {
    let signals = Signals::catch()?;
    let mut watch = Watch::open()?;
    while signals.check().is_ok() {
        thread::sleep(PAUSE);
        let time = rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        for denial in watch.look()? {
            say(Line::new(format_args!("{time} {denial}")));
        }
    }
    Ok(0)
}
