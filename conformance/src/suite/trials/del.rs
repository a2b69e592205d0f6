//! Trials of the section "del".

use crate::suite::trial::Trial;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[];
