//! A rule in the words of `iptables`.

use std::fmt::Write as _;

/// A rule: its chain and its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// The chain.
    pub chain: String,
    /// The arguments behind the chain's name.
    pub args: Vec<String>,
}

impl Rule {
    /// A rule of these arguments, none of which holds a space.
    pub fn new(chain: &str, args: &str) -> Self {
        Rule { chain: chain.to_owned(), args: args.split(' ').map(str::to_owned).collect() }
    }

    /// The line for `iptables-restore` that does this with it: `-A`, `-I`, `-D`, `-C`.
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

    /// What follows the option.
    pub fn argument(&self, option: &str) -> Option<&str> {
        let at = self.args.iter().position(|word| word == option)?;
        self.args.get(at + 1).map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_where_they_have_to_be() {
        let rule =
            Rule { chain: "C".to_owned(), args: vec!["a b".to_owned(), "q\"\\".to_owned(), "-j".to_owned()] };
        assert_eq!(rule.line("-A"), r#"-A C "a b" "q\"\\" -j"#);
    }
}
