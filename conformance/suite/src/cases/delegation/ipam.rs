//! Results of IPAM plugins, and how other plugins use them.

use std::collections::BTreeSet;
use std::thread;

use serde_json::{Value, json};

use crate::cases::tools::node_in_use;
use crate::layout::{self, Of, addresses, list};
use crate::outcome::{Stop, TestResult, ensure, mismatch, skip};
use crate::stub::Reply;
use crate::test_context::{Target, TestContext};
use cni_runner::Version;

/// How many containers are added at the same time.
const CROWD: usize = 20;

pub(super) fn decides(test: &TestContext<'_>) -> TestResult {
    let model = json!({
        "ips": [{"address": "10.77.0.99/24", "gateway": "10.77.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "198.51.100.0/24", "gw": "10.77.0.7"}]});
    let reply = layout::render(&model, test.version);
    test.ipam()?.on("ADD", Reply::Json(reply.clone()))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    let result = answer.result()?;
    let seen = addresses(&result);
    answer.ensure(seen == ["10.77.0.99/24"], "the delegate's address, 10.77.0.99/24", format!("{seen:?}"))?;
    let (gateway, routes) = if test.version < Version::V0_3_0 {
        (&result["ip4"]["gateway"], &result["ip4"]["routes"])
    } else {
        (&result["ips"][0]["gateway"], &result["routes"])
    };
    answer.ensure(gateway == "10.77.0.1", "the delegate's gateway, 10.77.0.1", gateway)?;
    for wanted in ["0.0.0.0/0", "198.51.100.0/24"] {
        let is_there = routes.as_array().into_iter().flatten().any(|route| route["dst"] == wanted);
        answer.ensure(is_there, format!("the delegate's route to {wanted}"), routes)?;
    }
    Ok(())
}

pub(super) fn slow(test: &TestContext<'_>) -> TestResult {
    test.ipam()?.on("ADD", Reply::Slow(1, test.ipam_result()))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    let seen = addresses(&answer.result()?);
    answer.ensure(seen == ["10.77.0.2/24"], "the delegate's address, 10.77.0.2/24", format!("{seen:?}"))
}

pub(super) fn gives_address(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    answer.ensure(!addresses(&answer.result()?).is_empty(), "a result with an address", answer.shown())
}

pub(super) fn no_interfaces(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let result = answer.result()?;
    answer.ensure(list(&result, "interfaces").next().is_none(), "a result without `interfaces`", &result)?;
    let has_index = list(&result, "ips").any(|ip| ip.get("interface").is_some());
    answer.ensure(!has_index, "addresses without `interface`", &result)
}

pub(super) fn right_version(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let problems = layout::problems(&answer.result()?, test.version, Of::Ipam);
    answer.ensure(
        problems.is_empty(),
        format!("an IPAM plugin's result of version {}", test.version),
        problems.join("; "),
    )
}

pub(super) fn unknown_version(test: &TestContext<'_>) -> TestResult {
    test.add(&test.target("pod1")?).key("cniVersion", "9.9.9").run()?.refused()?.code_in(&[1])?;
    Ok(())
}

pub(super) fn all_differ(test: &TestContext<'_>) -> TestResult {
    if test.plugin.name == "static" {
        return skip("static gives every container the configured addresses");
    }
    for round in 0..2 {
        let names = (0..CROWD).map(|number| format!("pod{number}-{round}"));
        let targets = names.map(|name| test.target(&name)).collect::<Result<Vec<Target>, Stop>>()?;
        let results = thread::scope(|scope| {
            let calls: Vec<_> = targets.iter().map(|target| scope.spawn(|| test.attached(target))).collect();
            calls.into_iter().map(crate::cases::joined).collect::<Result<Vec<Value>, Stop>>()
        })?;
        let all: Vec<String> = results.iter().flat_map(addresses).collect();
        let different: BTreeSet<&String> = all.iter().collect();
        ensure(
            different.len() == all.len() && all.len() >= CROWD,
            format!("{CROWD} different addresses"),
            format!("{all:?}"),
        )?;
        // Release half of the addresses, so that the next round finds gaps.
        for (target, result) in targets.iter().zip(&results).step_by(2) {
            test.detached(target, result)?;
        }
    }
    Ok(())
}

pub(super) fn unknown_container(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let answer = test.del(&test.target("never-added")?, None).run()?;
    answer.ok()?;
    test.unchanged_since(&before, &answer)
}

/// A plugin must accept a delegate's result that has only an address.
pub(super) fn least(test: &TestContext<'_>) -> TestResult {
    let model = json!({"ips": [{"address": "10.77.0.9/24"}]});
    test.ipam()?.on("ADD", Reply::Json(layout::render(&model, test.version)))?;
    let answer = test.add(&test.target("pod1")?).run()?;
    let seen = addresses(&answer.result()?);
    if seen != ["10.77.0.9/24"] {
        return mismatch("the delegate's address, 10.77.0.9/24", format!("{seen:?}"));
    }
    Ok(())
}
