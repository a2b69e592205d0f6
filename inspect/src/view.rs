//! The rows of each view. Pure.

use std::time::SystemTime;

use crate::alive::State;
use crate::model::{Kind, Object};
use crate::named::add_new;
use crate::node::{Attached, Leak, Node};
use crate::scene::Sandbox;
use crate::table::{Cell, Column, Row, Style, Tone, layout};
use crate::text::{age, bits, bytes, first, short};

/// What to show.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum View {
    /// One row for each attachment.
    Pods {
        /// Also for those of `lo`.
        all: bool,
    },
    /// Reserved and leased addresses.
    Addresses,
    /// Host ports.
    Ports,
    /// Limits.
    Shaping,
    /// Host ends, IFBs, VLAN devices with their users, devices of containers, and links in containers.
    Links,
    /// Devices of the node that containers have.
    Devices,
    /// What dead owners have left.
    Leaks,
    /// Everything about a container, pod, address or port.
    Why(String),
}

impl View {
    /// The kinds of objects that the view shows.
    pub fn kinds(&self) -> &'static [Kind] {
        match self {
            View::Addresses => &[Kind::Address, Kind::Lease],
            View::Ports => &[Kind::HostPort],
            View::Shaping => &[Kind::Ifb, Kind::Limit],
            View::Links => &[Kind::Link, Kind::Ifb, Kind::VlanUser, Kind::Device],
            View::Devices => &[Kind::Device],
            View::Pods { .. } | View::Leaks | View::Why(_) => &[],
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
            View::Pods { all } => self.pods(*all, style),
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
            View::Devices => {
                let columns =
                    [("DEVICE", 8), ("ID", 12), ("RESOURCE", 8), NETWORK, POD, CONTAINER, ("IF", 4), STATE];
                rows_of(&columns, &|index| {
                    let object = &self.node.objects[index];
                    let mut cells: Vec<Cell> = vec![object.name.clone().into()];
                    cells.extend(["id", "resource"].map(|key| Cell::from(fact(object, key))));
                    cells.extend(self.names(object));
                    let mut row = self.with_state(cells, index);
                    row.cells.pop();
                    vec![row]
                })
            }
            View::Leaks => self.leaks(style),
            View::Why(what) => self.why(what, style),
        }
    }

    fn pods(&self, all: bool, style: Style) -> String {
        let columns =
            [POD, CONTAINER, NETWORK, ("IF", 4), ("ADDRESSES", 9), ("PORTS", 5), ("IN/OUT", 6), STATE, AGE];
        let rows = self.node.attachments_to_networks(all).map(|attached| {
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
                self.joined(&attached, Kind::HostPort, |object| {
                    object
                        .name
                        .split(", ")
                        .map(|port| port.split(" ->").next().unwrap_or_default())
                        .collect::<Vec<_>>()
                        .join(",")
                })
                .into(),
                self.limits(&attached).into(),
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
        match (rows.is_empty(), self.node.failures.is_empty()) {
            (true, true) => "no leaks\n".to_owned(),
            (true, false) => "no leaks can be proven\n".to_owned(),
            (false, _) => layout(&columns, &rows, style),
        }
    }

    /// Network, pod, container and interface of an object.
    fn names(&self, object: &Object) -> [Cell; 4] {
        let owner = &object.owner;
        let mut entries = self.node.evidence.cache.of(owner.container.as_deref().unwrap_or_default());
        let pod = entries.find(|entry| entry.owner.may_be(owner)).and_then(|entry| entry.pod());
        let pod = pod.unwrap_or_else(|| fact(object, "pod"));
        let text = |name: &Option<String>| Cell::from(name.clone().unwrap_or_default());
        [
            text(&owner.network),
            pod.into(),
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

    /// The rates in bits per second to and from the container, such as `80M/40M`; `-` for no limit.
    fn limits(&self, attached: &Attached<'_>) -> String {
        let limits = [Kind::Limit, Kind::Ifb].map(|kind| {
            let rate = self.joined(attached, kind, |object| bits(&fact(object, "rate")).replace("bit/s", ""));
            if rate.is_empty() { "-".to_owned() } else { rate }
        });
        if limits == ["-", "-"] { String::new() } else { limits.join("/") }
    }

    fn joined(&self, attached: &Attached<'_>, kind: Kind, text: impl Fn(&Object) -> String) -> String {
        let objects = attached.objects.iter().map(|index| &self.node.objects[*index]);
        objects.filter(|object| kind == object.kind).map(text).collect::<Vec<_>>().join(",")
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
