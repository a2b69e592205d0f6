//! The dashboard and the alert rules in `examples/monitoring/` ask only for what `ferrule metrics` prints.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use serde_json::Value;

/// Labels that Prometheus adds.
const ADDED: [&str; 2] = ["instance", "job"];
/// node_exporter's metric about the file.
const FOREIGN: &str = "node_textfile_mtime_seconds";

/// A metric of `ferrule-node`, whose own test compares the dashboard with it.
const DENIED: (&str, [&str; 5]) =
    ("ferrule_node_policy_denied_packets_total", ["namespace", "pod", "direction", "mode", "policies"]);

type Metrics = BTreeMap<String, BTreeSet<String>>;

/// The labels of each printed metric.
fn metrics(printed: &str) -> Metrics {
    let mut metrics = Metrics::new();
    for (name, rest) in
        printed.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once('{'))
    {
        let labels = rest
            .split_once('}')
            .unwrap()
            .0
            .split(',')
            .map(|label| label.split_once('=').unwrap().0.to_owned());
        metrics.entry(name.to_owned()).or_default().extend(labels);
    }
    metrics
}

/// Returns the metrics of an expression, and fails if it asks for a metric or label that does not exist.
fn check(expression: &str, metrics: &Metrics) -> usize {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let words: Vec<(usize, &str)> = { expression.split(|c| !is_name(c)) }
        .map(|word| (word.as_ptr() as usize - expression.as_ptr() as usize, word))
        .filter(|(_, word)| !word.is_empty())
        .collect();
    let mut all: BTreeSet<&str> = ADDED.into();
    let mut found = 0;
    for (at, name) in &words {
        let rest = &expression[at + name.len()..];
        if !name.starts_with("ferrule_") && *name != FOREIGN {
            continue;
        }
        found += 1;
        let labels = metrics.get(*name);
        assert!(labels.is_some() || *name == FOREIGN, "{name} does not exist: {expression}");
        all.extend(labels.into_iter().flatten().map(String::as_str));
        let Some(selectors) = rest.strip_prefix('{').map(|rest| rest.split_once('}').unwrap().0) else {
            continue;
        };
        for selector in selectors.split(',') {
            let (label, value) = selector.split_once('=').unwrap();
            let label = label.trim().trim_end_matches('!');
            let is_known = ADDED.contains(&label) || labels.is_none_or(|labels| labels.contains(label));
            assert!(is_known, "{name} has no label {label}: {expression}");
            let values = match label {
                "verb" => &["ADD", "CHECK", "DEL", "GC", "STATUS"][..],
                "outcome" => &["success", "error"],
                _ => continue,
            };
            assert!(values.contains(&value.trim_matches('"')), "{label} is never {value}: {expression}");
        }
    }
    for grouping in expression.split("by (").skip(1) {
        for label in grouping.split_once(')').unwrap().0.split(", ") {
            assert!(all.contains(label), "no metric has the label {label}: {expression}");
        }
    }
    for (open, close) in [('(', ')'), ('{', '}'), ('[', ']')] {
        assert_eq!(expression.matches(open).count(), expression.matches(close).count(), "{expression}");
    }
    found
}

/// All texts of members with this name.
fn texts(json: &Value, name: &str) -> Vec<String> {
    match json {
        Value::Object(members) => { members.iter() }
            .flat_map(|(key, value)| match value {
                Value::String(text) if key == name => vec![text.clone()],
                value => texts(value, name),
            })
            .collect(),
        Value::Array(items) => items.iter().flat_map(|item| texts(item, name)).collect(),
        _ => Vec::new(),
    }
}

/// Compares the files with what `ferrule metrics` has printed after a success and an error.
pub(crate) fn asks_only_for(printed: &str) {
    let mut metrics = metrics(printed);
    assert_eq!(metrics.len(), 4, "{metrics:?}");
    metrics.insert(DENIED.0.to_owned(), DENIED.1.map(str::to_owned).into());
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/monitoring");
    let read = |name: &str| fs::read_to_string(folder.join(name)).unwrap();

    let dashboard: Value = serde_json::from_str(&read("grafana.json")).unwrap();
    let mut boxes = Vec::new();
    for panel in dashboard["panels"].as_array().unwrap() {
        let expressions = texts(panel, "expr");
        assert!(
            !expressions.is_empty() && expressions.iter().all(|expr| check(expr, &metrics) > 0),
            "{panel}"
        );
        // Panels do not cover each other: Grafana has 24 columns.
        let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| panel["gridPos"][key].as_u64().unwrap());
        let is_apart = |(x2, y2, w2, h2): &(u64, u64, u64, u64)| {
            x + w <= *x2 || x2 + w2 <= x || y + h <= *y2 || y2 + h2 <= y
        };
        assert!(x + w <= 24 && boxes.iter().all(is_apart), "{panel}");
        boxes.push((x, y, w, h));
    }
    for definition in texts(&dashboard["templating"], "definition") {
        assert_eq!(check(&definition, &metrics), 1, "{definition}");
    }

    let rules: Value = yaml_serde::from_str(&read("alerts.yaml")).unwrap();
    let readme = read("README.md");
    let rules = rules["groups"][0]["rules"].as_array().unwrap();
    assert!(!rules.is_empty());
    for rule in rules {
        assert!(check(rule["expr"].as_str().unwrap(), &metrics) > 0, "{rule}");
        assert!(
            readme.contains(&format!("| `{}` |", rule["alert"].as_str().unwrap())),
            "README.md lacks {rule}"
        );
        assert!(["warning", "critical"].contains(&rule["labels"]["severity"].as_str().unwrap()), "{rule}");
        assert!(["for", "expr"].iter().all(|key| rule[*key].is_string()), "{rule}");
        let texts = ["summary", "description"].map(|key| rule["annotations"][key].as_str().unwrap());
        for label in texts.iter().flat_map(|text| text.split("$labels.").skip(1)) {
            let label = label.split(' ').next().unwrap();
            let has = ADDED.contains(&label) || rule["expr"].as_str().unwrap().contains(label);
            assert!(has, "the expression drops {label}: {rule}");
        }
    }
}
