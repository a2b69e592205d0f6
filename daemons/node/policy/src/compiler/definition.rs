//! What a set is: which pods or addresses are in it.

use std::net::IpAddr;

use crate::cluster::{Cluster, KnownPod, Labels};
use crate::model::{IpFamily, Protocol};
use crate::name::{Kind, Maker, Name};
use crate::ruleset::{Contents, Element, Set};

use super::block::{self, Intervals};
use super::selector::Selector;

/// Which set a rule needs. Its name follows from all the rest.
#[derive(Debug)]
pub(crate) struct Definition {
    pub(crate) name: Name,
    pub(crate) family: IpFamily,
    pub(crate) peers: Peers,
    /// With their ports of this protocol and name, instead of the addresses alone.
    named: Option<(Protocol, Box<str>)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Peers {
    /// Every pod; only for named ports.
    Any,
    /// With those whose labels are unknown, as if they had none, if it is for a denial.
    Pods(Scope, Selector, bool),
    Block(Intervals),
}

impl Peers {
    /// Adds blocks of one family to peers as one; instead of them if it is the whole family.
    pub(crate) fn push_blocks(all: &mut Vec<Peers>, family: IpFamily, blocks: Intervals) {
        let joined = block::union(family, blocks);
        if block::is_whole(family, &joined) {
            *all = vec![Peers::Any];
        } else if !joined.is_empty() {
            all.push(Peers::Block(joined));
        }
    }
}

/// The namespaces of the pods that a selector looks at.
#[derive(Clone, Debug)]
pub(crate) enum Scope {
    Namespace(Box<str>),
    Matching(Selector),
}

impl Scope {
    /// Labels of a namespace that is not known are `None`: only the empty selector is sure to match it.
    pub(crate) fn matches(&self, namespace: &str, labels: Option<&Labels>) -> bool {
        match self {
            Scope::Namespace(name) => **name == *namespace,
            Scope::Matching(selector) => {
                selector.is_empty() || labels.is_some_and(|labels| selector.matches(labels))
            }
        }
    }
}

impl Definition {
    pub(crate) fn new(family: IpFamily, peers: Peers, named: Option<(Protocol, Box<str>)>) -> Definition {
        let mut maker = Maker::new(Kind::Set);
        maker.number(family as u64);
        match &peers {
            Peers::Any => drop(maker.number(0)),
            Peers::Pods(Scope::Namespace(name), selector, _) => {
                selector.name_into(maker.number(1).bytes(name.as_bytes()))
            }
            Peers::Pods(Scope::Matching(namespaces), selector, is_for_denial) => {
                namespaces.name_into(maker.number(if *is_for_denial { 4 } else { 2 }));
                selector.name_into(&mut maker);
            }
            Peers::Block(intervals) => {
                maker.number(3).number(intervals.len() as u64);
                for (first, last) in intervals {
                    maker.bytes(first.to_string().as_bytes()).bytes(last.to_string().as_bytes());
                }
            }
        }
        if let Some((protocol, name)) = &named {
            maker.number(protocol.number().into()).bytes(name.as_bytes());
        }
        Definition { name: maker.finish(), family, peers, named }
    }

    /// The set, without elements of pods.
    pub(crate) fn empty_set(&self) -> Set {
        let contents = match (&self.named, &self.peers) {
            (Some(_), _) => Contents::Ports(Default::default()),
            (None, Peers::Block(intervals)) => Contents::Blocks(intervals.clone()),
            (None, _) => Contents::Addresses(Default::default()),
        };
        Set { family: self.family, contents }
    }

    /// Whether its elements are those of pods.
    pub(crate) fn is_of_pods(&self) -> bool {
        self.named.is_some() || !matches!(self.peers, Peers::Block(_))
    }

    /// The elements that this pod gives.
    pub(crate) fn elements(&self, cluster: &Cluster, pod: &KnownPod) -> Vec<Element> {
        let own = self.address(pod).filter(|address| self.has(cluster, pod, *address));
        own.map(|address| self.elements_at(pod, address)).unwrap_or_default()
    }

    /// The elements that this pod would give if it were in the set.
    pub(crate) fn elements_if_in(&self, pod: &KnownPod) -> Vec<Element> {
        self.address(pod).map(|address| self.elements_at(pod, address)).unwrap_or_default()
    }

    /// The protocol and the name of the ports that it is of.
    pub(crate) fn named(&self) -> Option<(Protocol, &str)> {
        self.named.as_ref().map(|(protocol, name)| (*protocol, &**name))
    }

    /// Whether the pod is one of its peers, also without such a port.
    pub(crate) fn is_peer(&self, cluster: &Cluster, pod: &KnownPod) -> bool {
        self.address(pod).is_some_and(|address| self.has(cluster, pod, address))
    }

    fn address(&self, pod: &KnownPod) -> Option<IpAddr> {
        pod.addresses.all().find(|address| pod.has_part && IpFamily::of(*address) == self.family)
    }

    fn elements_at(&self, pod: &KnownPod, address: IpAddr) -> Vec<Element> {
        let Some((protocol, name)) = &self.named else { return vec![Element::Address(address)] };
        let named = pod.ports.iter().filter(|port| port.protocol == *protocol && *port.name == **name);
        named.map(|port| Element::Port(address, *protocol, port.port)).collect()
    }

    fn has(&self, cluster: &Cluster, pod: &KnownPod, address: IpAddr) -> bool {
        match &self.peers {
            Peers::Any => true,
            Peers::Pods(scope, selector, is_for_denial) => {
                (!pod.is_closed || *is_for_denial)
                    && selector.matches(&pod.labels)
                    && scope.matches(&pod.namespace, cluster.namespace_labels(&pod.namespace))
            }
            Peers::Block(intervals) => block::contains(intervals, address),
        }
    }

    /// The namespace and the label that all of its pods have; `None` and empty texts where it asks for none.
    pub(crate) fn anchor(&self) -> (Option<&str>, &str, &str) {
        let Peers::Pods(scope, selector, _) = &self.peers else { return (None, "", "") };
        let (key, value) = selector.anchor().unwrap_or_default();
        match scope {
            Scope::Namespace(name) => (Some(name), key, value),
            Scope::Matching(_) => (None, key, value),
        }
    }
}
