//! `conditionsV4` and `conditionsV6`: matches that a packet must pass to use a network's host ports.

mod nft;

pub use nft::{Matches, parse};

/// The syntax of conditions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// Arguments of `iptables`, one in each string.
    Iptables,
    /// An `nft` expression, in one string or several.
    Nft,
}

/// Detects the syntax as the reference does: by the first character of the first string. Returns `None` if
/// that is empty or missing.
pub fn syntax(conditions: &[String]) -> Option<Syntax> {
    match conditions.first()?.chars().next()? {
        '-' | '!' => Some(Syntax::Iptables),
        _ => Some(Syntax::Nft),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn first_character_decides() {
        let of = |first: &str| syntax(&[first.to_owned(), "-x".to_owned()]);
        assert_eq!(of("-d"), Some(Syntax::Iptables));
        assert_eq!(of("!"), Some(Syntax::Iptables));
        assert_eq!(of("ip"), Some(Syntax::Nft));
        assert_eq!(of(""), None);
        assert_eq!(syntax(&[]), None);
    }
}
