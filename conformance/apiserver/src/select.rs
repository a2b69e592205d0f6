//! Selectors of labels and fields.

use serde_json::Value;

use crate::refusal::Refusal;

/// The fields that a selector may name, besides those of `metadata`.
const FIELDS: [(&str, &[&str]); 9] = [
    ("addressblocks", &["spec.domain", "spec.node"]),
    ("events", &["reason", "type", "involvedObject.kind", "involvedObject.name", "involvedObject.uid"]),
    ("namespaces", &["status.phase"]),
    ("networkpolicies", &[]),
    ("nodes", &["spec.unschedulable"]),
    ("pods", &["spec.nodeName", "status.phase"]),
    ("resourceclaims", &[]),
    ("resourceslices", &["spec.driver", "spec.nodeName", "spec.pool.name"]),
    ("secrets", &["type"]),
];

/// The objects that a request asks for.
#[derive(Clone, Debug, Default)]
pub(crate) struct Selector {
    labels: Vec<Term>,
    fields: Vec<Term>,
}

#[derive(Clone, Debug)]
struct Term {
    /// A JSON pointer to the value.
    place: String,
    rule: Rule,
}

#[derive(Clone, Debug)]
enum Rule {
    In(Vec<String>),
    NotIn(Vec<String>),
    Exists,
    Missing,
}

impl Selector {
    pub(crate) fn parse(plural: &str, labels: &str, fields: &str) -> Result<Selector, Refusal> {
        let labels = split(labels).map(|text| {
            let (key, rule) = rule(text);
            Ok(Term {
                place: format!("/metadata/labels/{}", key.replace('~', "~0").replace('/', "~1")),
                rule,
            })
        });
        let fields = split(fields).map(|text| {
            let (key, rule) = rule(text);
            let own = FIELDS.iter().find(|(name, _)| *name == plural).map_or(&[][..], |(_, fields)| fields);
            if !["metadata.name", "metadata.namespace"].contains(&key) && !own.contains(&key) {
                return Err(Refusal::new("BadRequest", format!("field label not supported: {key}")));
            }
            Ok(Term { place: format!("/{}", key.replace('.', "/")), rule })
        });
        Ok(Selector { labels: labels.collect::<Result<_, _>>()?, fields: fields.collect::<Result<_, _>>()? })
    }

    pub(crate) fn selects(&self, object: &Value) -> bool {
        self.labels.iter().chain(&self.fields).all(|Term { place, rule }| {
            let value = object.pointer(place).map(|value| match value {
                Value::String(text) => text.clone(),
                other => other.to_string(),
            });
            // An absent field counts as empty, an absent label does not.
            let is_field = !place.starts_with("/metadata/labels/");
            let value = if is_field { Some(value.unwrap_or_default()) } else { value };
            match (rule, value) {
                (Rule::In(wanted), Some(value)) => wanted.contains(&value),
                (Rule::NotIn(unwanted), Some(value)) => !unwanted.contains(&value),
                (Rule::Exists, value) => value.is_some(),
                (Rule::Missing, value) => value.is_none(),
                (Rule::In(_), None) => false,
                (Rule::NotIn(_), None) => true,
            }
        })
    }
}

/// The terms of a selector. A comma in parentheses separates values.
fn split(text: &str) -> impl Iterator<Item = &str> {
    let mut depth = 0;
    text.split(move |letter| {
        match letter {
            '(' => depth += 1,
            ')' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    })
    .map(str::trim)
    .filter(|term| !term.is_empty())
}

fn rule(term: &str) -> (&str, Rule) {
    let one = |value: &str| vec![value.trim().to_owned()];
    let many = |values: &str| {
        let values = values.trim().trim_start_matches('(').trim_end_matches(')');
        values.split(',').map(|value| value.trim().to_owned()).collect::<Vec<_>>()
    };
    if let Some((key, values)) = term.split_once(" notin ") {
        (key.trim(), Rule::NotIn(many(values)))
    } else if let Some((key, values)) = term.split_once(" in ") {
        (key.trim(), Rule::In(many(values)))
    } else if let Some((key, value)) = term.split_once("!=") {
        (key.trim(), Rule::NotIn(one(value)))
    } else if let Some((key, value)) = term.split_once("==").or_else(|| term.split_once('=')) {
        (key.trim(), Rule::In(one(value)))
    } else if let Some(key) = term.strip_prefix('!') {
        (key.trim(), Rule::Missing)
    } else {
        (term, Rule::Exists)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn selectors() {
        let object = json!({"metadata": {"name": "s", "labels": {"a/b": "1", "c": "x"}},
            "spec": {"driver": "d", "nodeName": "n"}});
        for (labels, fields, selected) in [
            ("", "", true),
            ("a/b=1,c", "metadata.name=s", true),
            ("a/b in (1, 2),c notin (y,z)", "spec.driver==d,spec.nodeName=n", true),
            ("!d,c!=y", "spec.pool.name=", true),
            ("a/b=2", "", false),
            ("d", "", false),
            ("!c", "", false),
            ("c in (y,z)", "", false),
            ("", "spec.nodeName!=n", false),
            ("", "metadata.name=t", false),
        ] {
            let selector = Selector::parse("resourceslices", labels, fields).unwrap();
            assert_eq!(selector.selects(&object), selected, "{labels:?} {fields:?}");
        }
        assert!(Selector::parse("nodes", "", "spec.driver=d").is_err());
    }
}
