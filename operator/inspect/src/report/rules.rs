//! The rules of the firewalls: as the programs list them, and what nf_tables says by netlink.

use std::fmt::Write as _;
use std::time::Duration;

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    BaseChain, Family, HookPoint, Table, all_chains, all_rules, base_chains, elements, sets,
};

use super::collect::{Content, File, Found};
use super::programs;
use crate::line::clean;
use crate::model::Sockets;

/// How long one program may take.
const LIMIT: Duration = Duration::from_secs(4);

/// A program that lists rules.
#[derive(Clone, Copy)]
pub(super) struct Program {
    /// The file with its output.
    pub(super) file: &'static str,
    words: &'static [&'static str],
}

pub(super) const PROGRAMS: [Program; 3] = [
    Program { file: "rules/nft.txt", words: &["nft", "list", "ruleset"] },
    Program { file: "rules/iptables-legacy.txt", words: &["iptables-legacy-save"] },
    Program { file: "rules/ip6tables-legacy.txt", words: &["ip6tables-legacy-save"] },
];

const HOOKS: [(HookPoint, &str); 4] = [
    (HookPoint::Prerouting, "prerouting"),
    (HookPoint::Forward, "forward"),
    (HookPoint::Output, "output"),
    (HookPoint::Postrouting, "postrouting"),
];

/// The output of a program. One that the node does not have is no failure.
pub(super) fn of(program: &Program) -> Found {
    match programs::output(program.words, LIMIT) {
        Ok(Some(text)) => Found::file(File { name: program.file.to_owned(), content: Content::Rules(text) }),
        Ok(None) => Found::file(File::text(program.file, format!("no program {}\n", program.words[0]))),
        Err(why) => Found::failed(why),
    }
}

/// All base chains, and the chains, rules and sets of their tables, without the program `nft`.
pub(super) fn nf_tables() -> Found {
    let text = Sockets::open().and_then(|mut sockets| list(&mut sockets.netfilter));
    match text {
        Ok(text) => {
            Found::file(File { name: "rules/nf_tables.txt".to_owned(), content: Content::Rules(text) })
        }
        Err(error) => Found::failed(error),
    }
}

fn list(socket: &mut Socket) -> Result<String, CniError> {
    let bases = base_chains(socket).context(|| "list the base chains".to_owned())?;
    let mut tables: Vec<(Family, String)> = Vec::new();
    let mut text = String::new();
    for BaseChain { table, name, base } in bases {
        let hook =
            HOOKS.iter().find(|(point, _)| base.is_on(*point)).map_or("input or ingress", |(_, word)| word);
        let policy = if base.drops { "drop" } else { "accept" };
        let _ = writeln!(text, "{} {} {name}: {hook}, policy {policy}", table.0, table.1);
        if !tables.contains(&table) {
            tables.push(table);
        }
    }
    for (family, name) in &tables {
        let table = Table::new(*family, name);
        let _ = writeln!(text, "\ntable {table}");
        if let Err(error) = list_table(socket, table, &mut text) {
            let _ = writeln!(text, "  cannot be listed: {error}");
        }
    }
    Ok(text)
}

fn list_table(
    socket: &mut Socket,
    table: Table<'_>,
    text: &mut String,
) -> Result<(), ferrule_kernel::nftables::Error> {
    let mut rules = all_rules(socket, table)?;
    for (chain, _) in all_chains(socket, table)? {
        let _ = writeln!(text, "  chain {chain}");
        for (_, rule) in rules.extract_if(.., |(of, _)| *of == chain) {
            let mut words: Vec<&str> = rule.expressions.iter().map(|expr| expr.name.as_str()).collect();
            words.dedup();
            let target = rule.jump_target().map(|to| format!(" to {to}")).unwrap_or_default();
            let source = rule.source().map(|from| format!(" from {from}")).unwrap_or_default();
            let verdict = match (rule.accepts(), rule.drops_everything()) {
                (true, _) => " accepts",
                (_, true) => " drops everything",
                _ => "",
            };
            let comment = rule.comment.clone().or_else(|| rule.compat_comment());
            let comment = comment
                .map(|comment| format!(" comment \"{}\"", clean(&comment).replace('"', " ")))
                .unwrap_or_default();
            let _ = writeln!(text, "    {}{source}{target}{verdict}{comment}", words.join(" "));
        }
    }
    for set in sets(socket, table)? {
        let count = elements(socket, table, &set)?.len();
        let _ = writeln!(text, "  set {set}: {count} elements");
    }
    Ok(())
}
