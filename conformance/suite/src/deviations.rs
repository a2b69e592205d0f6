//! The file of known deviations.
//!
//! A line is `PLUGIN TEST-CASE VERSIONS REASON...`. PLUGIN and TEST-CASE may end in `*`; VERSIONS is `*` or a
//! comma-separated list. Empty lines and lines that begin with `#` are ignored. A REASON that begins with
//! `sometimes` marks a race: such a line is not reported if no failure matches it.
//!
//! ```text
//! bridge  DLG-06/*  *            only ADD is called when the IPAM plugin fails
//! *       ERR-02/*  1.0.0,1.1.0  errors carry no cniVersion
//! ```

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context as _, bail};

use cni_runner::Version;

/// One line of the file.
#[derive(Debug)]
pub struct Deviation {
    plugin: String,
    test_case: String,
    versions: Vec<Version>,
    /// Why the plugin fails.
    pub reason: String,
    line: usize,
    seen: AtomicBool,
}

/// The lines of a file.
#[derive(Debug, Default)]
pub struct Deviations(Vec<Deviation>);

impl Deviations {
    /// Reads a file. A line without a reason or with an invalid version is an error.
    pub fn read(file: &Path) -> anyhow::Result<Deviations> {
        let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        Deviations::parse(&text).with_context(|| format!("read {}", file.display()))
    }

    fn parse(text: &str) -> anyhow::Result<Deviations> {
        let mut deviations = Vec::new();
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let mut words = line.split_whitespace();
            let mut word = || words.next().map(str::to_owned);
            let (Some(plugin), Some(test_case), Some(versions)) = (word(), word(), word()) else {
                bail!("line {}: expected PLUGIN TEST-CASE VERSIONS REASON", index + 1);
            };
            let reason = words.collect::<Vec<_>>().join(" ");
            if reason.is_empty() {
                bail!("line {}: the reason is missing", index + 1);
            }
            let versions = match versions.as_str() {
                "*" => Vec::new(),
                list => list
                    .split(',')
                    .map(|text| {
                        Version::parse(text)
                            .with_context(|| format!("line {}: {text:?} is not a version", index + 1))
                    })
                    .collect::<anyhow::Result<_>>()?,
            };
            let seen = AtomicBool::new(false);
            deviations.push(Deviation { plugin, test_case, versions, reason, line: index + 1, seen });
        }
        Ok(Deviations(deviations))
    }

    /// The reason, if the file lists a failure of this test case by this plugin with this version.
    pub fn reason(&self, plugin: &str, test_case: &str, version: Version) -> Option<&str> {
        let mut reason = None;
        // Mark every line that matches, not only the first.
        for deviation in self.0.iter().filter(|deviation| deviation.is_of(plugin, test_case, version)) {
            deviation.seen.store(true, Ordering::Relaxed);
            reason = reason.or(Some(deviation.reason.as_str()));
        }
        reason
    }

    /// The lines that no failure has matched: the deviation no longer exists or never did. Without those of versions that were
    /// not `tried`; none tried means all.
    pub fn unmet(&self, tried: &[Version]) -> Vec<String> {
        let is_tried = |versions: &[Version]| {
            versions.is_empty() || tried.is_empty() || versions.iter().any(|version| tried.contains(version))
        };
        let unmet = self.0.iter().filter(|deviation| {
            !deviation.seen.load(Ordering::Relaxed)
                && !deviation.reason.starts_with("sometimes")
                && is_tried(&deviation.versions)
        });
        unmet
            .map(|deviation| format!("line {}: {} {}", deviation.line, deviation.plugin, deviation.test_case))
            .collect()
    }
}

impl Deviation {
    fn is_of(&self, plugin: &str, test_case: &str, version: Version) -> bool {
        matches(&self.plugin, plugin)
            && matches(&self.test_case, test_case)
            && (self.versions.is_empty() || self.versions.contains(&version))
    }
}

/// Whether a text equals a pattern; a pattern that ends in `*` matches every text with that prefix.
fn matches(pattern: &str, text: &str) -> bool {
    pattern.strip_suffix('*').map_or(pattern == text, |start| text.starts_with(start))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_match_failures_and_unmatched_lines_are_listed() {
        let text = "# none\n\nbridge DLG-06/* 1.0.0,1.1.0 only ADD is called\n* X-1/a * other\n* X-2/a * sometimes it is late\n";
        let deviations = Deviations::parse(text).unwrap();
        assert_eq!(deviations.reason("bridge", "DLG-06/x", Version::V1_0_0), Some("only ADD is called"));
        assert_eq!(deviations.reason("bridge", "DLG-06/x", Version::V0_4_0), None);
        assert_eq!(deviations.reason("ptp", "DLG-06/x", Version::V1_0_0), None);
        assert_eq!(deviations.unmet(&[]), ["line 4: * X-1/a"]);
        let deviations = Deviations::parse(text).unwrap();
        assert_eq!(deviations.unmet(&[Version::V0_4_0]), ["line 4: * X-1/a"]);
        assert_eq!(deviations.unmet(&[Version::V1_1_0]), ["line 3: bridge DLG-06/*", "line 4: * X-1/a"]);
    }

    #[test]
    fn a_line_without_reason_or_with_a_bad_version_is_refused() {
        assert!(Deviations::parse("bridge DLG-06/* *").is_err());
        assert!(Deviations::parse("bridge DLG-06/* one why").is_err());
    }
}
