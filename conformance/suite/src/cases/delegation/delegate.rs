//! How a plugin finds and calls its delegate.

use std::collections::BTreeMap;
use std::fs;

use serde_json::{Value, json};

use crate::call::Call;
use crate::outcome::{TestResult, ensure, skip};
use crate::stub::{Recorded, Reply, Stub};
use crate::test_context::TestContext;
use cni_runner::Version;

/// CNI_ARGS with a key that no plugin knows.
const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAME=web-0";

pub(super) fn first_folder(test: &TestContext<'_>) -> TestResult {
    let (empty, near, far) = (test.dir().join("empty"), test.dir().join("near"), test.dir().join("far"));
    for folder in [&empty, &near, &far] {
        fs::create_dir(folder)?;
    }
    let (near_stub, far_stub) = (Stub::new(&near, "twice")?, Stub::new(&far, "twice")?);
    near_stub.on("ADD", Reply::Json(test.ipam_result()))?;
    far_stub.on("ADD", Reply::Json(test.ipam_result()))?;
    // The delegate may have a delegate too, which is in the plugin's folder.
    let path = [&empty, &near, &far, &test.plugin.dir].map(|folder| folder.display().to_string()).join(":");
    let target = test.target("pod1")?;
    let answer = test.add(&target).key("ipam", json!({"type": "twice"})).var("CNI_PATH", path).run()?;
    answer.ok()?;
    let counts = (near_stub.calls()?.len(), far_stub.calls()?.len());
    answer.ensure(
        counts == (1, 0),
        "one call of the delegate in the first folder that has it",
        format!("{counts:?}"),
    )
}

pub(super) fn folder_of_that_name(test: &TestContext<'_>) -> TestResult {
    let (near, far) = (test.dir().join("near"), test.dir().join("far"));
    fs::create_dir_all(near.join("other-ipam"))?;
    fs::create_dir(&far)?;
    let stub = Stub::new(&far, "other-ipam")?;
    stub.on("ADD", Reply::Json(test.ipam_result()))?;
    let target = test.target("pod1")?;
    let path = [&near, &far, &test.plugin.dir].map(|folder| folder.display().to_string()).join(":");
    let answer = test.add(&target).key("ipam", json!({"type": "other-ipam"})).var("CNI_PATH", path).run()?;
    answer.ok()?;
    answer.ensure(stub.calls()?.len() == 1, "one call of the delegate", stub.calls()?.len())
}

/// Calls ADD, CHECK and DEL, each modified by `change`, and passes each delegated call to `seen`.
fn life<'a>(
    test: &'a TestContext<'_>,
    change: fn(Call<'a>) -> Call<'a>,
    mut seen: impl FnMut(&Call<'a>, &Recorded) -> TestResult,
) -> TestResult {
    let target = test.target("pod1")?;
    let mut result = Value::Null;
    for verb in ["ADD", "CHECK", "DEL"] {
        let call = match verb {
            "ADD" => test.add(&target),
            "CHECK" if test.version < Version::V0_4_0 => continue,
            "CHECK" => test.check(&target, &result),
            _ => test.del(&target, Some(&result)),
        };
        let call = change(call);
        let before = test.ipam()?.calls()?.len();
        let answer = call.run()?;
        answer.ok()?;
        if verb == "ADD" {
            result = answer.document()?;
        }
        let calls = test.ipam()?.calls()?;
        match calls.get(before) {
            Some(recorded) => seen(&call, recorded)?,
            None if verb == "ADD" => return answer.mismatch("ADD to be delegated", "it was not"),
            None => {}
        }
    }
    Ok(())
}

fn noted(mut call: Call<'_>) -> Call<'_> {
    call.exec.args = ARGS.to_owned();
    call.var("CNI_TRIAL_NOTE", "a=b c")
}

fn extended(call: Call<'_>) -> Call<'_> {
    call.key("trial.example/note", json!({"nested": [1, null, {"x": "\u{e9}<&>"}]}))
}

pub(super) fn environment(test: &TestContext<'_>) -> TestResult {
    life(test, noted, |call, recorded| {
        let command = call.exec.to_command();
        let variables = command.get_envs().filter_map(|(name, value)| {
            Some((name.to_string_lossy().into_owned(), value?.to_string_lossy().into_owned()))
        });
        let sent: BTreeMap<String, String> = variables.filter(|(name, _)| name.starts_with("CNI_")).collect();
        ensure(sent == recorded.env, format!("{sent:?}"), format!("{:?}", recorded.env))
    })
}

pub(super) fn configuration(test: &TestContext<'_>) -> TestResult {
    if test.plugin.description.rewrites {
        return skip("it makes its delegate's configuration itself");
    }
    life(test, extended, |call, recorded| {
        let (sent, seen) = (
            serde_json::from_slice::<Value>(&call.input())?,
            serde_json::from_slice::<Value>(&recorded.stdin),
        );
        let is_same = seen.as_ref().is_ok_and(|seen| *seen == sent);
        ensure(is_same, format!("the delegate to read {sent}"), String::from_utf8_lossy(&recorded.stdin))
    })
}

pub(super) fn standard_error(test: &TestContext<'_>) -> TestResult {
    let ipam = test.ipam()?;
    ipam.on("ADD", Reply::Talkative("the pool is nearly empty", test.ipam_result()))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    answer.ok()?;
    let is_there = answer.output.stderr_text().contains("the pool is nearly empty");
    answer.ensure(is_there, "the delegate's text on standard error", answer.shown())
}

pub(super) fn verbs(test: &TestContext<'_>) -> TestResult {
    let mut verbs = Vec::new();
    life(
        test,
        |call| call,
        |_, recorded| {
            verbs.push(recorded.verb().to_owned());
            Ok(())
        },
    )?;
    if test.version >= Version::V1_1_0 {
        let answer = test.call("GC").key("cni.dev/valid-attachments", json!([])).run()?;
        answer.ok()?;
        verbs.extend(test.ipam()?.verbs()?.into_iter().filter(|verb| verb == "GC"));
    }
    let expected = if test.version >= Version::V1_1_0 {
        &["ADD", "CHECK", "DEL", "GC"][..]
    } else {
        &["ADD", "CHECK", "DEL"]
    };
    ensure(verbs == expected, format!("{expected:?}"), format!("{verbs:?}"))
}

pub(super) fn refused_check(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.ipam()?.on("CHECK", Reply::Error { code: 111, msg: "the address is unknown", status: 1 })?;
    test.check(&target, &result).run()?.refused()?;
    Ok(())
}

pub(super) fn refused_del(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.ipam()?.on("DEL", Reply::Error { code: 111, msg: "the pool is locked", status: 1 })?;
    test.del(&target, Some(&result)).run()?.refused()?;
    Ok(())
}

pub(super) fn refused_gc(test: &TestContext<'_>) -> TestResult {
    if test.version < Version::V1_1_0 {
        return skip("GC begins with version 1.1.0");
    }
    test.ipam()?.on("GC", Reply::Error { code: 111, msg: "the pool is locked", status: 1 })?;
    test.call("GC").key("cni.dev/valid-attachments", json!([])).run()?.refused()?;
    Ok(())
}
