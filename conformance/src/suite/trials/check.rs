//! Trials of the section "check".

use crate::suite::trial::Trial;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[];
