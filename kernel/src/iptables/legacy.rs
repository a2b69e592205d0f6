//! Legacy iptables tables, which are not in nf_tables. Only the iptables programs can read them. This module
//! starts these programs only if the network namespace has a legacy nat table.

use std::io;

use super::{Listing, NAT, Programs};
use crate::ip::IpFamily;
use crate::retry::Limit;
use crate::sorted;

/// The attempts to remove chains from one table.
const ATTEMPTS: Limit = Limit { attempts: 10, changes: "changes of the legacy nat table" };

/// The contents of the existing legacy nat tables, IPv4 first. Starts one process for each table.
///
/// # Errors
/// Exit status and stderr of a failed program.
pub fn listings() -> io::Result<Vec<Listing>> {
    programs().map(|programs| programs.list()).collect()
}

fn programs() -> impl Iterator<Item = Programs> {
    IpFamily::ALL.into_iter().filter_map(|family| Programs::legacy(family, NAT))
}

/// Removes the chains that `dead` selects, if they exist, and all jumps to them, in both families. Starts one
/// process for each family that has a nat table, and a second one if there is something to remove.
///
/// # Errors
/// Exit status and stderr of a failed program.
pub fn remove(dead: impl Fn(&Listing) -> Vec<String>) -> io::Result<()> {
    programs().try_for_each(|programs| programs.change(ATTEMPTS, |listing| removal(listing, &dead(listing))))
}

/// Removes dead chains and all jumps to them. `dead_chain` gets the comment and the target of each rule and
/// returns the name of the dead chain, if any.
///
/// # Errors
/// Exit status and stderr of a failed program.
pub fn remove_dead(dead_chain: impl Fn(&str, &str) -> Option<String>) -> io::Result<()> {
    remove(|listing| {
        let dead = |rule: &super::Rule| dead_chain(rule.argument("--comment")?, rule.argument("-j")?);
        sorted(listing.rules.iter().filter_map(dead))
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
    fn a_removal_deletes_only_the_chain_and_the_jumps_to_it() {
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
