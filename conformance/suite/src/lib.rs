//! The conformance suite, which judges a folder of plugins.
//!
//! [`requirements`] is the table of requirements, [`cases`] has the test cases of each, and [`catalog`] joins
//! the two. A test case gets a [`test_context`]: a private node, [`call`]s of the plugin under test, and a
//! [`stub`] for the IPAM plugin that it delegates to. [`run`] runs the test cases and [`report`] prints the
//! results.

pub mod call;
pub mod cases;
pub mod catalog;
pub mod deviations;
pub mod kernel;
pub mod layout;
pub mod outcome;
pub mod own_device;
pub mod plugin_under_test;
pub mod report;
pub mod requirement;
pub mod requirements;
pub mod run;
pub mod stub;
pub mod stub_program;
pub mod test_case;
pub mod test_context;
