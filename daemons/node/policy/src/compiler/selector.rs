//! Label selectors in one form for each meaning.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::cluster::label;
use crate::model::LabelSelector;
use crate::name::Maker;

/// Requirements that all must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Selector(Box<[Requirement]>);

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Requirement {
    key: Box<str>,
    operator: Operator,
    values: BTreeSet<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Operator {
    In,
    NotIn,
    Exists,
    DoesNotExist,
}

impl Selector {
    pub(crate) fn read(from: &LabelSelector) -> Result<Selector, String> {
        let mut all = BTreeSet::new();
        for (key, value) in &from.labels {
            let values = [value.as_str().into()].into();
            all.insert(Requirement { key: key.as_str().into(), operator: Operator::In, values });
        }
        for expression in &from.expressions {
            let (operator, takes_values) = match expression.operator.as_str() {
                "In" => (Operator::In, true),
                "NotIn" => (Operator::NotIn, true),
                "Exists" => (Operator::Exists, false),
                "DoesNotExist" => (Operator::DoesNotExist, false),
                other => return Err(format!("the operator {other:?} is not known")),
            };
            if takes_values == expression.values.is_empty() {
                let operator = &expression.operator;
                return Err(format!(
                    "{operator} of {:?} has {} values",
                    expression.key,
                    expression.values.len()
                ));
            }
            let values = expression.values.iter().map(|value| value.as_str().into()).collect();
            all.insert(Requirement { key: expression.key.as_str().into(), operator, values });
        }
        Ok(Selector(all.into_iter().collect()))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn matches(&self, labels: &[(Arc<str>, Arc<str>)]) -> bool {
        self.0.iter().all(|requirement| {
            let value = label(labels, &requirement.key);
            let is_in = || value.is_some_and(|value| requirement.values.contains(value));
            match requirement.operator {
                Operator::In => is_in(),
                Operator::NotIn => !is_in(),
                Operator::Exists => value.is_some(),
                Operator::DoesNotExist => value.is_none(),
            }
        })
    }

    /// A label that everything that matches has.
    pub(crate) fn anchor(&self) -> Option<(&str, &str)> {
        self.0.iter().find_map(|requirement| match requirement.values.first() {
            Some(value) if requirement.operator == Operator::In && requirement.values.len() == 1 => {
                Some((&*requirement.key, &**value))
            }
            _ => None,
        })
    }

    /// All values that a label may have if the selector matches; `None` if it does not list them.
    pub(crate) fn values_of(&self, key: &str) -> Option<impl Iterator<Item = &str>> {
        let is_of =
            |requirement: &&Requirement| requirement.operator == Operator::In && *requirement.key == *key;
        self.0.iter().find(is_of).map(|requirement| requirement.values.iter().map(|value| &**value))
    }

    pub(crate) fn name_into(&self, maker: &mut Maker) {
        maker.number(self.0.len() as u64);
        for requirement in &self.0 {
            maker
                .bytes(requirement.key.as_bytes())
                .number(requirement.operator as u64)
                .number(requirement.values.len() as u64);
            for value in &requirement.values {
                maker.bytes(value.as_bytes());
            }
        }
    }
}
