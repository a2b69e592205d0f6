//! What a firewall's chains do with each new connection of pods, as far as their rules say it for certain. The same for nf_tables and for
//! iptables-legacy.

use std::collections::BTreeMap;

/// The packets that a rule is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum When {
    /// All.
    Always,
    /// Those of pods, or some of them: it names their addresses or links.
    Pods,
    /// Others, or those in a state.
    Else,
}

/// What becomes of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// They leave the firewall.
    Accept,
    /// They are dropped or rejected.
    Drop,
    /// They return to the calling chain.
    Return,
    /// They go through a chain, and on here if it returns.
    Jump(String),
    /// They go through a chain, and never on here.
    Goto(String),
    /// They go on to the next rule.
    Next,
}

/// A rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Step {
    /// The packets that it is for.
    pub when: When,
    /// What becomes of them.
    pub then: Then,
}

/// The end of a connection's way through a chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    Accepted,
    Dropped,
    /// A rule about pods lets some of them through: the administrator has thought of them.
    Known,
}

/// The rules of each chain.
pub(super) type Chains = BTreeMap<String, Vec<Step>>;

/// Whether the base chain drops new connections of pods, and no rule on the way knows them. `drops`: its policy.
pub(super) fn is_dropped(chains: &Chains, base: &str, drops: bool) -> bool {
    match (Walk { chains, seen: BTreeMap::new() }).fate(base) {
        Some(fate) => fate == Fate::Dropped,
        None => drops,
    }
}

struct Walk<'a> {
    chains: &'a Chains,
    /// The fates of chains, so that each one is walked once.
    seen: BTreeMap<&'a str, Option<Fate>>,
}

impl<'a> Walk<'a> {
    /// `None` if the chain returns.
    fn fate(&mut self, chain: &str) -> Option<Fate> {
        let (chain, steps) = self.chains.get_key_value(chain)?;
        if let Some(fate) = self.seen.get(chain.as_str()) {
            return *fate;
        }
        // The kernel takes no loop, but the dump of a ruleset that changes may have one.
        self.seen.insert(chain, None);
        let fate = self.through(steps);
        self.seen.insert(chain, fate);
        fate
    }

    fn through(&mut self, steps: &'a [Step]) -> Option<Fate> {
        for Step { when, then } in steps {
            let fate = match then {
                Then::Accept => Some(Fate::Accepted),
                Then::Drop => Some(Fate::Dropped),
                Then::Jump(chain) | Then::Goto(chain) => self.fate(chain),
                Then::Return | Then::Next => None,
            };
            match (when, fate) {
                (When::Always, Some(_)) => return fate,
                (When::Always, None) if matches!(then, Then::Return | Then::Goto(_)) => return None,
                (When::Pods, Some(Fate::Accepted)) | (_, Some(Fate::Known)) => return Some(Fate::Known),
                _ => {}
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `WHEN THEN [CHAIN]`, one a line; a line with a colon begins a chain.
    fn chains(text: &str) -> Chains {
        let mut chains = Chains::new();
        let mut present = String::new();
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(name) = line.strip_suffix(':') {
                present = name.to_owned();
                chains.insert(present.clone(), Vec::new());
                continue;
            }
            let words: Vec<&str> = line.split(' ').collect();
            let when = match words[0] {
                "always" => When::Always,
                "pods" => When::Pods,
                _ => When::Else,
            };
            let chain = || words[2].to_owned();
            let then = match words[1] {
                "accept" => Then::Accept,
                "drop" => Then::Drop,
                "return" => Then::Return,
                "jump" => Then::Jump(chain()),
                "goto" => Then::Goto(chain()),
                _ => Then::Next,
            };
            chains.get_mut(&present).unwrap().push(Step { when, then });
        }
        chains
    }

    #[test]
    fn only_a_certain_drop_counts() {
        for (policy_drops, text, expected) in [
            (true, "base:", true),
            (false, "base:", false),
            (false, "base:\n else accept\n always drop", true),
            (true, "base:\n always accept", false),
            (true, "base:\n pods accept", false),
            (true, "base:\n pods drop\n pods next", true),
            (false, "base:\n pods accept\n always drop", false),
            // Behind the drop it is too late.
            (false, "base:\n always drop\n pods accept", true),
            // ufw: the policy alone, and DEFAULT_FORWARD_POLICY=REJECT.
            (true, "base:\n always jump before\n always jump reject\n before:\n else accept\n reject:", true),
            (
                true,
                "base:\n always jump reject\n always jump ours\n reject:\n always drop\n ours:\n pods accept",
                true,
            ),
            (true, "base:\n always jump reject\n always jump ours\n reject:\n ours:\n pods accept", false),
            // firewalld: its default zone, and with the pods in the zone trusted.
            (
                false,
                "base:\n else accept\n always jump zones\n always drop\n zones:\n always goto public\n public:\n always drop",
                true,
            ),
            (
                false,
                "base:\n always jump zones\n always drop\n zones:\n pods goto trusted\n always goto public\n
                public:\n always drop\n trusted:\n always accept",
                false,
            ),
            // A condition that nothing is known of may hold for them all.
            (true, "base:\n else jump new\n new:\n pods accept", false),
            (true, "base:\n else jump known\n known:\n always accept", true),
            (false, "base:\n always goto a\n always drop\n a:\n always return\n always drop", false),
            (true, "base:\n always jump a\n a:\n always jump base", true),
            (true, "base:\n always jump missing", true),
        ] {
            assert_eq!(is_dropped(&chains(text), "base", policy_drops), expected, "{text}");
        }
    }
}
