//! `ferrule policy`. Each command returns the exit status.

use anyhow::Result;
use ferrule_inspect::policy::text::text;
use ferrule_inspect::policy::verdict::Word;
use ferrule_inspect::policy::why::{Options, explain};
use ferrule_inspect::terminal::style;
use ferrule_install::console::{note, say};

use super::arguments::policy::{Policy, Why};
use super::operator::report;
use super::watch::watch;

pub(super) fn run(command: &Policy) -> Result<u8> {
    match command {
        Policy::Why(arguments) => why(arguments),
        Policy::Watch(arguments) => watch(arguments),
    }
}

fn why(Why { from, to, port, json, cache, node }: &Why) -> Result<u8> {
    node.enter()?;
    let options = Options {
        results: cache.dir.join("results"),
        init: node.init,
        from: from.clone(),
        to: to.clone(),
        port: *port,
    };
    let explanation = explain(&options)?;
    let shown = if *json { serde_json::to_string(&explanation)? } else { text(&explanation, style()) };
    say(report(shown, *json));
    explanation.failures.iter().for_each(note);
    Ok(match explanation.word() {
        Word::Allowed | Word::AllowedHere => 0,
        Word::Denied => 3,
        Word::Unknown => 4,
    })
}
