//! Looks for many names in one text.

use std::collections::{BTreeSet, HashSet};

/// Names of containers.
#[derive(Debug, Default)]
pub struct Names {
    all: HashSet<String>,
    lengths: BTreeSet<usize>,
}

impl FromIterator<String> for Names {
    fn from_iter<I: IntoIterator<Item = String>>(names: I) -> Self {
        let all: HashSet<String> = names.into_iter().filter(|name| !name.is_empty()).collect();
        Names { lengths: all.iter().map(String::len).collect(), all }
    }
}

impl Names {
    /// Whether this is one of the names.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.all.contains(name)
    }

    /// The names that stand in the text with no letter or digit beside them. The time depends on the text and on the
    /// number of different lengths of names, which is small.
    pub(crate) fn in_text(&self, text: &str) -> BTreeSet<String> {
        let is_free = |c: Option<char>| c.is_none_or(|c| !c.is_ascii_alphanumeric());
        let mut found = BTreeSet::new();
        let mut before = None;
        for (at, c) in text.char_indices() {
            if is_free(before.replace(c)) {
                let words = self.lengths.iter().filter_map(|length| text.get(at..at + length));
                let is_whole = |word: &&str| is_free(text[at + word.len()..].chars().next());
                found.extend(words.filter(|word| self.has(word)).filter(is_whole).map(str::to_owned));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_in_a_control_group() {
        let names: Names =
            ["0123456789ab", "89ab", "pod", "c-1", "c", ""].map(str::to_owned).into_iter().collect();
        let found = |text: &str| names.in_text(text).into_iter().collect::<Vec<_>>();
        assert_eq!(found("0::/kubepods/cri-containerd-0123456789ab.scope\n"), ["0123456789ab"]);
        assert_eq!(found("0::/libpod-c-1.scope"), ["c", "c-1"]);
        assert_eq!(found("0::/c"), ["c"]);
        assert!(found("0::/c2/pods/x89ab").is_empty() && found("").is_empty());
        assert!(names.has("c-1") && !names.has(""));
    }
}
