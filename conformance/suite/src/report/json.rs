//! The report as one JSON object.

use serde_json::{Value, json};

use super::human::again;
use super::summary::Counts;
use crate::run::{Ended, Verdict};

pub(super) fn report(ended: &[Ended<'_>], unmet: &[String]) -> String {
    let counts = Counts::of(ended);
    let report = json!({
        "summary": {
            "pass": counts.pass, "fail": counts.fail, "warn": counts.warn, "note": counts.note,
            "known": counts.known, "skip": counts.skip},
        "unmetDeviations": unmet,
        "cases": ended.iter().map(run).collect::<Vec<_>>(),
    });
    format!("{report:#}\n")
}

fn run(end: &Ended<'_>) -> Value {
    let (run, requirement) = (end.run, end.run.entry.requirement);
    let mut object = json!({
        "plugin": run.plugin.name,
        "section": run.entry.section.slug,
        "requirement": requirement.id,
        "level": requirement.level.to_string(),
        "trial": run.test_case.id(),
        "cniVersion": run.version.to_string(),
        "verdict": end.verdict.word(),
        "milliseconds": u64::try_from(end.time.as_millis()).unwrap_or(u64::MAX),
    });
    if let Some(mismatch) = end.verdict.mismatch() {
        object["says"] = requirement.says.into();
        object["source"] = requirement.source.into();
        object["expected"] = mismatch.expected.clone().into();
        object["seen"] = mismatch.seen.clone().into();
        object["call"] = mismatch.call.clone().into();
        object["again"] = again(end).into();
    }
    match &end.verdict {
        Verdict::Skip(why) | Verdict::Known(_, why) | Verdict::Broken(why) => {
            object["reason"] = why.clone().into()
        }
        Verdict::Pass | Verdict::Fail(_) | Verdict::Warn(_) | Verdict::Note(_) => {}
    }
    object
}
