//! Routes and gateways in results.

use serde_json::{Value, json};

use super::rich;
use crate::layout::{self, Of};
use crate::outcome::{Stop, TestResult, skip};
use crate::plugin_under_test::Role;
use crate::test_context::{Target, TestContext};
use cni_lab::Place as _;

/// All routes of a result of any version.
fn routes(result: &Value) -> impl Iterator<Item = &Value> {
    let old = ["ip4", "ip6"].into_iter().flat_map(|family| layout::list(&result[family], "routes"));
    layout::list(result, "routes").chain(old)
}

fn is_default(route: &Value) -> bool {
    route["dst"].as_str().is_some_and(|dst| dst.ends_with("/0"))
}

pub(super) fn families(test: &TestContext<'_>) -> TestResult {
    let (_, answer, result) = rich::add(test)?;
    for route in routes(&result) {
        let is_one = route["gw"].is_null() || layout::is_v6(&route["gw"]) == layout::is_v6(&route["dst"]);
        answer.ensure(is_one, "a route with a gateway of its own family", route)?;
    }
    Ok(())
}

pub(super) fn gateway_only(test: &TestContext<'_>) -> TestResult {
    let mut model = rich::model();
    model["routes"] = json!([]);
    let target = rich::target(test, "pod1")?;
    let answer = rich::handing(test, &target, &layout::render(&model, test.version))?.run()?;
    let result = answer.result()?;
    answer.ensure(!routes(&result).any(is_default), "a result without a default route", &result)?;
    let seen = target.pod.sh("ip -4 route show default; ip -6 route show default")?;
    answer.ensure(seen.trim().is_empty(), "no default route in the container", seen)
}

pub(super) fn gateway_of_ipam(test: &TestContext<'_>) -> TestResult {
    let mut call = test.add(&test.target("pod1")?);
    if let Some(ipam) = call.config.get_mut("ipam").and_then(Value::as_object_mut) {
        ipam.remove("routes");
    }
    let answer = call.run()?;
    let result = answer.result()?;
    answer.ensure(!routes(&result).any(is_default), "a result without a default route", &result)
}

/// Routes in the layout of 1.1.0; scope 253 is RT_SCOPE_LINK.
fn numbered() -> Value {
    json!([
        {"dst": "198.51.100.0/24", "gw": "10.77.0.1",
            "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 0},
        {"dst": "203.0.113.0/24", "priority": 9, "scope": 253}])
}

/// An ADD with these routes: in the result that the plugin gets, or for an IPAM plugin in its configuration,
/// if that has routes.
fn add_with<'a>(
    test: &'a TestContext<'a>,
    target: &Target,
    result: &Value,
    wanted: &Value,
) -> Result<crate::call::Call<'a>, Stop> {
    let mut call = rich::handing(test, target, result)?;
    if test.plugin.role == Role::Ipam {
        match call.config.get_mut("ipam").and_then(|ipam| ipam.get_mut("routes")) {
            Some(routes) => *routes = wanted.clone(),
            None => return skip("the suite does not know how to request routes from this plugin"),
        }
    }
    Ok(call)
}

pub(super) fn numbers(test: &TestContext<'_>) -> TestResult {
    let target = rich::target(test, "pod1")?;
    let mut model = rich::model_for(test, &target);
    model["routes"] = numbered();
    let answer = add_with(test, &target, &layout::render(&model, test.version), &numbered())?.run()?;
    let result = answer.result()?;
    for wanted in numbered().as_array().into_iter().flatten() {
        let is_there = routes(&result).any(|route| route == wanted);
        answer.ensure(is_there, format!("the route {wanted}"), &result["routes"])?;
    }
    Ok(())
}

/// Fields of later versions, in the result that the plugin gets and in the configuration, must not appear in
/// the plugin's result.
pub(super) fn later_fields(test: &TestContext<'_>) -> TestResult {
    let target = rich::target(test, "pod1")?;
    let mut result = layout::render(&rich::model_for(test, &target), test.version);
    for part in ["/routes", "/ip4/routes"] {
        for route in result.pointer_mut(part).and_then(Value::as_array_mut).into_iter().flatten() {
            route["mtu"] = json!(1400);
            route["priority"] = json!(7);
        }
    }
    for interface in result.get_mut("interfaces").and_then(Value::as_array_mut).into_iter().flatten() {
        interface["mtu"] = json!(1500);
        interface["socketPath"] = json!("/run/socket");
        interface["pciID"] = json!("0000:00:1f.6");
    }
    let wanted = json!([{"dst": "198.51.100.0/24", "mtu": 1400, "priority": 7}]);
    let answer = add_with(test, &target, &result, &wanted)?.run()?;
    let of = if test.plugin.role == Role::Ipam { Of::Ipam } else { Of::Interface };
    let problems = layout::problems(&answer.result()?, test.version, of);
    answer.ensure(problems.is_empty(), format!("only fields of {}", test.version), problems.join("; "))
}
