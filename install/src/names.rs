//! Names of plugins. They become file names.

use std::collections::BTreeSet;

use crate::failure::Failure;

/// Whether a plugin can have this name: no dot and no slash.
pub fn is_valid(name: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    name.bytes().next().is_some_and(letter)
        && name.bytes().all(|byte| letter(byte) || byte == b'_' || byte == b'-')
}

/// The names in the value of `--plugins`.
///
/// # Errors
/// Wrong usage: no name, or a word that cannot be one.
pub fn parse(value: &str) -> Result<BTreeSet<String>, Failure> {
    let words = || value.split([' ', '\t', '\n', ',']).filter(|word| !word.is_empty());
    if let Some(bad) = words().find(|word| !is_valid(word)) {
        return Err(Failure::usage(format!("'{bad}' is no name of a plugin")));
    }
    let names: BTreeSet<String> = words().map(str::to_owned).collect();
    if names.is_empty() { Err(Failure::usage("--plugins names none")) } else { Ok(names) }
}

/// The names as text.
pub fn list<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    let names: Vec<&str> = names.into_iter().map(String::as_str).collect();
    names.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_plugins() {
        assert_eq!(list(&parse("portmap, bridge host-local,bridge").unwrap()), "bridge host-local portmap");
        for bad in ["../x", "a.b", "A", "-a", "a/b", "\u{e9}"] {
            assert_eq!(parse(bad).unwrap_err().status, 2, "{bad}");
        }
        assert!(parse(" , ").unwrap_err().message.unwrap().contains("names none"));
    }
}
