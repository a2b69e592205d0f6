//! `ferrule policy watch`.

use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use cni_common::call_log::rfc3339;
use cni_common::line::Line;
use ferrule_inspect::denials::{Options, Watch};
use ferrule_inspect::policy::Direction;
use ferrule_install::console::say;
use ferrule_install::signals::Signals;

use super::arguments::policy as arguments;

/// How often it looks.
const PAUSE: Duration = Duration::from_secs(1);

/// Prints denials until a signal.
pub(super) fn watch(arguments: &arguments::Watch) -> Result<u8> {
    let arguments::Watch { ends, namespace, ingress, egress, cache, node } = arguments;
    node.enter()?;
    let direction = match (ingress, egress) {
        (true, _) => Some(Direction::Ingress),
        (_, true) => Some(Direction::Egress),
        _ => None,
    };
    let (ends, namespace) = (ends.clone(), namespace.clone());
    let options = Options { results: cache.dir.join("results"), init: node.init, ends, namespace, direction };
    let signals = Signals::catch()?;
    let mut watch = Watch::open(options)?;
    while signals.check().is_ok() {
        thread::sleep(PAUSE);
        let time = rfc3339(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default());
        for line in watch.look()? {
            say(Line::new(format_args!("{time} {line}")));
        }
    }
    Ok(0)
}
