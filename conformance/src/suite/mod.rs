//! The conformance suite: requirements as data, trials that show them, and a run that judges a folder of plugins.
//!
//! [`requirements`] is the table of what is demanded, [`trials`] has for each row what is done to a plugin to see
//! whether it keeps it, and [`catalog`] holds the two together. A [`lab`] is the world of one trial: a node of its own, a
//! [`call`] of the plugin on trial, a [`stub`] for the plugin that it delegates to. [`run`] makes the trials and
//! [`report`] tells how they ended.

pub mod call;
pub mod cases;
pub mod catalog;
pub mod deviations;
pub mod kernel;
pub mod layout;
pub mod outcome;
pub mod plugin_under_test;
pub mod report;
pub mod requirement;
pub mod requirements;
pub mod run;
pub mod stub;
pub mod test_case;
pub mod test_context;
