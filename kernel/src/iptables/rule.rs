//! A rule in the syntax of `iptables`.

use std::fmt::Write as _;

/// A rule: its chain and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The chain.
    pub chain: String,
    /// The arguments after the name of the chain.
    pub args: Vec<String>,
}

impl Rule {
    /// A rule with these arguments, separated by single spaces. No argument may contain a space.
    pub fn new(chain: &str, args: &str) -> Self {
        Rule { chain: chain.to_owned(), args: args.split(' ').map(str::to_owned).collect() }
    }

    /// A rule with a comment between arguments, which are separated by single spaces.
    pub fn commented(chain: &str, before: &str, comment: &str, after: &str) -> Self {
        let words = |args: &str| -> Vec<String> {
            args.split(' ').filter(|word| !word.is_empty()).map(str::to_owned).collect()
        };
        let comment = ["-m", "comment", "--comment", comment].map(str::to_owned).to_vec();
        Rule { chain: chain.to_owned(), args: [words(before), comment, words(after)].concat() }
    }

    /// The line for `iptables-restore` that applies `command` (`-A`, `-I`, `-D` or `-C`) to the rule.
    pub fn line(&self, command: &str) -> String {
        let mut line = format!("{command} {}", self.chain);
        for arg in &self.args {
            let plain = arg.chars().all(|c| c.is_ascii_alphanumeric() || "-_.,:/[]!+%=@".contains(c));
            if plain && !arg.is_empty() {
                let _ = write!(line, " {arg}");
            } else {
                let _ = write!(line, " \"{}\"", arg.replace('\\', "\\\\").replace('"', "\\\""));
            }
        }
        line
    }

    /// The argument after the first occurrence of `option`.
    pub fn argument(&self, option: &str) -> Option<&str> {
        let at = self.args.iter().position(|word| word == option)?;
        self.args.get(at + 1).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_quoted_if_necessary() {
        let rule =
            Rule { chain: "C".to_owned(), args: vec!["a b".to_owned(), "q\"\\".to_owned(), "-j".to_owned()] };
        assert_eq!(rule.line("-A"), r#"-A C "a b" "q\"\\" -j"#);
    }
}
