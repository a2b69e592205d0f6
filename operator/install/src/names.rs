//! Names of plugins. They become file names.

use std::collections::BTreeSet;

/// Names of plugins, of daemons, or of the tool.
pub type Names = BTreeSet<String>;

/// Whether a plugin can have this name: no dot and no slash.
pub fn is_valid(name: &str) -> bool {
    let is_letter = |letter: char| letter.is_ascii_lowercase() || letter.is_ascii_digit();
    name.starts_with(is_letter) && name.chars().all(|letter| is_letter(letter) || "_-".contains(letter))
}

/// The names in the value of `--plugins`.
///
/// # Errors
/// No name, or a word that cannot be one.
pub fn parse(value: &str) -> Result<Names, String> {
    let words = || value.split([' ', '\t', '\n', ',']).filter(|word| !word.is_empty());
    match words().find(|word| !is_valid(word)) {
        Some(bad) => Err(format!("'{bad}' is no name of a plugin")),
        None if words().next().is_none() => Err("it names none".to_owned()),
        None => Ok(words().map(str::to_owned).collect()),
    }
}

/// The names as text.
pub fn join<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names.into_iter().map(String::as_str).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_plugins() {
        assert_eq!(join(&parse("portmap, bridge host-local,bridge").unwrap()), "bridge host-local portmap");
        for bad in ["../x", "a.b", "A", "-a", "a/b", "\u{e9}"] {
            assert!(parse(bad).unwrap_err().ends_with("is no name of a plugin"), "{bad}");
        }
        assert_eq!(parse(" , ").unwrap_err(), "it names none");
    }
}
