//! operator/inspect/schema.json describes all that `--json` prints.

use std::fs;

use cni_lab::Place as _;
use cni_lab::testing::Origin;
use serde_json::Value;

use crate::fixture::Fixture;

/// The first deviation of a document from the schema.
pub(crate) fn deviation_of(document: &Value) -> Option<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../inspect/schema.json");
    let schema: Value = serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap();
    deviation(&schema, &schema, document, "")
}

/// The first deviation from the schema. Knows the keywords that the schema uses.
fn deviation(schema: &Value, root: &Value, value: &Value, path: &str) -> Option<String> {
    if let Some(reference) = schema["$ref"].as_str() {
        let target = root.pointer(reference.trim_start_matches('#')).unwrap();
        if let Some(found) = deviation(target, root, value, path) {
            return Some(found);
        }
    }
    let has_type = |name: &str| match name {
        "object" => value.is_object(),
        "array" => value.is_array(),
        "string" => value.is_string(),
        "integer" => value.is_i64() || value.is_u64(),
        "boolean" => value.is_boolean(),
        "null" => value.is_null(),
        other => panic!("type {other}"),
    };
    let is_of = match &schema["type"] {
        Value::Array(names) => names.iter().any(|name| has_type(name.as_str().unwrap())),
        Value::String(name) => has_type(name),
        _ => true,
    };
    let is_one = schema["enum"].as_array().is_none_or(|values| values.contains(value));
    if !is_of || !is_one {
        return Some(format!("{path}: {value}"));
    }
    let required = schema["required"].as_array().filter(|_| value.is_object()).into_iter().flatten();
    let missing = required.map(|name| name.as_str().unwrap()).find(|name| value.get(name).is_none());
    if let Some(name) = missing {
        return Some(format!("{path}: {name} is missing"));
    }
    let items = value.as_array().filter(|_| schema["items"].is_object()).into_iter().flatten();
    let found = items
        .enumerate()
        .find_map(|(at, item)| deviation(&schema["items"], root, item, &format!("{path}[{at}]")));
    found.or_else(|| {
        let members = value.as_object().into_iter().flatten();
        members
            .filter(|_| schema["properties"].is_object() || schema["additionalProperties"].is_object())
            .find_map(|(name, member)| {
                let path = format!("{path}.{name}");
                match (schema["properties"].get(name), &schema["additionalProperties"]) {
                    (Some(schema), _) => deviation(schema, root, member, &path),
                    (None, Value::Object(_)) => {
                        deviation(&schema["additionalProperties"], root, member, &path)
                    }
                    (None, _) => Some(format!("{path} is not in the schema")),
                }
            })
    })
}

#[test]
fn every_document_follows_the_schema() {
    let f = Fixture::new();
    f.add(Origin::Ours, "inspect-schema-a", 18501);
    f.add(Origin::Reference, "inspect-schema-b", 18502);
    f.add(Origin::Ours, "inspect-schema-c", 18503).pod.delete().unwrap();
    f.node.sh("rm /var/lib/cni/results/ours-inspect-schema-c-eth0").unwrap();
    f.device("inspect-schema-a");
    let schema: Value = serde_json::from_str(
        &fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../inspect/schema.json")).unwrap(),
    )
    .unwrap();
    let (checks, views) = (
        format!("check --bin-dir {}", f.bin_dir(Origin::Ours).display()),
        ["pods", "graph", "addresses", "ports", "shaping", "links", "devices", "leaks", "why 18502"],
    );
    let doctor = "doctor --conf-dir /nowhere".to_owned();
    for words in views.map(|view| format!("inspect {view}")).iter().chain([&checks, &doctor]) {
        let document: Value = serde_json::from_slice(&f.run(&format!("{words} --json")).stdout).unwrap();
        let lists: Vec<_> = document.as_object().unwrap().values().filter_map(Value::as_array).collect();
        assert!(lists.iter().any(|list| !list.is_empty()), "{words}: {document}");
        assert_eq!(deviation(&schema, &schema, &document, words), None, "{document}");
        let mut wrong = document;
        wrong["more"] = 1.into();
        assert!(deviation(&schema, &schema, &wrong, words).is_some());
    }
}
