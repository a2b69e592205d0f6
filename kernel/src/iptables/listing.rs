//! Parser for the output of `iptables-save`.

use super::{NAT, Rule};

/// A table in the output of `iptables-save`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The names of its chains.
    pub chains: Vec<String>,
    /// Its rules in the order of the output; the rules of one chain are in their order.
    pub rules: Vec<Rule>,
}

impl Listing {
    /// Parses the nat table in the output of `iptables-save`.
    pub fn parse(text: &str) -> Self {
        Listing::of(NAT, text)
    }

    /// Parses a table in the output of `iptables-save`. Skips the lines of all other tables.
    pub fn of(wanted: &str, text: &str) -> Self {
        let mut listing = Listing::default();
        let mut is_wanted = false;
        for line in text.lines() {
            if let Some(table) = line.strip_prefix('*') {
                is_wanted = table.trim() == wanted;
            } else if !is_wanted {
            } else if let Some(chain) = line.strip_prefix(':') {
                listing.chains.extend(chain.split(' ').next().map(str::to_owned));
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let mut words = words(rule).into_iter();
                let chain = words.next().unwrap_or_default();
                listing.rules.push(Rule { chain, args: words.collect() });
            }
        }
        listing
    }

    /// Whether the table has a chain of this name.
    pub fn has_chain(&self, name: &str) -> bool {
        self.chains.iter().any(|chain| chain == name)
    }

    /// The rules of a chain.
    pub fn rules_of<'l>(&'l self, chain: &'l str) -> impl Iterator<Item = &'l Rule> {
        self.rules.iter().filter(move |rule| rule.chain == chain)
    }

    /// The rules that jump to the chain.
    pub fn jumps_to<'l>(&'l self, chain: &'l str) -> impl Iterator<Item = &'l Rule> {
        self.rules.iter().filter(move |rule| rule.argument("-j") == Some(chain))
    }
}

/// Splits a line into words. Text in double quotes belongs to one word; within it a backslash escapes the
/// next character.
fn words(line: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    let mut characters = line.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted = !quoted,
            '\\' if quoted => word.extend(characters.next()),
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            other => word.push(other),
        }
    }
    words.push(word);
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAVED: &str = r#"# Generated
*filter
:CNI-DN-other - [0:0]
COMMIT
*nat
:PREROUTING ACCEPT [1:2]
:CNI-HOSTPORT-DNAT - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT ! -s 10.0.0.0/8 -p tcp -m comment --comment "dnat name: \"net\" id: \"one\"" -m multiport --dports 80,81 -j CNI-DN-x
COMMIT
"#;

    #[test]
    fn parses_a_listing() {
        let listing = Listing::parse(SAVED);
        assert_eq!(listing.chains, ["PREROUTING", "CNI-HOSTPORT-DNAT"]);
        let entry = listing.jumps_to("CNI-DN-x").next().unwrap();
        assert_eq!(entry.argument("--comment"), Some("dnat name: \"net\" id: \"one\""));
        // Formatting the parsed rule returns the original line.
        assert_eq!(entry.line("-A"), SAVED.lines().nth(8).unwrap());
    }
}
