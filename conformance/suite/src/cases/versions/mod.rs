//! Test cases of version negotiation and of VERSION.

mod command;

use serde_json::{Value, json};

use crate::call::Answer;
use crate::layout::{self, Of};
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::{ANY, PLUGINS, Role};
use crate::test_case::TestCase;
use crate::test_context::{Target, TestContext};
use cni_runner::Version;

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("VER-01", "absent-empty-and-null-mean-the-oldest", PLUGINS, without_version),
    TestCase::new("VER-02", "a-version-that-nobody-has", ANY, unsupported),
    TestCase::new("VER-03", "a-version-in-another-spelling", ANY, misspelled),
    TestCase::new("VER-04", "a-version-that-is-no-string", ANY, no_string),
    TestCase::new("VER-05", "check-before-0.4.0", PLUGINS, check_too_early),
    TestCase::new("VER-05", "gc-and-status-before-1.1.0", PLUGINS, gc_and_status_too_early),
    TestCase::new("VER-06", "the-result-is-of-the-configurations-version", PLUGINS, same_version)
        .each_version(),
    TestCase::new("VER-07", "the-result-of-a-usual-add", PLUGINS, right_layout).each_version(),
    TestCase::new("VER-08", "a-list-of-versions-besides", PLUGINS, list_besides),
    TestCase::new("VCMD-01", "the-answer-has-both-keys", ANY, command::answers).anywhere(),
    TestCase::new("VCMD-02", "asked-with-each-version", ANY, command::echoes).anywhere(),
    TestCase::new("VCMD-03", "nothing-to-read", ANY, command::empty_input).anywhere(),
    TestCase::new("VCMD-03", "no-json-to-read", ANY, command::junk_input).anywhere(),
    TestCase::new("VCMD-03", "an-input-that-is-never-closed", ANY, command::open_input).anywhere(),
    TestCase::new("VCMD-04", "the-versions-are-written-out", ANY, command::usable).anywhere(),
    TestCase::new("VCMD-06", "nothing-is-changed", ANY, command::harmless),
    TestCase::new("VCMD-06", "an-unprivileged-user-asks", ANY, command::unprivileged),
    TestCase::new("VCMD-07", "an-attachment-from-add-to-del", PLUGINS, command::works).each_version(),
];

fn without_version(test: &TestContext<'_>) -> TestResult {
    let has_oldest = test.plugin.versions.contains(&Version::V0_1_0);
    if has_oldest && test.plugin.role == Role::Chained {
        return skip("chains begin with version 0.3.0");
    }
    if test.plugin.delegates {
        test.ipam_gives(&layout::one_address(), Version::V0_1_0)?;
    }
    let of = if test.plugin.role == Role::Ipam { Of::Ipam } else { Of::Interface };
    for (number, value) in [None, Some(json!("")), Some(Value::Null)].into_iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        let call = test.add(&target).without_key("cniVersion");
        let call = match value {
            Some(value) => call.key("cniVersion", value),
            None => call,
        };
        let answer = call.run()?;
        if has_oldest {
            let problems = layout::problems(&answer.result()?, Version::V0_1_0, of);
            answer.ensure(problems.is_empty(), "a result of 0.1.0", problems.join("; "))?;
        } else {
            answer.refused()?;
        }
    }
    Ok(())
}

/// Calls ADD, CHECK, DEL, STATUS and GC, as far as the test's version has them, with this `cniVersion`.
fn with_version(test: &TestContext<'_>, target: &Target, value: &Value) -> Result<Vec<Answer>, Stop> {
    let mut calls = vec![test.add(target), test.call_for("DEL", target)];
    if test.version >= Version::V0_4_0 {
        calls.push(test.call_for("CHECK", target));
    }
    if test.version >= Version::V1_1_0 {
        calls.extend([test.call("STATUS"), test.call("GC")]);
    }
    calls.into_iter().map(|call| call.key("cniVersion", value.clone()).run()).collect()
}

fn unsupported(test: &TestContext<'_>) -> TestResult {
    let declared = command::declared(test)?;
    let target = test.target("pod1")?;
    for version in ["0.0.1", "0.3.2", "0.5.0", "1.2.0", "2.0.0"] {
        if declared.iter().any(|known| known == version) {
            continue;
        }
        for answer in with_version(test, &target, &json!(version))? {
            answer.refused()?.code_in(&[1])?;
        }
    }
    Ok(())
}

fn misspelled(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for version in ["0.4", "1.0", "v1.0.0", " 1.0.0", "1.0.0 ", "1.0.00", "1.0.0.0", "newest"] {
        for answer in with_version(test, &target, &json!(version))? {
            answer.refused()?;
        }
    }
    Ok(())
}

fn no_string(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for version in [json!(1), json!(1.0), json!(true), json!(["1.0.0"]), json!({"version": "1.0.0"})] {
        for answer in with_version(test, &target, &version)? {
            answer.refused()?.code_in(&[6])?;
        }
    }
    Ok(())
}

/// The result is valid for the old version, so that only the version itself is wrong.
fn check_too_early(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for &version in test.plugin.versions.iter().filter(|version| **version < Version::V0_4_0) {
        let call = test.check(&target, &layout::render(&result, version));
        call.key("cniVersion", version.to_string()).run()?.refused()?;
    }
    Ok(())
}

fn gc_and_status_too_early(test: &TestContext<'_>) -> TestResult {
    for &version in test.plugin.versions.iter().filter(|version| **version < Version::V1_1_0) {
        for verb in ["GC", "STATUS"] {
            test.call(verb).key("cniVersion", version.to_string()).run()?.refused()?;
        }
    }
    Ok(())
}

fn same_version(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let version = answer.result()?["cniVersion"].clone();
    answer.ensure(version == test.version.to_string(), format!("a result of {}", test.version), version)
}

fn right_layout(test: &TestContext<'_>) -> TestResult {
    let of = if test.plugin.role == Role::Ipam { Of::Ipam } else { Of::Interface };
    let answer = test.add(&test.target("pod1")?).run()?;
    let problems = layout::problems(&answer.result()?, test.version, of);
    answer.ensure(problems.is_empty(), format!("the result layout of {}", test.version), problems.join("; "))
}

/// A runtime may pass `cniVersions` on, with versions that the plugin does not know; the plugin must use
/// `cniVersion`.
fn list_besides(test: &TestContext<'_>) -> TestResult {
    let call = test.add(&test.target("pod1")?).key("cniVersions", json!(["0.1.0", "1.0.0", "99.0.0"]));
    let answer = call.run()?;
    let version = answer.result()?["cniVersion"].clone();
    answer.ensure(version == test.version.to_string(), format!("a result of {}", test.version), version)
}
