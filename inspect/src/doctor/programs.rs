//! The installed plugins: their versions, and the CNI versions that they support.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use super::{Finding, Places, Subject};
use crate::cache::parse;
use crate::process::{Process, Written, find, join};

/// The CNI versions that a program supports, by its answer to VERSION.
///
/// # Errors
/// It does not start, fails or answers something else.
pub fn supported(program: &Path, places: &Places) -> Result<Vec<String>, String> {
    let variables = [("CNI_COMMAND", "VERSION".to_owned()), ("CNI_PATH", join(&places.path))];
    let answer = Process::start(program, &variables, r#"{"cniVersion":"1.0.0"}"#)?.wait(places.limit)?.output;
    let json = parse(answer.as_bytes());
    let versions = json.as_ref().and_then(|json| json.get("supportedVersions")?.as_array());
    let versions = versions.ok_or_else(|| format!("the answer to VERSION is {answer:?}"))?;
    Ok(versions.iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

/// The plugins of Ferrule's names in the folders, grouped by the version that they tell: ours, or the reference's.
pub fn installed(places: &Places, plugins: &[&str]) -> BTreeMap<String, Vec<String>> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for name in plugins {
        let program = find(&places.path, name);
        // Without a verb, a plugin prints its version and ends.
        let written = program.and_then(|program| Process::start(&program, &[], "")?.wait(places.limit));
        if let Some(version) = written.ok().and_then(|written| version(name, &written)) {
            groups.entry(version).or_default().push((*name).to_owned());
        }
    }
    groups
}

/// The version in `CNI NAME plugin VERSION`.
fn version(name: &str, written: &Written) -> Option<String> {
    let start = format!("CNI {name} plugin ");
    let mut lines = written.errors.lines().chain(written.output.lines());
    lines.find_map(|line| line.strip_prefix(&start)).map(|version| version.trim().to_owned())
}

/// Several versions are a finding.
pub fn judge_versions(groups: &BTreeMap<String, Vec<String>>) -> Subject {
    let listed: Vec<String> =
        groups.iter().map(|(version, names)| format!("{version}: {}", names.join(", "))).collect();
    let seen = groups.iter().map(|(version, names)| format!("{}, all {version}", names.len())).next();
    let finding = (groups.len() > 1).then(|| {
        Finding::warning(
            "plugins",
            format!("their versions differ ({})", listed.join("; ")),
            "ferrule install; ferrule status tells which files are Ferrule's",
        )
    });
    Subject::new(
        "plugins",
        seen.unwrap_or_else(|| "none of Ferrule's names".to_owned()),
        finding.into_iter().collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions() {
        let about =
            |errors: &str| version("bridge", &Written { errors: errors.to_owned(), ..Written::default() });
        assert_eq!(
            about("CNI bridge plugin v1.1.1\nCNI protocol versions supported: 1.0.0\n").unwrap(),
            "v1.1.1"
        );
        assert_eq!(about("usage: bridge\n"), None);
        let groups = |list: &[(&str, &str)]| {
            let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
            for (version, name) in list {
                groups.entry((*version).to_owned()).or_default().push((*name).to_owned());
            }
            judge_versions(&groups)
        };
        let sound = groups(&[("v1", "bridge"), ("v1", "portmap")]);
        assert_eq!((sound.outcome(), sound.seen.as_str()), ("ok", "2, all v1"));
        let found = groups(&[("v1", "bridge"), ("v2", "portmap"), ("v1", "ptp")]);
        assert_eq!(found.findings[0].problem, "their versions differ (v1: bridge, ptp; v2: portmap)");
    }
}
