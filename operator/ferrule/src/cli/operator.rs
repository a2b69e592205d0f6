//! The commands that look at the node and at the log of calls: `ferrule inspect`, `gc`, `repair`, `check`, `doctor`, `log` and `metrics`.
//! Each returns the exit status.

use std::env;
use std::os::unix::fs::chroot;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::error::{Error, ErrorKind};
use cni_common::line::{Line, Text};
use cni_common::plugin::Plugin;
use ferrule_bandwidth::change::Change;
use ferrule_inspect::calls::metrics::export;
use ferrule_inspect::calls::otlp;
use ferrule_inspect::calls::read::{Selection, calls, log_file};
use ferrule_inspect::calls::table::table;
use ferrule_inspect::doctor::{self, Places, Severity, examine, findings};
use ferrule_inspect::node::Roots;
use ferrule_inspect::terminal::{style, watch};
use ferrule_inspect::view::{Query, View};
use ferrule_inspect::watch::Pace;
use ferrule_inspect::{check, collect, repair, shape};
use ferrule_install::console::{note, say};
use ferrule_install::signals::Signals;

use super::arguments::{Check, Doctor, Gc, Inspect, Log, Metrics, Node, Repair, Shape, State};

/// How soon a command that runs again and again ends after a signal.
const PAUSE: Duration = Duration::from_secs(1);

impl Node {
    pub(super) fn enter(&self) -> Result<()> {
        let Some(root) = &self.root else { return Ok(()) };
        let entered = chroot(root).and_then(|()| env::set_current_dir("/"));
        entered.with_context(|| format!("enter {}", root.display()))
    }
}

impl State {
    fn roots(&self) -> Roots {
        let mut roots = Roots { results: self.cache.dir.join("results"), ..Roots::default() };
        roots.data_dirs.extend(self.data_dirs.iter().cloned());
        roots.init = self.node.init;
        roots
    }
}

/// A report of lines, or a document.
pub(super) fn report(text: String, is_json: bool) -> Text {
    if is_json { Text::json(text) } else { Text::lines(text) }
}

pub(super) fn seconds(number: u32) -> Duration {
    Duration::from_secs(number.into())
}

pub(super) fn inspect(arguments: &Inspect) -> Result<u8> {
    arguments.state.node.enter()?;
    let (roots, query) = (arguments.state.roots(), &arguments.query);
    let unexpected = match query {
        Query { what: Some(word), view, .. } if *view != View::Why => Some(word.as_str()),
        Query { format: Some(_), view, .. } if *view != View::Graph => Some("--format"),
        _ => None,
    };
    if let Some(word) = unexpected {
        let why = format!("unexpected argument '{word}'\n");
        return Err(<Error>::raw(ErrorKind::UnknownArgument, why).into());
    }
    let show = || ferrule_inspect::inspect(&roots, query, style(), arguments.json);
    if let Some(every) = arguments.watch {
        watch(seconds(every), || show().map(|(text, _)| text))?;
        return Ok(0);
    }
    let (text, failures) = show()?;
    if text.is_empty() {
        note("nothing on this node has this name");
        return Ok(3);
    }
    say(text);
    failures.iter().for_each(note);
    Ok(u8::from(!failures.is_empty()))
}

pub(super) fn gc(arguments: &Gc) -> Result<u8> {
    arguments.state.node.enter()?;
    let roots = arguments.state.roots();
    let run = || collect(&roots, arguments.mode.dry_run, &mut |line| say(line));
    let Some(every) = arguments.every else { return Ok(u8::from(!run()?)) };
    let signals = Signals::catch()?;
    let mut next = Instant::now();
    while signals.check().is_ok() {
        if next <= Instant::now() {
            if let Err(error) = run() {
                note(Line::new(error));
            }
            next = Instant::now() + seconds(every);
        }
        thread::sleep(next.saturating_duration_since(Instant::now()).min(PAUSE));
    }
    Ok(0)
}

pub(super) fn repair(arguments: &Repair, plugins: &'static [&'static Plugin]) -> Result<u8> {
    let Repair { mode, container, watch, every, per_minute, programs, json, cache, node } = arguments;
    let signals = Signals::catch()?;
    let is_ended = || signals.check().is_err();
    node.enter()?;
    let options = repair::Options {
        results: cache.dir.join("results"),
        init: node.init,
        path: programs.bin_dir.clone(),
        container: container.clone(),
        dry_run: mode.dry_run,
    };
    if *watch {
        let pace = Pace { period: seconds(*every), most: *per_minute };
        ferrule_inspect::watch::watch(plugins, &options, pace, &mut |line| say(line), &is_ended)?;
        return Ok(0);
    }
    let repaired = repair::run(plugins, &options, &is_ended)?;
    say(report(repaired.report(*json), *json));
    signals.check()?;
    Ok(u8::from(!repaired.is_done()))
}

pub(super) fn check(Check { plugins, all, json, cache, node }: &Check) -> Result<u8> {
    node.enter()?;
    let limit = seconds(plugins.timeout);
    let checked = check::run(&cache.dir.join("results"), node.init, &plugins.programs.bin_dir, limit, *all);
    say(report(checked.report(*json), *json));
    Ok(u8::from(!checked.is_sound()))
}

pub(super) fn shape(arguments: &Shape) -> Result<u8> {
    arguments.node.enter()?;
    let options = shape::Options {
        results: arguments.cache.dir.join("results"),
        init: arguments.node.init,
        container: arguments.container.clone(),
        ifname: arguments.ifname.clone(),
        change: Change { ingress: arguments.ingress, egress: arguments.egress },
    };
    say(&shape::run(&options)?);
    Ok(0)
}

pub(super) fn doctor(Doctor { conf_dir, plugins, json, node }: &Doctor, names: &[&str]) -> Result<u8> {
    node.enter()?;
    let places = Places {
        conf_dir: conf_dir.clone(),
        path: plugins.programs.bin_dir.clone(),
        limit: seconds(plugins.timeout),
        init: node.init,
    };
    let subjects = examine(&places, names)?;
    say(report(doctor::report(&subjects, *json, style().width), *json));
    Ok(u8::from(findings(&subjects).iter().any(|finding| finding.severity == Severity::Error)))
}

pub(super) fn log(arguments: &Log) -> Result<u8> {
    let path = log_file(arguments.file.as_deref())?;
    if let Some(spans) = &arguments.otlp {
        otlp::export(&path, spans)?;
        return Ok(0);
    }
    let selection = Selection {
        most: arguments.slowest.unwrap_or(arguments.last) as usize,
        slowest: arguments.slowest.is_some(),
        failed: arguments.failed,
        container: arguments.container.clone(),
        trace: arguments.trace.clone(),
    };
    let chosen = selection.of(calls(&path)?);
    match arguments.json {
        true => chosen.iter().for_each(|call| say(Text::json(&call.json))),
        false => say(Text::lines(table(&chosen, style()))),
    }
    Ok(0)
}

pub(super) fn metrics(Metrics { output, file }: &Metrics) -> Result<u8> {
    let text = export(&log_file(file.as_deref())?, output.as_deref())?;
    if output.is_none() {
        say(Text::lines(text));
    }
    Ok(0)
}
