//! Trials of the section "capabilities".

use crate::suite::trial::Trial;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[];
