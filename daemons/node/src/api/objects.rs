//! Policies, Namespaces and Pods: each object is sent on as it comes, and only its name is kept.

use std::marker::PhantomData;

use anyhow::{Error, Result};
use serde::{Deserialize, Deserializer};

use super::decode::{Head, Read};
use super::kind::Kind;
use crate::policy::objects::{Key, Names, Told};

/// The most objects of a kind. Further pods of other nodes are passed over: they are no peers.
const MOST: usize = 1_000_000;
/// The longest name in Kubernetes.
const MAX_NAME: usize = 253;

pub(super) struct Objects<T> {
    /// This node's name.
    node: String,
    names: Names,
    most: usize,
    /// How many were passed over since the last list.
    over: usize,
    kind: PhantomData<T>,
}

/// An object, or what can be read of it.
#[derive(Debug)]
pub(super) enum Found<T> {
    Whole(T),
    Head(Head, String),
}

impl<'de, T: Read> Deserialize<'de> for Found<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        T::deserialize(deserializer).map(Found::Whole)
    }
}

impl<T: Read> Objects<T> {
    pub(super) fn new(node: String) -> Objects<T> {
        Objects { node, names: Names::default(), most: MOST, over: 0, kind: PhantomData }
    }

    fn take(&mut self, found: Found<T>) -> Option<Told> {
        let key = key(&found)?;
        let told = match found {
            Found::Whole(object) => object.told(&self.node),
            Found::Head(_, why) => Err(why),
        };
        let is_known = self.names.has(&key.namespace, &key.name);
        let is_far = matches!(&told, Ok(Told::Pod(pod)) if !pod.local);
        if !is_known && is_far && self.names.len() >= self.most {
            if self.over == 0 {
                log!("there are more than {} {}: passes over others, as {key}", self.most, T::KIND);
            }
            self.over += 1;
            return None;
        }
        self.names.insert(&key.namespace, &key.name);
        Some(told.unwrap_or_else(|why| Told::Unread(T::KIND, key, why)))
    }
}

/// `None` for a name that Kubernetes does not allow.
fn key<T: Read>(found: &Found<T>) -> Option<Key> {
    let (namespace, name) = match found {
        Found::Whole(object) => (&object.metadata().namespace, &object.metadata().name),
        Found::Head(head, _) => (&head.namespace, &head.name),
    };
    let namespace = if T::KIND.is_of_cluster() { name } else { namespace };
    let is_name = |name: &str| {
        let is_allowed =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
        !name.is_empty() && name.len() <= MAX_NAME && name.bytes().all(is_allowed)
    };
    if is_name(namespace) && is_name(name) {
        return Some(Key { namespace: namespace.as_str().into(), name: name.as_str().into() });
    }
    let shown: String = format!("{namespace}/{name}").escape_default().take(80).collect();
    log!("ignores one of the {} with an invalid name: {shown}", T::KIND);
    None
}

impl<T: Read> Kind for Objects<T> {
    const PATH: &'static str = T::PATH;
    const WORD: &'static str = T::KIND.word();
    const COST: u32 = T::COST;
    const CRD: Option<&'static str> = T::CRD;
    type Object = Found<T>;
    type Message = Told;

    fn version(found: &Found<T>) -> &str {
        match found {
            Found::Whole(object) => &object.metadata().resource_version,
            Found::Head(head, _) => &head.version,
        }
    }

    fn unread(head: Head, why: Error) -> Result<Found<T>> {
        if head.name.is_empty() { Err(why) } else { Ok(Found::Head(head, format!("{why:#}"))) }
    }

    fn begin(&mut self) {
        (self.names, self.over) = (Names::default(), 0);
    }

    fn listed(&mut self, found: Found<T>) -> Option<Told> {
        self.take(found)
    }

    fn complete(&mut self) -> Told {
        Told::Listed(T::KIND, self.names.clone())
    }

    fn changed(&mut self, found: Found<T>) -> Option<Told> {
        self.take(found)
    }

    fn gone(&mut self, found: Found<T>) -> Option<Told> {
        let key = key(&found)?;
        self.names.remove(&key.namespace, &key.name);
        Some(Told::Gone(T::KIND, key))
    }

    fn state(state: Result<(), String>) -> Told {
        Told::State(T::KIND, state)
    }
}

#[cfg(test)]
mod tests {
    use super::super::decode::{Namespace, Pod};
    use super::*;
    use crate::policy::objects;

    fn pod(name: &str, node: &str) -> Found<Pod> {
        let text =
            format!(r#"{{"metadata":{{"namespace":"s","name":"{name}"}},"spec":{{"nodeName":"{node}"}}}}"#);
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn pods_of_other_nodes_beyond_the_most_are_passed_over() {
        let mut pods = Objects::<Pod> { most: 2, ..Objects::new("n1".to_owned()) };
        let is_told = |told: Option<Told>| told.is_some();
        assert!(is_told(pods.listed(pod("a", "n2"))) && is_told(pods.listed(pod("b", "n2"))));
        assert!(!is_told(pods.listed(pod("c", "n2"))) && is_told(pods.listed(pod("own", "n1"))));
        let Told::Listed(objects::Kind::Pods, names) = pods.complete() else { panic!() };
        assert_eq!(["a", "b", "c", "own"].map(|name| names.has("s", name)), [true, true, false, true]);
        assert!(is_told(pods.changed(pod("a", "n2"))) && !is_told(pods.changed(pod("c", "n2"))));
        assert!(is_told(pods.gone(pod("a", "n2"))) && is_told(pods.gone(pod("b", "n2"))));
        assert!(is_told(pods.changed(pod("c", "n2"))), "there is room again");
    }

    #[test]
    fn names_are_those_of_kubernetes() {
        let mut pods = Objects::<Pod>::new("n1".to_owned());
        for name in ["", "A", "a/b", "a\\n", &"a".repeat(254)] {
            assert!(pods.listed(pod(name, "n1")).is_none(), "{name}");
        }
        assert!(pods.listed(pod("a-1.b", "n1")).is_some());
        let mut namespaces = Objects::<Namespace>::new("n1".to_owned());
        let space = serde_json::from_str(r#"{"metadata":{"name":"s"}}"#).unwrap();
        assert!(matches!(namespaces.listed(space), Some(Told::Namespace(_))));
        let Told::Listed(_, names) = namespaces.complete() else { panic!() };
        assert!(names.has("s", "s"));
        // No message can say which one it is.
        assert!(Objects::<Pod>::unread(Head::default(), anyhow::anyhow!("x")).is_err());
    }
}
