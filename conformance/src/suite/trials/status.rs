//! STATUS: whether a plugin is ready to serve ADD.

use crate::suite::lab::Lab;
use crate::suite::outcome::Trialled;
use crate::suite::subject::{PLUGINS, STATEFUL};
use crate::suite::trial::Trial;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("STA-01", "a-plugin-in-good-order-is-ready", PLUGINS, ready),
    Trial::new("STA-06", "an-add-works-although-status-was-never-asked", STATEFUL, never_asked),
    Trial::new("STA-07", "nothing-is-changed", PLUGINS, harmless),
];

fn ready(lab: &Lab<'_>) -> Trialled {
    lab.call("STATUS").run()?.silent()
}

fn never_asked(lab: &Lab<'_>) -> Trialled {
    lab.attached(&lab.target("pod1")?)?;
    Ok(())
}

fn harmless(lab: &Lab<'_>) -> Trialled {
    let before = lab.snapshot()?;
    let answer = lab.call("STATUS").run()?;
    answer.ok()?;
    let diff = before.diff(&lab.snapshot()?);
    answer.ensure(diff.is_empty(), "an unchanged node", diff)
}
