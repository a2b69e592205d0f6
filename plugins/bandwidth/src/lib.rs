//! The `bandwidth` CNI plugin: limits what a container receives and sends, behind any plugin that gives it a veth.
//!
//! What it receives is shaped where the host's link sends it, what it sends at an IFB that it is sent to first. [`config`] reads
//! what is asked for, [`shape`] makes the kernel's numbers of it, [`owner`] tells whose an IFB is, and [`plan`] what to do; all
//! four without the kernel. [`state`] looks, [`steps`] sends; [`add`], [`check`], [`del`], [`gc`] and [`status`] tell each verb's
//! story.

pub mod config;
pub mod owner;
pub mod plan;
pub mod shape;

pub mod add;
pub mod check;
pub mod del;
pub mod gc;
pub mod state;
pub mod status;
pub mod steps;

use cni_common::plugin::{Attach, Collect, Detach, Plugin, Probe};
use cni_common::spec::{AddResult, CniError, SpecVersion};

/// The plugin.
pub struct Bandwidth;

impl Plugin for Bandwidth {
    fn name(&self) -> &'static str {
        "bandwidth"
    }

    // There are no chains before 0.3.0, and no interfaces in results.
    fn spec_versions(&self) -> &'static [SpecVersion] {
        &[
            SpecVersion::V0_3_0,
            SpecVersion::V0_3_1,
            SpecVersion::V0_4_0,
            SpecVersion::V1_0_0,
            SpecVersion::V1_1_0,
        ]
    }

    fn add(&self, call: &Attach<'_>) -> Result<AddResult, CniError> {
        add::add(call)
    }

    fn check(&self, call: &Attach<'_>) -> Result<(), CniError> {
        check::check(call)
    }

    fn del(&self, call: &Detach<'_>) -> Result<(), CniError> {
        del::del(call)
    }

    fn gc(&self, call: &Collect<'_>) -> Result<(), CniError> {
        gc::gc(call)
    }

    fn status(&self, call: &Probe<'_>) -> Result<(), CniError> {
        config::Conf::read(call.config)?;
        status::status()
    }
}
