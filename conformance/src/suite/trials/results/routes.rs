//! Routes in results, and the gateway that is none.

use serde_json::{Value, json};

use super::rich;
use crate::fixture::Place as _;
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled, skip};
use crate::suite::shape::{self, Of};
use crate::suite::subject::Role;

/// Every route of a result, whatever its version.
fn routes(result: &Value) -> impl Iterator<Item = &Value> {
    let old = ["ip4", "ip6"].into_iter().flat_map(|family| shape::list(&result[family], "routes"));
    shape::list(result, "routes").chain(old)
}

fn is_default(route: &Value) -> bool {
    route["dst"].as_str().is_some_and(|dst| dst.ends_with("/0"))
}

pub(super) fn families(lab: &Lab<'_>) -> Trialled {
    let (_, answer, result) = rich::add(lab)?;
    for route in routes(&result) {
        let is_one = route["gw"].is_null() || shape::is_v6(&route["gw"]) == shape::is_v6(&route["dst"]);
        answer.ensure(is_one, "a route with a gateway of its own family", route)?;
    }
    Ok(())
}

pub(super) fn gateway_only(lab: &Lab<'_>) -> Trialled {
    let mut model = rich::model();
    model["routes"] = json!([]);
    let target = rich::target(lab, "pod1")?;
    let answer = rich::handing(lab, &target, &shape::render(&model, lab.version))?.run()?;
    let result = answer.result()?;
    answer.ensure(!routes(&result).any(is_default), "a result without a default route", &result)?;
    let seen = target.pod.sh("ip -4 route show default; ip -6 route show default")?;
    answer.ensure(seen.trim().is_empty(), "no default route in the container", seen)
}

pub(super) fn gateway_of_ipam(lab: &Lab<'_>) -> Trialled {
    let mut call = lab.add(&lab.target("pod1")?);
    if let Some(ipam) = call.config.get_mut("ipam").and_then(Value::as_object_mut) {
        ipam.remove("routes");
    }
    let answer = call.run()?;
    let result = answer.result()?;
    answer.ensure(!routes(&result).any(is_default), "a result without a default route", &result)
}

/// Routes as 1.1.0 has them; 253 is the scope of a link.
fn numbered() -> Value {
    json!([
        {"dst": "198.51.100.0/24", "gw": "10.77.0.1",
            "mtu": 1400, "advmss": 1360, "priority": 7, "table": 100, "scope": 0},
        {"dst": "203.0.113.0/24", "priority": 9, "scope": 253}])
}

/// Makes an ADD with these routes handed in as a result's, or asked for in the configuration of an IPAM plugin, where
/// the configuration asks for one already.
fn add_with<'a>(
    lab: &'a Lab<'a>,
    target: &Target,
    result: &Value,
    wanted: &Value,
) -> Result<crate::suite::call::Call<'a>, Stop> {
    let mut call = rich::handing(lab, target, result)?;
    if lab.subject.role == Role::Ipam {
        match call.config.get_mut("ipam").and_then(|ipam| ipam.get_mut("routes")) {
            Some(routes) => *routes = wanted.clone(),
            None => return skip("how it is asked for routes is not known"),
        }
    }
    Ok(call)
}

pub(super) fn numbers(lab: &Lab<'_>) -> Trialled {
    let target = rich::target(lab, "pod1")?;
    let mut model = rich::model_for(lab, &target);
    model["routes"] = numbered();
    let answer = add_with(lab, &target, &shape::render(&model, lab.version), &numbered())?.run()?;
    let result = answer.result()?;
    for wanted in numbered().as_array().into_iter().flatten() {
        let is_there = routes(&result).any(|route| route == wanted);
        answer.ensure(is_there, format!("the route {wanted}"), &result["routes"])?;
    }
    Ok(())
}

/// What a newer neighbour says although it was asked in an older version, and a configuration that was written for a
/// newer one.
pub(super) fn later_fields(lab: &Lab<'_>) -> Trialled {
    let target = rich::target(lab, "pod1")?;
    let mut result = shape::render(&rich::model_for(lab, &target), lab.version);
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
    let answer = add_with(lab, &target, &result, &wanted)?.run()?;
    let of = if lab.subject.role == Role::Ipam { Of::Ipam } else { Of::Interface };
    let faults = shape::faults(&answer.result()?, lab.version, of);
    answer.ensure(faults.is_empty(), format!("only what {} knows", lab.version), faults.join("; "))
}
