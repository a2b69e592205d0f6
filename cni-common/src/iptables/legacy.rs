//! Legacy tables, which are not nf_tables, by the programs alone: the only processes that a plugin may start to look at
//! something, and only where the network namespace has a legacy nat table.

use std::io;

use super::{Listing, Programs};

/// How often a removal is tried again because somebody else changed the same meanwhile.
const TRIES: u32 = 10;

/// The legacy nat tables that there are, IPv4 first. A process for each.
///
/// # Errors
/// What a program said.
pub fn listings() -> io::Result<Vec<Listing>> {
    programs().map(|programs| Ok(Listing::parse(&programs.save()?))).collect()
}

fn programs() -> impl Iterator<Item = Programs> {
    [false, true].into_iter().filter_map(Programs::legacy)
}

/// Removes the chains that `dead` picks, as far as they are there, and what leads to them, from both families. A process
/// for each that has a nat table, and another one where something is to be removed.
///
/// # Errors
/// What a program said.
pub fn remove(dead: impl Fn(&Listing) -> Vec<String>) -> io::Result<()> {
    for programs in programs() {
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

/// Removes the chains that rules jump to and that are dead; `dead_chain` says of a rule's comment and target which chain
/// that is, if any.
///
/// # Errors
/// What a program said.
pub fn remove_dead(dead_chain: impl Fn(&str, &str) -> Option<String>) -> io::Result<()> {
    remove(|listing| {
        let dead = |rule: &super::Rule| dead_chain(rule.argument("--comment")?, rule.argument("-j")?);
        let mut dead: Vec<String> = listing.rules.iter().filter_map(dead).collect();
        dead.sort_unstable();
        dead.dedup();
        dead
    })
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
