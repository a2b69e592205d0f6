//! Tests of the suite with mutants: each mutant must fail the test case that it names.
//!
//! This program is both the test and the mutants. Started under the name of a plugin, from a folder whose
//! file `.broken` names a mutant, it acts as that mutant; otherwise it runs the tests. A mutant is a correct
//! plugin of [`FERRULE_BIN_DIR`](cni_lab::bin_dir) with one deliberate fault; a crude mutant
//! does almost nothing right, so nearly every test case must fail.

mod crude_mutants;
mod mutants;
mod plugin;

use std::process::ExitCode;

use cni_conformance::deviations::Deviations;
use cni_conformance::plugin_under_test::{PluginUnderTest, plugins_under_test};
use cni_conformance::run::{Ended, Plan, Profile};
use cni_lab::bin_dir;
use cni_runner::Version;
use libtest_mimic::{Arguments, Failed, Trial};

use mutants::{Mutant, mutants};

fn main() -> ExitCode {
    if let Some(status) = plugin::act_as_mutant() {
        return status;
    }
    let mutants = mutants().map(|mutant| {
        Trial::test(format!("{} is caught by {}", mutant.name, mutant.test_case), move || {
            caught(mutant).map_err(failed)
        })
    });
    let crude_mutants = Trial::test("every_test_case_fails_for_some_mutant", || {
        crude_mutants::every_test_case_can_fail().map_err(failed)
    });
    libtest_mimic::run(&Arguments::from_args(), mutants.chain([crude_mutants]).collect()).exit_code()
}

fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}

/// Judges a mutant in one version after another, the newest first, until one catches it.
fn caught(mutant: &Mutant) -> anyhow::Result<()> {
    let folder = plugin::folder(&bin_dir()?, &[mutant.plugin], mutant.name)?;
    let mut plan = plan(
        plugins_under_test(folder.path(), &[mutant.judged.to_owned()], None, true)?,
        vec![mutant.test_case.to_owned()],
    );
    let mut verdicts = Vec::new();
    for version in Version::PUBLISHED.into_iter().rev() {
        plan.versions = vec![version];
        let ended = plan.run(|_, _| {});
        let exact = ended.iter().filter(|end| end.run.test_case.id() == mutant.test_case);
        if exact.clone().any(|end| end.verdict.mismatch().is_some()) {
            return Ok(());
        }
        verdicts.extend(exact.map(shown));
    }
    anyhow::bail!("the mutant {} of {} passed: {verdicts:?}", mutant.name, mutant.plugin)
}

/// A run of these test cases, with all versions and levels.
fn plan(plugins: Vec<PluginUnderTest>, filters: Vec<String>) -> Plan {
    Plan {
        plugins,
        versions: Vec::new(),
        profile: Profile::All,
        filters,
        jobs: 4,
        is_root: true,
        known: Deviations::default(),
    }
}

fn shown(end: &Ended<'_>) -> String {
    format!("{} {} {}: {:?}", end.run.plugin.name, end.run.test_case.id(), end.run.version, end.verdict)
}
