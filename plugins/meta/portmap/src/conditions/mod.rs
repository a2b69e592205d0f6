//! `conditionsV4` and `conditionsV6`: more that a packet has to meet before a network's host ports are looked at.

mod nft;

pub use nft::{Matches, parse};

/// Whose words the conditions are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Syntax {
    /// `iptables` arguments, each a string of its own.
    Iptables,
    /// An `nft` expression, in one string or several.
    Nft,
}

/// Whose words they are, as the reference tells it: by the first string alone. `None` if there is nothing to tell by.
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
    fn the_first_character_tells() {
        let of = |first: &str| syntax(&[first.to_owned(), "-x".to_owned()]);
        assert_eq!(of("-d"), Some(Syntax::Iptables));
        assert_eq!(of("!"), Some(Syntax::Iptables));
        assert_eq!(of("ip"), Some(Syntax::Nft));
        assert_eq!(of(""), None);
        assert_eq!(syntax(&[]), None);
    }
}
