//! Label selectors, and the fields of any object that are not known.

use std::collections::BTreeMap;
use std::fmt;

use ferrule_node_policy::model;
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

#[derive(Debug, Default, Deserialize)]
pub(super) struct Selector {
    #[serde(rename = "matchLabels")]
    labels: Option<BTreeMap<String, String>>,
    #[serde(rename = "matchExpressions")]
    expressions: Option<Vec<Expression>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Expression {
    key: String,
    operator: String,
    values: Option<Vec<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

/// The first field that is not known.
#[derive(Debug, Default)]
pub(super) struct Unknown(Option<String>);

impl<'de> Deserialize<'de> for Unknown {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Unknown, D::Error> {
        struct First;
        impl<'de> Visitor<'de> for First {
            type Value = Unknown;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Unknown, A::Error> {
                let mut first = None;
                while let Some((name, IgnoredAny)) = map.next_entry::<String, _>()? {
                    first.get_or_insert(name);
                }
                Ok(Unknown(first))
            }
        }
        deserializer.deserialize_map(First)
    }
}

impl Unknown {
    pub(super) fn why(self) -> Option<String> {
        self.0.map(|name| format!("the field {:?} is not known", name.chars().take(80).collect::<String>()))
    }
}

/// If it has a field that is not known, it says so in `unread`, and selects everything.
pub(super) fn selector(
    from: Selector,
    unread: &mut Option<String>,
    parts: &mut usize,
) -> model::LabelSelector {
    let mut unknown = from.unknown.why();
    let mut expression = |from: Expression| {
        unknown = unknown.take().or(from.unknown.why());
        let values = from.values.unwrap_or_default();
        *parts += 1 + values.len();
        model::Expression { key: from.key, operator: from.operator, values }
    };
    let expressions = from.expressions.into_iter().flatten().map(&mut expression).collect();
    let labels = from.labels.unwrap_or_default();
    *parts += labels.len();
    match unknown {
        None => model::LabelSelector { labels, expressions },
        Some(why) => {
            *unread = Some(why);
            model::LabelSelector::default()
        }
    }
}
