//! The rows of each view. Pure.

use std::time::SystemTime;

use crate::alive::State;
use crate::model::{Kind, Object};
use crate::named::add_new;
use crate::node::{Attached, Leak, Node};
use crate::scene::Sandbox;
use crate::table::{Cell, Column, Row, Style, Tone, layout, wrapped};

/// What to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// One row for each attachment.
    Pods,
    /// Reserved addresses.
    Addresses,
    /// Host ports.
    Ports,
    /// Limits.
    Shaping,
    /// Host ends and IFBs.
    Links,
    /// What dead owners have left.
    Leaks,
    /// Everything about a container, pod, address or port.
    Why(String),
}

impl View {
    /// The kinds of objects that the view shows.
    pub fn kinds(&self) -> &'static [Kind] {
        match self {
            View::Addresses => &[Kind::Address],
            View::Ports => &[Kind::HostPort],
            View::Shaping => &[Kind::Ifb, Kind::Limit],
            View::Links => &[Kind::Link, Kind::Ifb],
            View::Pods | View::Leaks | View::Why(_) => &[],
        }
    }
}

/// A node with the state of each object.
pub struct Shown<'n> {
    /// The node.
    pub node: &'n Node,
    /// The states, in the order of the objects.
    pub states: &'n [State],
    /// The leaks.
    pub leaks: &'n [Leak],
    /// Now.
    pub now: SystemTime,
}

const POD: Column = ("POD", 12);
const CONTAINER: Column = ("CONTAINER", 8);
const NETWORK: Column = ("NETWORK", 6);
const STATE: Column = ("STATE", 5);
const AGE: Column = ("AGE", 3);

impl Shown<'_> {
    /// The view as text.
    pub fn text(&self, view: &View, style: Style) -> String {
        let objects = || self.node.objects_of(view.kinds()).into_iter();
        let rows_of = |columns: &[Column], row: &dyn Fn(usize) -> Vec<Row>| {
            layout(columns, &objects().flat_map(row).collect::<Vec<_>>(), style)
        };
        match view {
            View::Pods => self.pods(style),
            View::Addresses => {
                let columns = [("ADDRESS", 9), NETWORK, POD, CONTAINER, ("IF", 4), ("MAKER", 6), STATE, AGE];
                rows_of(&columns, &|index| {
                    let object = &self.node.objects[index];
                    let [network, pod, container, ifname] = self.names(object);
                    let maker = object.maker.as_str().into();
                    let cells = vec![object.name.clone().into(), network, pod, container, ifname, maker];
                    vec![self.with_state(cells, index)]
                })
            }
            View::Ports => {
                let columns = [("HOST PORT", 9), ("TO", 10), NETWORK, POD, CONTAINER, ("WHERE", 8), STATE];
                rows_of(&columns, &|index| {
                    let object = &self.node.objects[index];
                    let port = |text: &str| {
                        let (from, to) = text.split_once(" -> ").unwrap_or((text, ""));
                        let [network, pod, container, _] = self.names(object);
                        let place = object.place.clone().into();
                        let cells = vec![from.into(), to.into(), network, pod, container, place];
                        let mut row = self.with_state(cells, index);
                        row.cells.pop();
                        row
                    };
                    object.name.split(", ").map(port).collect()
                })
            }
            View::Shaping => {
                let columns = [
                    ("LINK", 12),
                    ("RATE", 8),
                    ("PASSED", 6),
                    ("DROPPED", 7),
                    NETWORK,
                    POD,
                    CONTAINER,
                    STATE,
                ];
                rows_of(&columns, &|index| {
                    let object = &self.node.objects[index];
                    let [network, pod, container, _] = self.names(object);
                    let name = match object.kind {
                        Kind::Ifb => format!("from container, on {}", object.name),
                        _ => object.name.clone(),
                    };
                    let facts = ["rate", "passed", "dropped"].map(|key| fact(object, key));
                    let [rate, passed, dropped] = [bits(&facts[0]), bytes(&facts[1]), first(&facts[2])];
                    let cells = vec![
                        name.into(),
                        rate.into(),
                        passed.into(),
                        dropped.into(),
                        network,
                        pod,
                        container,
                    ];
                    let mut row = self.with_state(cells, index);
                    row.cells.pop();
                    vec![row]
                })
            }
            View::Links => {
                let columns = [
                    ("LINK", 8),
                    ("KIND", 4),
                    ("MASTER", 4),
                    ("MTU", 4),
                    ("TO", 4),
                    ("FROM", 4),
                    ("DROPPED", 4),
                    POD,
                    CONTAINER,
                    ("MAKER", 6),
                    STATE,
                ];
                rows_of(&columns, &|index| {
                    let object = &self.node.objects[index];
                    let [_, pod, container, _] = self.names(object);
                    let kind = if object.kind == Kind::Ifb { "ifb".to_owned() } else { fact(object, "kind") };
                    let mut cells: Vec<Cell> = vec![object.name.clone().into(), kind.into()];
                    cells.extend(["master", "mtu"].map(|key| Cell::from(fact(object, key))));
                    cells.extend(
                        ["to container", "from container"].map(|key| Cell::from(bytes(&fact(object, key)))),
                    );
                    cells.extend([
                        first(&fact(object, "dropped")).into(),
                        pod,
                        container,
                        object.maker.as_str().into(),
                    ]);
                    let mut row = self.with_state(cells, index);
                    row.cells.pop();
                    vec![row]
                })
            }
            View::Leaks => self.leaks(style),
            View::Why(what) => self.why(what, style),
        }
    }

    fn pods(&self, style: Style) -> String {
        let columns =
            [POD, CONTAINER, NETWORK, ("IF", 4), ("ADDRESSES", 9), ("PORTS", 5), ("LIMITS", 6), STATE, AGE];
        let rows = self.node.attachments().into_iter().map(|attached| {
            let owner = &attached.owner;
            let text = |name: &Option<String>| Cell::from(name.clone().unwrap_or_default());
            let (state, tone) = self.state_of(&attached);
            let since = attached.entry.and_then(|entry| entry.since);
            let cells = vec![
                attached.entry.and_then(|entry| entry.pod()).unwrap_or_default().into(),
                short(owner.container.as_deref().unwrap_or_default()).into(),
                text(&owner.network),
                text(&owner.ifname),
                self.addresses(&attached).into(),
                self.joined(&attached, &[Kind::HostPort], |object| {
                    object
                        .name
                        .split(", ")
                        .map(|port| port.split(" ->").next().unwrap_or_default())
                        .collect::<Vec<_>>()
                        .join(",")
                })
                .into(),
                self.joined(&attached, &[Kind::Ifb, Kind::Limit], |object| bits(&fact(object, "rate")))
                    .into(),
                Cell { text: state.to_owned(), tone },
                age(since, self.now).into(),
            ];
            Row { cells, note: None }
        });
        layout(&columns, &rows.collect::<Vec<_>>(), style)
    }

    fn leaks(&self, style: Style) -> String {
        let columns = [("KIND", 6), ("NAME", 10), NETWORK, CONTAINER, ("MAKER", 6), AGE];
        let row = |leak: &Leak| {
            let object = &self.node.objects[leak.object];
            let [network, _, container, _] = self.names(object);
            let cells = vec![
                object.kind.as_str().into(),
                object.name.clone().into(),
                network,
                container,
                object.maker.as_str().into(),
                age(object.since, self.now).into(),
            ];
            Row { cells, note: Some(format!("in {}: {}", object.place, leak.proof)) }
        };
        let rows: Vec<Row> = self.leaks.iter().map(row).collect();
        if rows.is_empty() { "no leaks\n".to_owned() } else { layout(&columns, &rows, style) }
    }

    /// Everything about what the text names; empty if it names nothing.
    fn why(&self, what: &str, style: Style) -> String {
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

    /// Network, pod, container and interface of an object.
    fn names(&self, object: &Object) -> [Cell; 4] {
        let owner = &object.owner;
        let mut entries = self.node.evidence.cache.of(owner.container.as_deref().unwrap_or_default());
        let pod = entries.find(|entry| entry.owner.may_be(owner)).and_then(|entry| entry.pod());
        let text = |name: &Option<String>| Cell::from(name.clone().unwrap_or_default());
        [
            text(&owner.network),
            pod.unwrap_or_default().into(),
            short(owner.container.as_deref().unwrap_or_default()).into(),
            text(&owner.ifname),
        ]
    }

    /// The cells, the object's state and its age.
    fn with_state(&self, mut cells: Vec<Cell>, index: usize) -> Row {
        let (text, tone) = word(&self.states[index]);
        cells.push(Cell { text: text.to_owned(), tone });
        cells.push(age(self.node.objects[index].since, self.now).into());
        Row { cells, note: None }
    }

    /// The state of an attachment in one word.
    pub fn state_of(&self, attached: &Attached<'_>) -> (&'static str, Tone) {
        match attached.entry.map(|entry| &entry.sandbox) {
            Some(Sandbox::Live(_)) => ("alive", Tone::Good),
            Some(Sandbox::Gone(_)) if attached.objects.is_empty() => ("dead", Tone::Bad),
            _ => attached
                .objects
                .first()
                .map_or(("unknown", Tone::Doubtful), |index| word(&self.states[*index])),
        }
    }

    /// The addresses of an attachment: those of its result, or of its objects.
    pub fn addresses(&self, attached: &Attached<'_>) -> String {
        let cached = attached.entry.map(|entry| entry.addresses.clone()).unwrap_or_default();
        let mut addresses = cached;
        if addresses.is_empty() {
            for index in &attached.objects {
                add_new(&mut addresses, self.node.objects[*index].addresses.iter().copied());
            }
        }
        addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
    }

    fn joined(&self, attached: &Attached<'_>, kinds: &[Kind], text: impl Fn(&Object) -> String) -> String {
        let objects = attached.objects.iter().map(|index| &self.node.objects[*index]);
        objects.filter(|object| kinds.contains(&object.kind)).map(text).collect::<Vec<_>>().join(",")
    }
}

fn word(state: &State) -> (&'static str, Tone) {
    match state {
        State::Alive(_) => ("alive", Tone::Good),
        State::Dead(_) => ("dead", Tone::Bad),
        State::Unknown(_) => ("unknown", Tone::Doubtful),
    }
}

fn fact(object: &Object, key: &str) -> String {
    object.facts.iter().find(|(name, _)| *name == key).map(|(_, value)| value.clone()).unwrap_or_default()
}

/// The number at the start of a fact.
fn first(fact: &str) -> String {
    fact.split(' ').next().unwrap_or_default().to_owned()
}

fn bits(fact: &str) -> String {
    let number = first(fact).parse().ok();
    number.map_or(String::new(), |number: u64| format!("{}bit/s", scaled(number, 1000)))
}

fn bytes(fact: &str) -> String {
    let number = first(fact).parse().ok();
    number.map_or(String::new(), |number: u64| format!("{}B", scaled(number, 1024)))
}

/// The number with a prefix, rounded down to a tenth.
fn scaled(number: u64, step: u64) -> String {
    let (mut tenths, mut prefix) = (number.saturating_mul(10), "");
    for next in ["k", "M", "G", "T", "P"] {
        if tenths < step * 10 {
            break;
        }
        (tenths, prefix) = (tenths / step, next);
    }
    match tenths % 10 {
        0 => format!("{}{prefix}", tenths / 10),
        tenth => format!("{}.{tenth}{prefix}", tenths / 10),
    }
}

/// The first 12 characters of a long container ID, as other tools show it.
fn short(container: &str) -> String {
    let is_hash = container.len() >= 32 && container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { container[..12].to_owned() } else { container.to_owned() }
}

fn age(since: Option<SystemTime>, now: SystemTime) -> String {
    let Some(seconds) = since.and_then(|since| now.duration_since(since).ok()).map(|age| age.as_secs())
    else {
        return "-".to_owned();
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, step, text) in [
            (0, 1000, "0"),
            (999, 1000, "999"),
            (1500, 1000, "1.5k"),
            (10_000_000, 1000, "10M"),
            (1024, 1024, "1k"),
        ] {
            assert_eq!(scaled(number, step), text);
        }
        assert_eq!(bits("8000000 bit/s"), "8Mbit/s");
        assert_eq!(bytes(""), "");
    }

    #[test]
    fn ages_and_containers() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (seconds, text) in [(5, "5s"), (61, "1m"), (7200, "2h"), (200_000, "2d")] {
            assert_eq!(age(Some(now - Duration::from_secs(seconds)), now), text);
        }
        assert_eq!((age(None, now), age(Some(now + Duration::from_secs(1)), now)), ("-".into(), "-".into()));
        assert_eq!(short(&"0123456789ab".repeat(4)), "0123456789ab");
        assert_eq!(short("web"), "web");
    }
}
