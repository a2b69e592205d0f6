//! Why an address, or the pod that has it, is not the peer that an entry names.

use std::fmt;
use std::net::IpAddr;

use crate::cluster::{Cluster, label};
use crate::model::{Expression, LabelSelector, NetworkPolicy, Peer};

use super::{in_block, in_cidr, meets};

/// The most values of an expression that are named.
const FEW: usize = 5;

/// What does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unlike<'a> {
    /// The address is not in this block.
    Block(&'a str),
    /// It is in this `except` of the block.
    Except(&'a str),
    /// A `podSelector` alone, and the pod is of another namespace than the policy.
    OtherNamespace,
    /// The pod's namespace is not known yet.
    NoNamespace,
    /// The namespace lacks what the `namespaceSelector` wants.
    Namespace(Want<'a>),
    /// The pod lacks what the `podSelector` wants.
    Pod(Want<'a>),
    /// The peer, or the pod's object, is not understood.
    Unread(&'a str),
}

/// A requirement of a selector, and the value that the label has; `None`: there is no such label.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Want<'a> {
    pub wanted: String,
    pub key: &'a str,
    pub value: Option<&'a str>,
}

impl fmt::Display for Want<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.value {
            Some(value) => write!(f, "has {}={value}", self.key),
            None => write!(f, "has no label {}", self.key),
        }
    }
}

/// What does not fit: of each selector the first requirement. Empty if the peer is this address, or if selectors need a pod and no known
/// pod has it.
pub fn unlike<'a>(
    cluster: &'a Cluster,
    policy: &NetworkPolicy,
    peer: &'a Peer,
    address: IpAddr,
) -> Vec<Unlike<'a>> {
    if let Some(why) = &peer.unread {
        return vec![Unlike::Unread(why)];
    }
    if peer.block.is_some() == (peer.pods.is_some() || peer.namespaces.is_some()) {
        return vec![Unlike::Unread("it must have either an ipBlock or selectors")];
    }
    if let Some(block) = &peer.block {
        return match in_block(block, address) {
            Some(true) => Vec::new(),
            None => vec![Unlike::Unread("its CIDRs are not understood")],
            Some(false) => {
                let mut excepted = block.except.iter().filter(|one| in_cidr(one, address) == Some(true));
                vec![excepted.next().map_or(Unlike::Block(&block.cidr), |one| Unlike::Except(one))]
            }
        };
    }
    let Some(pod) = cluster.at(address).next() else { return Vec::new() };
    if pod.is_closed {
        return vec![Unlike::Unread("the pod's object cannot be read")];
    }
    let of_namespace = match &peer.namespaces {
        None => (*policy.namespace != *pod.namespace).then_some(Unlike::OtherNamespace),
        Some(LabelSelector { labels, expressions }) if labels.is_empty() && expressions.is_empty() => None,
        Some(selector) => match cluster.namespace_labels(&pod.namespace) {
            None => Some(Unlike::NoNamespace),
            Some(labels) => lacks(selector, |key| label(labels, key)).map(Unlike::Namespace),
        },
    };
    let of_pod = peer.pods.as_ref().and_then(|pods| lacks(pods, |key| label(&pod.labels, key)));
    of_namespace.into_iter().chain(of_pod.map(Unlike::Pod)).collect()
}

/// The first requirement that the labels do not meet.
fn lacks<'a>(selector: &'a LabelSelector, value: impl Fn(&str) -> Option<&'a str>) -> Option<Want<'a>> {
    let labels = selector.labels.iter().map(|(key, wanted)| {
        let value = value(key);
        (value != Some(wanted)).then(|| Want { wanted: format!("{key}={wanted}"), key, value })
    });
    let expressions = selector.expressions.iter().map(|expression| {
        let value = value(&expression.key);
        let want = || Want { wanted: shown(expression), key: &expression.key, value };
        (meets(expression, value) != Some(true)).then(want)
    });
    labels.chain(expressions).flatten().next()
}

fn shown(Expression { key, operator, values }: &Expression) -> String {
    let mut text = format!("{key} {operator}");
    for value in values.iter().take(FEW) {
        text += &format!(" {value}");
    }
    if values.len() > FEW {
        text += &format!(" and {} more", values.len() - FEW);
    }
    text
}
