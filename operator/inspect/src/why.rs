//! `why`: everything about a container, a pod, an address, a host port or a DRA claim.

use std::net::IpAddr;

use itertools::Itertools as _;

use crate::cache::Entry;
use crate::model::{self, Object, Owner, State};
use crate::node::{Attached, Node};
use crate::table::{Style, wrapped};
use crate::text::age;

/// Everything about what the text names; empty if it names nothing.
pub(crate) fn text(node: &Node, what: &str, style: Style) -> String {
    let (attachments, nameless) = named(node, what);
    let mut lines: Vec<(usize, String)> = Vec::new();
    for attached in attachments {
        let owner = attached.owner;
        let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
        lines.push((0, format!("container {}", name(&owner.container))));
        let mut facts = vec![
            format!("network {}, interface {}", name(&owner.network), name(&owner.ifname)),
            format!("state: {}", attached.state),
        ];
        if let Some(entry) = attached.entry {
            let mut plugins = entry.plugins().into_iter().filter_map(|conf| conf["type"].as_str());
            let processes = attached.processes.filter(|processes| !processes.is_empty());
            facts.extend(entry.pod.as_ref().map(|pod| format!("pod {pod}")));
            facts.push(format!("namespace {}", entry.netns));
            facts.extend(processes.map(|processes| format!("processes {}", processes.iter().join(" "))));
            facts.push(format!("plugins {}", plugins.join(", ")));
            facts.push(format!("addresses {}", attached.addresses.iter().join(",")));
            facts.push(format!("cached result {}, {} old", entry.file.display(), age(entry.since)));
        }
        lines.extend(facts.into_iter().map(|fact| (2, fact)));
        lines.extend(attached.objects.into_iter().flat_map(of_object));
    }
    lines.extend(nameless.into_iter().flat_map(of_object));
    lines.iter().map(|(indent, line)| wrapped(line, *indent, style.width)).collect()
}

fn of_object(object: &Object) -> Vec<(usize, String)> {
    let Object { kind, name, place, maker, facts, state, since, .. } = object;
    let mut lines =
        vec![(2, format!("{} {name}: in {place}, made by {}", model::name(kind), model::name(maker)))];
    if since.is_some() {
        lines.push((4, format!("{} old", age(*since))));
    }
    if !facts.is_empty() {
        lines.push((4, facts.iter().map(|(key, value)| format!("{key} {value}")).join(", ")));
    }
    let word = if matches!(state, State::Unknown(_)) { "not decided" } else { state.word() };
    lines.push((4, format!("owner {word}: {}", state.reason())));
    lines
}

/// The attachments that the text names, and objects without a container.
pub(crate) fn named<'n>(node: &'n Node, what: &str) -> (Vec<Attached<'n>>, Vec<&'n Object>) {
    let address: Option<IpAddr> = what.parse().ok();
    let mut attachments = node.attachments(true);
    attachments.retain(|attached| {
        is_container(what, attached.owner, attached.entry)
            || address.is_some_and(|address| attached.addresses.contains(&address))
            || attached.objects.iter().any(|object| is_named(object, what, address))
    });
    let nameless = node.objects.iter().filter(|object| object.owner.container.is_none());
    (attachments, nameless.filter(|object| is_named(object, what, address)).collect())
}

/// Whether the text is the container's ID, at least the first 6 characters of it, or its pod as `NAMESPACE/NAME` or `NAME`.
pub(crate) fn is_container(what: &str, owner: &Owner, entry: Option<&Entry>) -> bool {
    let container = owner.container.as_deref().unwrap_or_default();
    let pod = entry.and_then(|entry| entry.pod.as_deref()).unwrap_or_default();
    container == what || (what.len() >= 6 && container.starts_with(what)) || is_pod(what, pod)
}

/// Whether the text is the pod `NAMESPACE/NAME`, or its name.
fn is_pod(what: &str, pod: &str) -> bool {
    pod == what || pod.rsplit_once('/').is_some_and(|(_, name)| name == what)
}

fn is_named(object: &Object, what: &str, address: Option<IpAddr>) -> bool {
    let is_port = |(from, _): (&str, &str)| {
        let port = from.rsplit(':').next().unwrap_or_default();
        from == what || port == what || port.split('/').next() == Some(what)
    };
    object.name == what
        || object.fact("claim") == what
        || is_pod(what, object.fact("pod"))
        || address.is_some_and(|address| object.addresses.contains(&address))
        || object.host_ports().any(is_port)
}
