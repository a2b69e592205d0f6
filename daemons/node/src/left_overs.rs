//! `ferrule-node cleanup --left-overs NAME`: removes what another network has left and no pod uses any more.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::Programs;
use ferrule_kernel::netlink::{LinkId, Socket};
use ferrule_kernel::nftables::{Batch, Family, Table, all_rules};
use ferrule_kit::cluster::configurations;
use ferrule_kit::lock;
use ferrule_kit::origin::{LeftOvers, Origin, Places, TABLES, Thing, find};
use nix::errno::Errno;

use crate::arguments::Options;

/// Removes them, or says what it would remove. Returns the report.
///
/// # Errors
/// Something is not known, the other network runs, or pods use it: nothing has been removed then. Or some objects could not be
/// removed; the others are gone.
pub fn run(options: &Options, origin: &'static Origin, is_dry: bool) -> Result<String> {
    let conf_dir = options.conflist.parent().context("the conflist has no folder")?;
    let places = Places { conf_dir, networks: Path::new(ferrule_kit::origin::NETWORKS) };
    let (mut route, mut netfilter) = (Socket::route()?, Socket::netfilter()?);
    let found = find(origin, places, &mut route, &mut netfilter).map_err(anyhow::Error::msg)?;
    if let Some(why) = refusal(&found, &configurations(conf_dir)) {
        bail!("nothing is removed: {why}");
    }
    if found.things.is_empty() {
        return Ok(format!("{} has left nothing\n", origin.name));
    }
    let (mut report, mut errors) = (String::new(), Vec::new());
    let mut done = |thing: &Thing, outcome: Result<()>| match outcome {
        Ok(()) => report.push_str(&format!("{} {thing}\n", if is_dry { "would remove" } else { "removed" })),
        Err(error) => errors.push(format!("{thing}: {error:#}")),
    };
    // A jump from one chain to another keeps both: all chains of a table go in one transaction.
    let mut last = None;
    for thing in &found.things {
        let table = match thing {
            Thing::Chain(family, table, _) => Some((*family, *table, false)),
            Thing::Legacy(family, table, _) => Some((*family, *table, true)),
            _ => None,
        };
        let outcome = match (is_dry, table) {
            (true, _) => Ok(()),
            (false, None) => remove(thing, &mut route, &mut netfilter),
            (false, Some(table)) if last == Some(table) => Ok(()),
            (false, Some((family, table, false))) => chains(&found, family, table, &mut netfilter),
            (false, Some((family, table, true))) => legacy(&found, family, table),
        };
        last = table.filter(|_| outcome.is_ok());
        done(thing, outcome);
    }
    match errors.is_empty() {
        true => Ok(report),
        false => bail!("{}{report}", errors.iter().map(|error| format!("{error}; ")).collect::<String>()),
    }
}

/// Why nothing may be removed. `files` are the network configurations.
fn refusal(found: &LeftOvers, files: &[std::path::PathBuf]) -> Option<String> {
    let name = found.origin.name;
    if let Some(process) = &found.process {
        return Some(format!(
            "process {process} runs, and {name} would come again: delete its DaemonSet, or stop it"
        ));
    }
    if !found.users.is_empty() {
        let users = found.users.join(", ");
        return Some(format!("pods still use {name}: {users}. Restart them: kubectl drain, then uncordon"));
    }
    let is_left = |file: &std::path::PathBuf| found.things.contains(&Thing::File(file.clone()));
    let has_file = found.things.iter().any(|thing| matches!(thing, Thing::File(_)));
    (has_file && files.iter().all(is_left))
        .then(|| format!("the only network of this node is that of {name}: start ferrule-node first"))
}

fn remove(thing: &Thing, route: &mut Socket, netfilter: &mut Socket) -> Result<()> {
    match thing {
        Thing::File(path) => gone(fs::remove_file(path)),
        Thing::Store(path) => gone(fs::remove_dir_all(path)),
        Thing::Route(found) => gone_from_kernel(route.request(found.delete_from(found.table)).map(drop)),
        Thing::Device(link) => {
            // A pod may have come meanwhile.
            if link.kind == "bridge" && !route.ports(link.index)?.is_empty() {
                bail!("it has ports now");
            }
            // By its index: another link may have got the name.
            route.delete_link(LinkId::Index(link.index)).map(drop).context("delete the link")
        }
        Thing::Table(family, name) => {
            let mut batch = Batch::new();
            batch.delete_table(Table::new(*family, name));
            batch
                .commit(netfilter)
                .or_else(|error| if error.is_not_found() { Ok(()) } else { Err(error) })?;
            Ok(())
        }
        Thing::Chain(..) | Thing::Legacy(..) => Ok(()),
    }
}

fn gone(outcome: std::io::Result<()>) -> Result<()> {
    match outcome {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

fn gone_from_kernel(outcome: Result<(), ferrule_kernel::netlink::Error>) -> Result<()> {
    match outcome {
        Err(error) if error.errno != Errno::ESRCH => Err(error.into()),
        _ => Ok(()),
    }
}

/// Removes all chains of the origin from a table of iptables-nft, and the rules in other chains that jump to them.
fn chains(found: &LeftOvers, family: IpFamily, name: &str, socket: &mut Socket) -> Result<()> {
    let (table, origin) = (Table::new(Family::of(family), name), found.origin);
    let mut batch = Batch::new();
    for (chain, rule) in all_rules(socket, table)? {
        let comment = rule.compat_comment().or_else(|| rule.comment.clone());
        if origin.has_rule(&chain, rule.jump_target().as_deref(), comment.as_deref()) {
            batch.delete_rule(table, &chain, rule.handle);
        }
    }
    let its: Vec<&String> =
        found.things.iter().filter_map(|thing| in_table(thing, family, name, false)).collect();
    its.iter().for_each(|chain| {
        batch.flush_chain(table, chain);
    });
    its.iter().for_each(|chain| {
        batch.delete_chain(table, chain);
    });
    batch.commit(socket).with_context(|| format!("change {table}"))
}

/// The same in iptables-legacy.
fn legacy(found: &LeftOvers, family: IpFamily, name: &str) -> Result<()> {
    let table = TABLES.into_iter().find(|table| *table == name).context("no table")?;
    let programs = Programs::legacy(family, table).context("the table is gone")?;
    let _lock = lock::iptables()?;
    let listing = programs.list()?;
    let foreign = listing
        .rules
        .iter()
        .filter(|rule| found.origin.has_rule(&rule.chain, rule.argument("-j"), rule.argument("--comment")));
    let mut lines: Vec<String> = foreign.map(|rule| rule.line("-D")).collect();
    let its: Vec<&String> =
        found.things.iter().filter_map(|thing| in_table(thing, family, name, true)).collect();
    lines.extend(its.iter().map(|chain| format!("-F {chain}")));
    lines.extend(its.iter().map(|chain| format!("-X {chain}")));
    Ok(programs.restore(&lines)?)
}

/// The chain, if it is in this table.
fn in_table<'t>(thing: &'t Thing, family: IpFamily, table: &str, is_legacy: bool) -> Option<&'t String> {
    match thing {
        Thing::Chain(of, name, chain) if (*of, *name, false) == (family, table, is_legacy) => Some(chain),
        Thing::Legacy(of, name, chain) if (*of, *name, true) == (family, table, is_legacy) => Some(chain),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use ferrule_kit::origin::named;

    use super::*;

    #[test]
    fn nothing_is_removed_while_something_uses_it() {
        let file = PathBuf::from("/n/10-flannel.conflist");
        let ours = PathBuf::from("/n/20-ferrule.conflist");
        let left = |process: Option<&str>, users: &[&str]| LeftOvers {
            origin: named("flannel").unwrap(),
            things: vec![Thing::File(file.clone())],
            users: users.iter().map(|user| (*user).to_owned()).collect(),
            process: process.map(str::to_owned),
        };
        let said = |found: LeftOvers, files: &[PathBuf]| refusal(&found, files).unwrap_or_default();
        let both = [file.clone(), ours];
        assert!(said(left(Some("flanneld (7)"), &[]), &both).starts_with("process flanneld (7) runs"));
        assert!(said(left(None, &["veth1"]), &both).starts_with("pods still use flannel: veth1"));
        assert!(said(left(None, &[]), &both[..1]).starts_with("the only network"));
        assert_eq!(said(left(None, &[]), &both), "");
    }
}
