//! `ferrule-nic devices`: what the daemon would advertise, and why. Pure.

use std::fmt::Write as _;

use cni_common::line::Line;
use serde_json::{Value, json};

use crate::config::{Config, Resource};
use crate::plan::{Offer, Plan};
use crate::serve::Owners;

/// For programs.
pub fn to_json(config: &Config, plan: &Plan, owners: &Owners) -> Value {
    let device = |resource: &Resource, offer: &Offer| {
        json!({"id": offer.id, "healthy": offer.problem.is_none(), "reason": offer.problem, "what": offer.what,
            "numaNode": offer.numa, "pf": offer.pf, "owner": owner(owners, resource, offer)})
    };
    let resource = |(resource, offers): (&Resource, &Vec<Offer>)| {
        let devices = offers.iter().map(|offer| device(resource, offer));
        json!({"resourceName": resource.name, "devices": devices.collect::<Value>()})
    };
    let left_out = |(id, reason): &(String, String)| json!({"id": id, "reason": reason});
    let overlap = |(id, first, other): &(String, String, String)| json!({"id": id, "resourceName": first, "alsoSelectedBy": other});
    json!({
        "resources": config.takers().zip(&plan.offers).map(resource).collect::<Value>(),
        "leftOut": plan.left_out.iter().map(left_out).collect::<Value>(),
        "overlaps": plan.overlaps.iter().map(overlap).collect::<Value>(),
    })
}

/// For people.
pub fn to_text(config: &Config, plan: &Plan, owners: &Owners) -> String {
    let mut text = String::new();
    // Writing to a String does not fail.
    for (resource, offers) in config.takers().zip(&plan.offers) {
        let healthy = offers.iter().filter(|offer| offer.problem.is_none()).count();
        let _ = writeln!(text, "{}: {} devices, {healthy} healthy", resource.name, offers.len());
        for offer in offers {
            let numa = offer.numa.map_or(String::new(), |node| format!(", NUMA node {node}"));
            let problem = offer.problem.as_ref();
            let problem = problem.map_or("healthy".to_owned(), |problem| format!("unhealthy: {problem}"));
            let owner = owner(owners, resource, offer).map_or(String::new(), |owner| format!(", {owner}"));
            let line = format_args!("{}  {problem}{owner}  ({}{numa})", offer.id, offer.what);
            let _ = writeln!(text, "  {}", Line::new(line));
        }
    }
    for (id, first, other) in &plan.overlaps {
        let line = format_args!("warning: {id} belongs to {first}, although {other} selects it too");
        let _ = writeln!(text, "{}", Line::new(line));
    }
    if !plan.left_out.is_empty() {
        text.push_str("not advertised:\n");
    }
    for (id, reason) in &plan.left_out {
        let _ = writeln!(text, "  {}", Line::new(format_args!("{id}  {reason}")));
    }
    text
}

fn owner<'o>(owners: &'o Owners, resource: &Resource, offer: &Offer) -> Option<&'o String> {
    owners.get(&(resource.name.clone(), offer.id.clone()))
}
