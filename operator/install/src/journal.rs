//! The journal: the changes of a running installation, written before the first of them.
//!
//! ```text
//! commits SUM              the changes are complete if the manifest has this SHA-256
//! swap NAME BEFORE AFTER   one for each file that changes
//! ```

use std::fmt;

use crate::fingerprint::Fingerprint;
use crate::names;

/// One file that changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Swap {
    /// The plugin.
    pub name: String,
    /// The file before.
    pub before: Fingerprint,
    /// The file after.
    pub after: Fingerprint,
}

/// The changes of one command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// The fingerprint of the manifest that completes the changes.
    pub commits: Option<Fingerprint>,
    /// The files.
    pub swaps: Vec<Swap>,
}

impl Journal {
    /// Reads a journal. `None` if it is damaged.
    pub fn parse(text: &str) -> Option<Self> {
        let mut journal = Journal { commits: None, swaps: Vec::new() };
        for line in text.lines() {
            let words: Vec<&str> = line.split_whitespace().collect();
            match words[..] {
                ["commits", sum] => journal.commits = Some(Fingerprint::parse(sum)?),
                ["swap", name, before, after] if names::is_valid(name) => journal.swaps.push(Swap {
                    name: name.to_owned(),
                    before: Fingerprint::parse(before)?,
                    after: Fingerprint::parse(after)?,
                }),
                [] => {}
                _ => return None,
            }
        }
        Some(journal)
    }

    /// Whether the changes are complete, if this is the fingerprint of the manifest.
    pub fn is_complete(&self, manifest: &Fingerprint) -> bool {
        self.commits.as_ref() == Some(manifest)
    }
}

impl fmt::Display for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(sum) = &self.commits {
            writeln!(f, "commits {sum}")?;
        }
        self.swaps
            .iter()
            .try_for_each(|swap| writeln!(f, "swap {} {} {}", swap.name, swap.before, swap.after))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let sum = Fingerprint::of_content(b"");
        let text = format!("commits {sum}\nswap bridge none {sum}\nswap portmap {sum} none\n");
        let journal = Journal::parse(&text).unwrap();
        assert_eq!(journal.to_string(), text);
        assert_eq!(journal.swaps.len(), 2);
        assert!(journal.is_complete(&sum) && !journal.is_complete(&Fingerprint::none()));
        for bad in ["swap ../x none none", "swap a none", "swap a none here", "unknown", "commits x"] {
            assert_eq!(Journal::parse(bad), None, "{bad}");
        }
    }
}
