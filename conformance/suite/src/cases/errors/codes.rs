//! Error codes.

use std::fs::File;

use anyhow::Context as _;
use serde_json::json;

use super::provoked::failures;
use crate::outcome::{TestResult, skip};
use crate::test_context::TestContext;

/// The codes below 100 that any version of the specification defines, except 50 and 51, which only STATUS
/// uses.
const KNOWN: [u64; 8] = [1, 2, 3, 4, 5, 6, 7, 11];
/// The first code of a plugin's own codes.
pub(super) const OWN: u64 = 100;

/// Whether a failed ADD may have this code. No version of the specification defines code 8; the reference
/// uses it only for the plugin's own namespace, which these test cases do not provoke.
pub(super) fn is_allowed(code: u64) -> bool {
    code >= OWN || KNOWN.contains(&code)
}

pub(super) fn known_codes(test: &TestContext<'_>) -> TestResult {
    for (_, answer) in failures(test)? {
        // ERR-01 requires an error object.
        let Some(code) = answer.output.document().ok().and_then(|object| object["code"].as_u64()) else {
            continue;
        };
        answer.ensure(is_allowed(code), "a code of the specification or a code from 100 on", code)?;
    }
    Ok(())
}

pub(super) fn fitting_codes(test: &TestContext<'_>) -> TestResult {
    for (provocation, answer) in failures(test)? {
        if let Some(code) = provocation.code {
            answer.refused()?.code_in(&[code])?;
        }
    }
    Ok(())
}

/// Standard input is a folder: opening it succeeds, reading fails.
pub(super) fn unreadable_input(test: &TestContext<'_>) -> TestResult {
    let call = test.add(&test.target("pod1")?);
    let mut command = call.exec.to_command();
    command.stdin(File::open(test.dir()).context("open a folder")?);
    let child = test.spawn(&mut command).context("start the plugin")?;
    let answer = call.answered(child.wait_with_output().context("wait for the plugin")?);
    answer.refused()?.code_in(&[5])?;
    Ok(())
}

/// Fields of the reference's bridge that another bridge plugin may not support. An error with code 2 must
/// name the field.
pub(super) fn unsupported_field(test: &TestContext<'_>) -> TestResult {
    let mut is_shown = false;
    let fields = [("vlan", json!(107)), ("macspoofchk", json!(true)), ("portIsolation", json!(true))];
    for (number, (field, value)) in fields.into_iter().enumerate() {
        let answer = test.add(&test.target(&format!("pod{number}"))?).key(field, value.clone()).run()?;
        if answer.output.success() {
            continue;
        }
        let refusal = answer.refused()?;
        if refusal.code == 2 {
            is_shown = true;
            refusal.mentions(field)?.mentions(&value.to_string())?;
        }
    }
    if is_shown { Ok(()) } else { skip("the plugin refuses none of the tested fields with code 2") }
}

/// Values that decode but fail validation.
pub(super) fn invalid_value(test: &TestContext<'_>) -> TestResult {
    let (key, value) = match test.plugin.name.as_str() {
        "bandwidth" => ("ingressBurst", json!(0)),
        "bridge" => ("promiscMode", json!(true)),
        "host-local" => (
            "ipam",
            json!({"type": "host-local",
                "ranges": [[{"subnet": "10.77.0.0/24", "rangeStart": "10.78.0.5", "rangeEnd": "10.78.0.9"}]]}),
        ),
        "macvlan" => ("mode", json!("sideways")),
        _ => (
            "runtimeConfig",
            json!({"portMappings": [{"hostPort": 8080, "containerPort": 0, "protocol": "tcp"}]}),
        ),
    };
    let mut call = test.add(&test.target("pod1")?).key(key, value);
    if test.plugin.name == "bridge" {
        call = call.key("hairpinMode", true);
    }
    call.run()?.refused()?.code_in(&[7])?;
    Ok(())
}
