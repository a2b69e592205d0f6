//! Trials of the section "config".

use crate::suite::trial::Trial;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[];
