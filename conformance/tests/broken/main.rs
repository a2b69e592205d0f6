//! The suite bites: every plugin that is broken on purpose is caught, by the trial that claims to catch what it does.
//!
//! This program is both: started under the name of a plugin, from a folder that says how it is broken, it is that plugin;
//! else it is the test. A broken plugin is a sound one of [`FERRULE_BIN_DIR`](conformance::fixture::bin_dir) with one thing
//! spoiled; a wreck is broken so thoroughly that nearly every trial has to notice.

mod faults;
mod plugin;
mod wrecks;

use std::process::ExitCode;

use conformance::fixture::bin_dir;
use conformance::suite::deviations::Deviations;
use conformance::suite::run::{Ended, Plan, Profile};
use conformance::suite::subject::{Subject, subjects};
use libtest_mimic::{Arguments, Failed, Trial};

use faults::{Fault, faults};

fn main() -> ExitCode {
    if let Some(status) = plugin::play() {
        return status;
    }
    let faults = faults().map(|fault| {
        Trial::test(format!("{} is caught by {}", fault.name, fault.trial), move || {
            caught(fault).map_err(failed)
        })
    });
    let wrecks = Trial::test("every_trial_notices_a_wreck_or_has_a_fault_of_its_own", || {
        wrecks::every_trial_bites().map_err(failed)
    });
    libtest_mimic::run(&Arguments::from_args(), faults.chain([wrecks]).collect()).exit_code()
}

fn failed(error: anyhow::Error) -> Failed {
    format!("{error:#}").into()
}

fn caught(fault: &Fault) -> anyhow::Result<()> {
    let folder = plugin::folder(&bin_dir()?, &[fault.plugin], fault.name)?;
    let plan =
        plan(subjects(folder.path(), &[fault.judged.to_owned()], None, true)?, vec![fault.trial.to_owned()]);
    let ended = plan.run(|_, _| {});
    let exact = ended.iter().filter(|end| end.case.trial.id() == fault.trial);
    let verdicts: Vec<String> = exact.clone().map(shown).collect();
    anyhow::ensure!(
        exact.clone().any(|end| end.verdict.fault().is_some()),
        "{} of {} was not noticed: {verdicts:?}",
        fault.name,
        fault.plugin
    );
    Ok(())
}

/// A run of these trials, with every version and at every level.
fn plan(subjects: Vec<Subject>, filters: Vec<String>) -> Plan {
    Plan {
        subjects,
        versions: Vec::new(),
        profile: Profile::All,
        filters,
        jobs: 4,
        is_root: true,
        known: Deviations::default(),
    }
}

fn shown(end: &Ended<'_>) -> String {
    format!("{} {} {}: {:?}", end.case.subject.name, end.case.trial.id(), end.case.version, end.verdict)
}
