//! The parts of a report.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cni_common::call_log::rfc3339;
use serde_json::{Value, json};

use super::collect::{File, Found, Part};
use super::mask::names::Class;
use super::{Options, configs, facts, known, links, rules};
use crate::cache::Cache;
use crate::calls::Call;
use crate::calls::read::{calls, log_file};
use crate::calls::table::table;
use crate::check;
use crate::doctor::{self, Places, examine, networks};
use crate::model::{Object, Sockets};
use crate::node::{Node, Roots};
use crate::sight::Sight;
use crate::table::Style;
use crate::view::{Query, View};

/// How long one call of a plugin may take.
const CALL: Duration = Duration::from_secs(3);
/// The most bytes of calls; older ones are left out.
const LOG: usize = 2 << 20;
/// The most attachments and objects as JSON.
const MOST: usize = 3000;
/// How far back the log is read.
const HOUR: Duration = Duration::from_secs(3600);

/// The views of `ferrule inspect` that need no further word.
const VIEWS: [(View, &str); 9] = [
    (View::Pods, "pods.txt"),
    (View::Addresses, "addresses.txt"),
    (View::Ports, "ports.txt"),
    (View::Shaping, "shaping.txt"),
    (View::Links, "links.txt"),
    (View::Devices, "devices.txt"),
    (View::Nodes, "nodes.txt"),
    (View::Leaks, "leaks.txt"),
    (View::Graph, "graph.svg"),
];

pub(super) fn all(options: Options) -> Vec<Part> {
    let Options { results, data_dirs, conf_dir, path, init, log, ours, extra, .. } = options;
    let mut roots = Roots { results: results.clone(), init, ..Roots::default() };
    roots.data_dirs.extend(data_dirs);
    let places = Places { conf_dir: conf_dir.clone(), path: path.clone(), limit: CALL, init };
    let of_links = roots.clone();
    let mut parts: Vec<Part> = vec![
        ("versions", Box::new(facts::versions)),
        ("kernel", Box::new(facts::kernel)),
        ("doctor", Box::new(move || doctor(&places, &ours))),
        ("inspect", Box::new(move || inspect(&roots))),
        ("check", Box::new(move || check(&results, init, &path))),
        ("log", Box::new(move || log_of_calls(log.as_deref()))),
        ("nf_tables", Box::new(rules::nf_tables)),
        ("links of the node", Box::new(links::of_node)),
        ("links of the pods", Box::new(move || links::of_pods(&of_links))),
        ("configurations", Box::new(move || configs::networks(&conf_dir))),
        ("daemons", Box::new(configs::daemons)),
    ];
    parts.extend(
        rules::PROGRAMS.map(|program| -> Part { (program.file, Box::new(move || rules::of(&program))) }),
    );
    parts.extend(extra.into_iter().map(|(file, work)| -> Part {
        (
            file,
            Box::new(move || work().map_or_else(Found::failed, |text| Found::file(File::text(file, text)))),
        )
    }));
    parts
}

fn doctor(places: &Places, ours: &[&str]) -> Found {
    let subjects = match examine(places, ours) {
        Ok(subjects) => subjects,
        Err(error) => return Found::failed(error),
    };
    let (networks, _) = networks::read(&places.conf_dir);
    let mut found = Found::file(File::text("doctor.txt", doctor::report(&subjects, false, None)));
    found.names.extend(networks.into_iter().map(|network| (Class::Network, network.name)));
    // The problems of ferrule-node name nodes.
    found.learned.push(configs::status());
    found
}

fn check(results: &Path, init: Option<u32>, path: &[std::path::PathBuf]) -> Found {
    let checked = check::run(results, init, path, CALL, true);
    let cache = Cache::read(results, &Sight::of_check(init, results));
    let mut names = known::names_of(&cache);
    for check in &checked.checks {
        names.extend(check.owner.container.iter().map(|name| (Class::Container, name.clone())));
        names.extend(check.owner.network.iter().map(|name| (Class::Network, name.clone())));
    }
    Found { names, ..Found::file(File::text("check.txt", checked.report(false))) }
}

fn inspect(roots: &Roots) -> Found {
    let read = Sockets::open().and_then(|mut sockets| Node::read(roots, &mut sockets, true));
    let mut node = match read {
        Ok(node) => node,
        Err(error) => return Found::failed(error),
    };
    node.judge();
    let query = |view| Query { view, what: None, format: None, all: true };
    let mut found = Found { names: names(&node), failures: node.failures.clone(), ..Found::default() };
    found.failures.extend(node.unseen());
    found.failures.extend(node.left_out.iter().map(|what| format!("left out: {what}")));
    let views = VIEWS
        .map(|(view, file)| File::text(format!("inspect/{file}"), query(view).text(&node, Style::default())));
    found.files.extend(views);
    // A path may be no UTF-8.
    let mut attachments = node.attachments(true);
    attachments.truncate(MOST);
    // Their objects follow.
    attachments.iter_mut().for_each(|attached| attached.objects.clear());
    let objects: Vec<&Object> = node.objects.iter().take(MOST).collect();
    let document = serde_json::to_value((attachments, objects));
    match document {
        Ok(document) => found.files.push(File::json(
            "inspect/node.json",
            json!({"attachments": document[0], "objects": document[1]}),
        )),
        Err(error) => found.failures.push(format!("node.json: {error}")),
    }
    found
}

/// All names that the node has, also those that a text hides in a longer word.
fn names(node: &Node) -> Vec<(Class, String)> {
    let mut names = vec![(Class::Node, node.host.clone())];
    let mut add = |class, name: &str| names.push((class, name.to_owned()));
    for object in &node.objects {
        object.owner.container.iter().for_each(|name| add(Class::Container, name));
        object.owner.network.iter().for_each(|name| add(Class::Network, name));
        add(Class::Uid, object.fact("uid"));
        add(Class::Node, object.fact("node"));
        for name in [object.fact("pod"), object.fact("claim")] {
            let (namespace, pod) = name.split_once('/').unwrap_or(("", name));
            add(Class::Namespace, namespace);
            add(Class::Pod, pod);
        }
    }
    names.extend(known::names_of(&node.evidence.cache));
    names.retain(|(_, name)| !name.is_empty());
    names
}

/// The calls of the last hour, as a table and with all steps.
fn log_of_calls(given: Option<&Path>) -> Found {
    let read = log_file(given).and_then(|path| calls(&path));
    let mut calls = match read {
        Ok(calls) => calls,
        Err(error) => return Found::file(File::text("log.txt", format!("{error}\n"))),
    };
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let since = rfc3339(now.saturating_sub(HOUR));
    calls.retain(|call| call.text("time") >= since.as_str());
    calls.sort_by(|one, other| one.text("time").cmp(other.text("time")));
    let mut bytes = 0;
    let is_last = |call: &&Call| {
        bytes += call.json.to_string().len();
        bytes <= LOG
    };
    let count = calls.iter().rev().take_while(is_last).count();
    calls.drain(..calls.len() - count);
    calls.iter_mut().for_each(without_baggage);
    let lines: Vec<Value> = calls.iter().map(|call| call.json.clone()).collect();
    let text = File::text("log.txt", table(&calls, Style::default()));
    Found { files: vec![text, File::json("log.json", lines.into())], ..Found::default() }
}

/// What the runtime's trace carries besides its IDs may be anything.
fn without_baggage(call: &mut Call) {
    if let Some(trace) = call.json.get_mut("trace").and_then(Value::as_object_mut) {
        trace.retain(|key, _| ["id", "parent", "span"].contains(&key.as_str()));
    }
}
