//! The manifest: the installed plugins, and the files that they replaced.
//!
//! ```text
//! plugin NAME ORIGINAL INSTALLED VERSION   one for each installed plugin
//! last NAME REPLACED INSTALLED VERSION     one for each plugin of the last installation
//! ```
//!
//! ORIGINAL is the fingerprint of the file from before Ferrule, INSTALLED that of ours. REPLACED is the
//! fingerprint of the file that the last installation replaced; INSTALLED and VERSION are then those of the
//! earlier `plugin` line, or "-" if there was none.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::{Context, Result, bail};

use crate::fingerprint::Fingerprint;
use crate::names;

/// The only format so far.
const FORMAT: &str = "1";

const HEADER: &str = "\
# Written by Ferrule, which needs it for rollback and uninstall.
# plugin NAME ORIGINAL INSTALLED VERSION: SHA-256 of the file before Ferrule (\"none\": no file), and of ours
# last NAME REPLACED INSTALLED VERSION: what the last installation replaced, and the plugin line until then
";

/// One of our files.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ours {
    /// Its fingerprint.
    pub print: Fingerprint,
    /// The version that it printed.
    pub version: String,
}

/// An installed plugin.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installed {
    /// The file from before Ferrule.
    pub original: Fingerprint,
    /// Our file.
    pub ours: Ours,
}

/// What the last installation replaced.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Replaced {
    /// The file.
    pub print: Fingerprint,
    /// Our earlier installation of this plugin.
    pub earlier: Option<Ours>,
}

/// The manifest of a folder.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Manifest {
    /// All installed plugins, by name.
    pub plugins: BTreeMap<String, Installed>,
    /// The plugins of the last installation.
    pub last: BTreeMap<String, Replaced>,
}

impl Manifest {
    /// Reads a manifest.
    ///
    /// # Errors
    /// It is of another format, or damaged. Nothing is guessed then.
    pub fn parse(text: &str) -> Result<Self> {
        let mut manifest = Manifest::default();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            let damaged = || format!("it is damaged: '{line}'");
            let print = |word: &str| Fingerprint::parse(word).with_context(damaged);
            match words[..] {
                [] | ["format", FORMAT] => {}
                ["format", other, ..] => bail!("it is of a newer Ferrule (format {other})"),
                ["plugin", name, original, ours, version] if names::is_valid(name) => {
                    let ours = Ours { print: print(ours)?, version: version.to_owned() };
                    let installed = Installed { original: print(original)?, ours };
                    manifest.plugins.insert(name.to_owned(), installed);
                }
                ["last", name, replaced, ours, version] if names::is_valid(name) => {
                    let earlier = match ours {
                        "-" => None,
                        _ => Some(Ours { print: print(ours)?, version: version.to_owned() }),
                    };
                    let replaced = Replaced { print: print(replaced)?, earlier };
                    manifest.last.insert(name.to_owned(), replaced);
                }
                _ => bail!(damaged()),
            }
        }
        match manifest.last.keys().find(|name| !manifest.plugins.contains_key(*name)) {
            Some(name) => bail!("it is damaged: 'last {name}'"),
            None => Ok(manifest),
        }
    }

    /// Whether a saved file is needed: by the name of a plugin and its fingerprint.
    pub fn needs(&self, name: &str, print: &str) -> bool {
        let original = self.plugins.get(name).map(|installed| &installed.original);
        let replaced = self.last.get(name).map(|replaced| &replaced.print);
        [original, replaced].into_iter().flatten().any(|needed| needed.to_string() == print)
    }
}

impl fmt::Display for Manifest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEADER}format {FORMAT}")?;
        for (name, Installed { original, ours }) in &self.plugins {
            writeln!(f, "plugin {name} {original} {} {}", ours.print, ours.version)?;
        }
        for (name, Replaced { print, earlier }) in &self.last {
            match earlier {
                Some(ours) => writeln!(f, "last {name} {print} {} {}", ours.print, ours.version)?,
                None => writeln!(f, "last {name} {print} - -")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text() {
        let (a, b) = (Fingerprint::of_content("a"), Fingerprint::of_content("b"));
        let text = format!(
            "{HEADER}format 1\nplugin bridge {a} {b} v1.0.0\nplugin loopback none {b} v1.0.0\n\
             last bridge {b} {a} v0.9.0\nlast loopback none - -\n"
        );
        let manifest = Manifest::parse(&text).unwrap();
        assert_eq!(manifest.to_string(), text);
        assert_eq!(manifest.last["bridge"].earlier.as_ref().unwrap().version, "v0.9.0");
        assert_eq!(manifest.last["loopback"].earlier, None);
        assert!(manifest.needs("bridge", &a.to_string()) && manifest.needs("bridge", &b.to_string()));
        assert!(!manifest.needs("loopback", &b.to_string()) && !manifest.needs("other", &a.to_string()));
        assert_eq!(Manifest::parse("").unwrap(), Manifest::default());
    }

    #[test]
    fn nothing_is_guessed() {
        let sum = Fingerprint::of_content("");
        let error = |text: &str| Manifest::parse(text).unwrap_err().to_string();
        assert_eq!(error("format 2\nplugin a b\n"), "it is of a newer Ferrule (format 2)");
        for bad in [
            "plugin bridge none".to_owned(),
            format!("plugin ../bridge none {sum} v1"),
            format!("plugin bridge none {sum} v1 more"),
            format!("plugin bridge here {sum} v1"),
            "last bridge none - -".to_owned(),
            "future bridge".to_owned(),
        ] {
            assert!(error(&bad).starts_with("it is damaged: '"), "{bad}");
        }
    }
}
