//! Legacy tables, by the programs alone.

use std::io;

use cni_common::spec::ValidAttachment;
use ipnetwork::IpNetwork;

use super::kernel::dead_chain;
use super::listing::Listing;
use super::program::Programs;
use super::rules::{Rules, chain_of, old_chain_of, rules};
use super::{TRIES, absent, own_lines};
use crate::config::Conf;
use crate::owner::Owner;

/// Makes the container's rules: one process where all that is shared stands, as nearly always, and the container has no
/// rules yet.
pub(super) fn add(programs: &Programs, conf: &Conf, owner: &Owner<'_>, address: IpNetwork) -> io::Result<()> {
    let external = conf.external_chain.as_deref().filter(|_| conf.snat);
    if programs.restore(&blind(&rules(conf, owner, address, external))).is_ok() {
        return Ok(());
    }
    let mut tries = TRIES;
    loop {
        let listing = Listing::parse(&programs.save()?);
        let usable =
            external.and_then(|chain| if listing.has_chain(chain) { Some(chain) } else { absent(chain) });
        let lines = seeing(&rules(conf, owner, address, usable), &listing);
        match programs.restore(&lines) {
            Err(_) if tries > 0 => tries -= 1,
            outcome => return outcome,
        }
    }
}

/// Lines that fail as a whole if what is shared is not there, or something of the container's is.
fn blind(rules: &Rules) -> Vec<String> {
    let mut lines = vec![format!("-N {}", rules.chain)];
    lines.extend(rules.shared.iter().map(|shared| shared.rule.line("-C")));
    lines.extend(own_lines(rules));
    lines
}

/// Lines that are right for what is listed.
fn seeing(rules: &Rules, listing: &Listing) -> Vec<String> {
    let missing = rules.shared_chains.iter().filter(|chain| !listing.has_chain(chain));
    let mut lines: Vec<String> = missing.map(|chain| format!("-N {chain}")).collect();
    // This empties one that is there.
    lines.push(format!(":{} - [0:0]", rules.chain));
    lines.extend(listing.jumps_to(&rules.chain).map(|rule| rule.line("-D")));
    let shared = rules.shared.iter().filter(|shared| !listing.has(&shared.rule));
    lines.extend(shared.map(|shared| shared.rule.line(if shared.first { "-I" } else { "-A" })));
    lines.extend(own_lines(rules));
    lines
}

pub(super) fn has(owner: &Owner<'_>) -> io::Result<bool> {
    for programs in [false, true].into_iter().filter_map(Programs::legacy) {
        if Listing::parse(&programs.save()?).has_chain(&chain_of(owner.network, owner.container_id)) {
            return Ok(true);
        }
    }
    Ok(false)
}

pub(super) fn delete(owner: &Owner<'_>) -> io::Result<()> {
    let chains =
        [chain_of(owner.network, owner.container_id), old_chain_of(owner.network, owner.container_id)];
    remove(|_| chains.to_vec())
}

pub(super) fn gc(network: &str, valid: &[ValidAttachment]) -> io::Result<()> {
    remove(|listing| {
        let mut dead: Vec<String> = listing
            .rules
            .iter()
            .filter_map(|rule| dead_chain(rule.argument("--comment")?, rule.argument("-j")?, network, valid))
            .collect();
        dead.sort_unstable();
        dead.dedup();
        dead
    })
}

/// Removes the chains, as far as they are there, and what leads to them, from both families.
fn remove(dead: impl Fn(&Listing) -> Vec<String>) -> io::Result<()> {
    for programs in [false, true].into_iter().filter_map(Programs::legacy) {
        let mut tries = TRIES;
        loop {
            let listing = Listing::parse(&programs.save()?);
            let lines = removal(&listing, &dead(&listing));
            if lines.is_empty() {
                break;
            }
            match programs.restore(&lines) {
                Ok(()) => break,
                Err(_) if tries > 0 => tries -= 1,
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

fn removal(listing: &Listing, dead: &[String]) -> Vec<String> {
    let mut lines = Vec::new();
    for chain in dead.iter().filter(|chain| listing.has_chain(chain)) {
        lines.extend(listing.jumps_to(chain).map(|rule| rule.line("-D")));
        lines.push(format!("-F {chain}"));
        lines.push(format!("-X {chain}"));
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_touches_the_chain_and_what_leads_to_it_only() {
        let listing = Listing::parse(
            "*nat\n:CNI-DN-x - [0:0]\n:CNI-DN-y - [0:0]\n-A CNI-HOSTPORT-DNAT -p tcp -j CNI-DN-x\n-A CNI-HOSTPORT-DNAT -j CNI-DN-y\nCOMMIT\n",
        );
        let dead = ["CNI-DN-x".to_owned(), "CNI-SN-x".to_owned()];
        assert_eq!(
            removal(&listing, &dead),
            ["-D CNI-HOSTPORT-DNAT -p tcp -j CNI-DN-x", "-F CNI-DN-x", "-X CNI-DN-x"]
        );
        assert!(removal(&listing, &["CNI-DN-z".to_owned()]).is_empty());
    }
}
