//! `why`: everything about a container, a pod, an address or a host port. Pure.

use crate::alive::State;
use crate::model::{Kind, Object};
use crate::node::Attached;
use crate::table::{Style, wrapped};
use crate::text::age;
use crate::view::Shown;

impl Shown<'_> {
    /// Everything about what the text names; empty if it names nothing.
    pub(crate) fn why(&self, what: &str, style: Style) -> String {
        let (attachments, nameless) = self.named(what);
        let mut text = String::new();
        let mut line = |indent: usize, line: String| text += &wrapped(&line, indent, style.width);
        for attached in attachments {
            let owner = &attached.owner;
            let name = |name: &Option<String>| name.clone().unwrap_or_else(|| "unknown".to_owned());
            line(0, format!("container {}", name(&owner.container)));
            line(2, format!("network {}, interface {}", name(&owner.network), name(&owner.ifname)));
            line(2, format!("state: {}", self.state_of(&attached).0));
            if let Some(entry) = attached.entry {
                if let Some(pod) = entry.pod() {
                    line(2, format!("pod {pod}"));
                }
                line(2, format!("namespace {}", entry.netns));
                let processes: Vec<String> =
                    self.node.processes_of(&attached).iter().map(u32::to_string).collect();
                if !processes.is_empty() {
                    line(2, format!("processes {}", processes.join(" ")));
                }
                let plugins: Vec<&str> =
                    entry.plugins().iter().filter_map(|conf| conf.get("type")?.as_str()).collect();
                line(2, format!("plugins {}", plugins.join(", ")));
                line(2, format!("addresses {}", self.addresses(&attached)));
                line(
                    2,
                    format!("cached result {}, {} old", entry.file.display(), age(entry.since, self.now)),
                );
            }
            for index in attached.objects {
                self.object_lines(index, &mut line);
            }
        }
        for index in nameless {
            self.object_lines(index, &mut line);
        }
        text
    }

    fn object_lines(&self, index: usize, line: &mut dyn FnMut(usize, String)) {
        let object = &self.node.objects[index];
        let maker = object.maker.as_str();
        line(2, format!("{} {}: in {}, made by {maker}", object.kind.as_str(), object.name, object.place));
        if object.since.is_some() {
            line(4, format!("{} old", age(object.since, self.now)));
        }
        let facts: Vec<String> = object.facts.iter().map(|(key, value)| format!("{key} {value}")).collect();
        if !facts.is_empty() {
            line(4, facts.join(", "));
        }
        let (word, why) = match &self.states[index] {
            State::Alive(why) => ("alive", why),
            State::Dead(why) => ("dead", why),
            State::Unknown(why) => ("not decided", why),
        };
        line(4, format!("owner {word}: {why}"));
    }

    /// The attachments that the text names, and objects without a container.
    pub fn named(&self, what: &str) -> (Vec<Attached<'_>>, Vec<usize>) {
        let is_named = |object: &Object| self.is_named(object, what);
        let mut attachments = self.node.attachments();
        attachments.retain(|attached| {
            let container = attached.owner.container.as_deref().unwrap_or_default();
            let pod = attached.entry.and_then(|entry| entry.pod());
            let is_pod = pod.as_deref().is_some_and(|pod| pod == what || pod.ends_with(&format!("/{what}")));
            let has_address =
                |entry: &crate::cache::Entry| entry.addresses.iter().any(|ip| ip.to_string() == what);
            container == what
                || (what.len() >= 6 && container.starts_with(what))
                || is_pod
                || attached.entry.is_some_and(has_address)
                || attached.objects.iter().any(|index| is_named(&self.node.objects[*index]))
        });
        let nameless = self.node.objects.iter().enumerate();
        let nameless = nameless.filter(|(_, object)| object.owner.container.is_none() && is_named(object));
        (attachments, nameless.map(|(index, _)| index).collect())
    }

    fn is_named(&self, object: &Object, what: &str) -> bool {
        let is_port = |name: &str| {
            let from = name.split(" ->").next().unwrap_or_default();
            let port = from.rsplit(':').next().unwrap_or_default();
            from == what || port == what || port.split('/').next() == Some(what)
        };
        object.name == what
            || object.addresses.iter().any(|ip| ip.to_string() == what)
            || (object.kind == Kind::HostPort && object.name.split(", ").any(is_port))
    }
}
