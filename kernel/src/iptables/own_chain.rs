//! A chain of our own in a table of iptables, and the rules that jump to it, in both variants.

use std::io;

use super::{Listing, Programs, Rule};
use crate::ip::IpFamily;
use crate::netlink::Socket;
use crate::nftables::{self, ATTEMPTS, Batch, Error, Expr, Family, Table, chains, change, rules};

/// A chain, in the words of iptables and as iptables-nft stores it.
pub struct OwnChain {
    /// The table: `nat` or `filter`.
    pub table: &'static str,
    /// The name of the chain.
    pub name: &'static str,
    /// The arguments of its rules.
    pub words: Vec<String>,
    /// Its rules, which may contain only expressions that iptables-nft understands.
    pub rules: Vec<Vec<Expr>>,
    /// The chains with a rule that jumps to it.
    pub parents: &'static [&'static str],
    /// The arguments of that rule.
    pub jump_words: String,
    /// That rule.
    pub jump: Vec<Expr>,
    /// Chains to which the parents jump before they jump to this one.
    pub predecessors: &'static [&'static str],
    /// Whether the jump is appended to the parents, and wrong before those to the predecessors. Otherwise a new jump comes right
    /// behind those, and their order is not checked.
    pub is_appended: bool,
}

impl OwnChain {
    /// Makes the chain in iptables-nft, unless it is there already.
    ///
    /// # Errors
    /// The kernel refuses a request, or 200 concurrent changes.
    pub fn add(&self, socket: &mut Socket, family: IpFamily) -> Result<(), Error> {
        change(socket, |socket, batch| match self.is_in_kernel(socket, family)? {
            true => Ok(()),
            false => self.fill(socket, batch, family),
        })
    }

    fn table(&self, family: IpFamily) -> Table<'static> {
        Table::new(Family::of(family), self.table)
    }

    fn fill(&self, socket: &mut Socket, batch: &mut Batch, family: IpFamily) -> Result<(), Error> {
        let table = self.table(family);
        if chains(socket, &[(table, self.name)])? == [None] {
            batch.add_chain(table, self.name, None, None);
        } else {
            batch.flush_chain(table, self.name);
        }
        for rule in &self.rules {
            batch.add_rule(table, self.name, rule, None);
        }
        for parent in self.parents {
            let present = rules(socket, table, parent)?;
            let leads_to = |rule: &nftables::Rule, names: &[&str]| {
                rule.jump_target().is_some_and(|target| names.contains(&target.as_str()))
            };
            for old in present.iter().filter(|rule| leads_to(rule, &[self.name])) {
                batch.delete_rule(table, parent, old.handle);
            }
            let before = present.iter().rev().find(|rule| leads_to(rule, self.predecessors));
            match self.is_appended {
                true => batch.add_rule(table, parent, &self.jump, None),
                false => batch.insert_rule(table, parent, &self.jump, before.map(|rule| rule.handle)),
            };
        }
        Ok(())
    }

    /// Whether iptables-nft has the chain as it should be, and the jumps to it where they must be.
    ///
    /// # Errors
    /// The kernel refuses a request.
    pub fn is_in_kernel(&self, socket: &mut Socket, family: IpFamily) -> Result<bool, Error> {
        let table = self.table(family);
        let found = rules(socket, table, self.name)?;
        let mut is_right = found.iter().map(nftables::Rule::decode).eq(self.rules.iter().cloned().map(Some));
        for parent in self.parents {
            let rules = rules(socket, table, parent)?;
            let targets: Vec<_> = rules.iter().map(|rule| rule.jump_target().unwrap_or_default()).collect();
            is_right &= self.is_in_order(targets.iter().map(String::as_str));
        }
        Ok(is_right)
    }

    /// Makes the chain in iptables-legacy, unless it is there already. Costs one process, or two. The caller holds the lock of
    /// the programs.
    ///
    /// # Errors
    /// Exit status and stderr of a failed program.
    pub fn add_legacy(&self, programs: &Programs) -> io::Result<()> {
        programs.change(ATTEMPTS, |listing| self.lines(listing))
    }

    fn own_rules(&self) -> impl Iterator<Item = Rule> {
        self.words.iter().map(|words| Rule::new(self.name, words))
    }

    /// The lines for `iptables-restore` that make the chain; none if the listing has it already.
    pub fn lines(&self, listing: &Listing) -> Vec<String> {
        if self.is_in(listing) {
            return Vec::new();
        }
        let command = if listing.has_chain(self.name) { "-F" } else { "-N" };
        let mut lines = vec![format!("{command} {}", self.name)];
        lines.extend(self.own_rules().map(|rule| rule.line("-A")));
        lines.extend(listing.jumps_to(self.name).map(|old| old.line("-D")));
        lines.extend(self.parents.iter().map(|parent| {
            if self.is_appended {
                return Rule::new(parent, &self.jump_words).line("-A");
            }
            // The positions after the old jumps are gone.
            let others = targets(listing, parent).filter(|target| *target != self.name).zip(1..);
            let before = others.filter(|(target, _)| self.predecessors.contains(target)).last();
            let position = before.map_or(1, |(_, position)| position + 1);
            Rule::new(&format!("{parent} {position}"), &self.jump_words).line("-I")
        }));
        lines
    }

    /// Whether the listing has the chain as it should be, and the jumps to it where they must be.
    pub fn is_in(&self, listing: &Listing) -> bool {
        let jumps = self.parents.iter().map(|parent| Rule::new(parent, &self.jump_words));
        listing.rules_of(self.name).cloned().eq(self.own_rules())
            && listing.jumps_to(self.name).cloned().eq(jumps)
            && self.parents.iter().all(|parent| self.is_in_order(targets(listing, parent)))
    }

    /// Whether among these targets of a parent's rules this chain comes once, and where it must.
    fn is_in_order<'t>(&self, targets: impl Iterator<Item = &'t str>) -> bool {
        let is_before = |target: &str| self.is_appended && self.predecessors.contains(&target);
        let mut relevant = targets.filter(|target| *target == self.name || is_before(target));
        relevant.any(|target| target == self.name) && relevant.next().is_none()
    }
}

fn targets<'l>(listing: &'l Listing, parent: &'l str) -> impl Iterator<Item = &'l str> {
    listing.rules_of(parent).map(|rule| rule.argument("-j").unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(is_appended: bool) -> OwnChain {
        OwnChain {
            table: "nat",
            name: "OWN",
            words: vec!["-j RETURN".to_owned()],
            rules: Vec::new(),
            parents: &["OUTPUT"],
            jump_words: "-j OWN".to_owned(),
            jump: Vec::new(),
            predecessors: &["FIRST"],
            is_appended,
        }
    }

    fn listing(rules: &[&str]) -> Listing {
        Listing::parse(&format!("*nat\n:OWN - [0:0]\n-A OWN -j RETURN\n{}\nCOMMIT\n", rules.join("\n")))
    }

    #[test]
    fn the_jump_comes_once_and_behind_the_predecessors() {
        let (first, own, other) = ("-A OUTPUT -j FIRST", "-A OUTPUT -j OWN", "-A OUTPUT -j OTHER");
        for right in [&[first, other, own][..], &[own], &[first, own, other]] {
            assert!(chain(true).lines(&listing(right)).is_empty(), "{right:?}");
        }
        for wrong in [&[own, first][..], &[first], &[first, own, own]] {
            assert!(!chain(true).is_in(&listing(wrong)), "{wrong:?}");
        }
    }

    #[test]
    fn lines_make_the_chain_again() {
        let (first, own, other) = ("-A OUTPUT -j FIRST", "-A OUTPUT -j OWN", "-A OUTPUT -j OTHER");
        let again = ["-F OWN", "-A OWN -j RETURN", "-D OUTPUT -j OWN", own];
        assert_eq!(chain(true).lines(&listing(&[own, first])), again);
        let behind = ["-F OWN", "-A OWN -j RETURN", "-I OUTPUT 2 -j OWN"];
        assert_eq!(chain(false).lines(&listing(&[first, other])), behind);
        let nothing = Listing::parse("*nat\nCOMMIT\n");
        assert_eq!(chain(false).lines(&nothing), ["-N OWN", "-A OWN -j RETURN", "-I OUTPUT 1 -j OWN"]);
    }
}
