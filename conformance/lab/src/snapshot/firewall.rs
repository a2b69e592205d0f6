//! The packet filter: nf_tables by `nft`, and both variants of iptables by their own tools.

use std::collections::BTreeSet;
use std::fs;

use anyhow::Context as _;
use serde_json::{Map, Value};

use super::{Snapshot, netlink};
use crate::{Machine, Place as _};

/// The names of iptables' tables.
const IPTABLES: [&str; 5] = ["filter", "nat", "mangle", "raw", "security"];

pub(super) fn take(snapshot: &mut Snapshot) -> anyhow::Result<()> {
    // Most pods have no table.
    let families = if netlink::has_nf_tables()? { nftables(snapshot)? } else { BTreeSet::new() };
    // The tools list nothing else.
    for (family, save) in [("ip", "iptables-nft-save"), ("ip6", "ip6tables-nft-save")] {
        if families.contains(family) {
            iptables(save, snapshot)?;
        }
    }
    let legacy = [("iptables-legacy-save", "ip_tables_names"), ("ip6tables-legacy-save", "ip6_tables_names")];
    for (save, names) in legacy {
        // The tool creates the tables that it lists, so run it only if there are some already.
        let names = format!("/proc/thread-self/net/{names}");
        let tables = fs::read_to_string(names).unwrap_or_default();
        if !tables.trim().is_empty() {
            iptables(save, snapshot)?;
        }
    }
    Ok(())
}

/// Adds the ruleset. Returns the families that have tables with the names of iptables' ones.
fn nftables(snapshot: &mut Snapshot) -> anyhow::Result<BTreeSet<String>> {
    let mut families = BTreeSet::new();
    let text = Machine.tool("nft", &["-j", "list", "ruleset"])?;
    let listing: Value = serde_json::from_str(&text).context("nft list ruleset")?;
    let objects = listing.get("nftables").and_then(Value::as_array).cloned().unwrap_or_default();
    for object in objects.iter().filter_map(Value::as_object) {
        let Some((kind, Value::Object(body))) = object.iter().next() else { continue };
        if kind == "metainfo" {
            continue;
        }
        let mut body = body.clone();
        let elements = body.remove("elem");
        let text = |key: &str| body.get(key).and_then(Value::as_str).unwrap_or_default();
        if kind == "table" && IPTABLES.contains(&text("name")) {
            families.insert(text("family").to_owned());
        }
        let line = normalised(body.clone()).to_string();
        // Elements are added and removed one by one, and their order has no meaning.
        if let Some(Value::Array(elements)) = elements {
            let section =
                format!("nft {kind} {} {} {} elements", text("family"), text("table"), text("name"));
            let lines = elements.into_iter().map(|element| normalised_value(element).to_string());
            snapshot.add_sorted(&section, lines.collect());
        }
        match kind.as_str() {
            // Only the order of the rules within a chain has a meaning.
            "rule" => {
                let section = format!("nft {} {} {}", text("family"), text("table"), text("chain"));
                snapshot.add(&section, vec![line]);
            }
            _ => snapshot.add(&format!("nft {kind} {} {}", text("family"), text("name")), vec![line]),
        }
    }
    Ok(families)
}

/// Removes what can differ between two equal rulesets: handles, counters, expiry and the order of elements.
fn normalised(mut object: Map<String, Value>) -> Value {
    for key in ["handle", "packets", "bytes", "expires"] {
        object.remove(key);
    }
    if let Some(Value::Array(elements)) = object.get_mut("elem") {
        elements.sort_by_key(Value::to_string);
    }
    Value::Object(object.into_iter().map(|(key, value)| (key, normalised_value(value))).collect())
}

fn normalised_value(value: Value) -> Value {
    match value {
        Value::Object(object) => normalised(object),
        Value::Array(items) => items.into_iter().map(normalised_value).collect(),
        other => other,
    }
}

fn iptables(save: &str, snapshot: &mut Snapshot) -> anyhow::Result<()> {
    let text = Machine.tool(save, &[] as &[&str])?;
    let mut section = String::new();
    for line in text.lines() {
        if let Some(table) = line.strip_prefix('*') {
            section = format!("{save} {table}");
            snapshot.add(&section, vec!["table".to_owned()]);
        } else if !line.starts_with('#') && line != "COMMIT" && !line.is_empty() {
            // Remove the counters of a chain: ":INPUT ACCEPT [12:3456]". Rules have none without -c.
            let line = line.split_once(" [").filter(|_| line.starts_with(':')).map_or(line, |(left, _)| left);
            snapshot.add(&section, vec![line.to_owned()]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn handles_and_counters_are_removed_and_elements_sorted() {
        let rule = json!({"handle": 7, "expr": [{"counter": {"packets": 1, "bytes": 2}}, {"accept": null}],
            "elem": ["b", "a"]});
        let expected = json!({"expr": [{"counter": {}}, {"accept": null}], "elem": ["a", "b"]});
        assert_eq!(normalised_value(rule), expected);
    }
}
