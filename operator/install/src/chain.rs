//! The plugin `chain`, which no other project has. It stays as long as a network configuration or the runtime's cache names it: the next
//! DEL of a pod needs it, also if all its members are the reference's by then.

use std::fs;
use std::path::{Path, PathBuf};

use base64::prelude::{BASE64_STANDARD, Engine as _};
use cni_common::spec::Json;
use ferrule_kernel::file;

/// The plugin.
pub const PLUGIN: &str = "chain";
/// The results that runtimes keep, each with its network's configuration.
const RESULTS: &str = "/var/lib/cni/results";

/// A file that names it: a configuration in `conf_dir`, or a cached result.
pub fn user(conf_dir: &Path) -> Option<PathBuf> {
    let of = |folder: &Path, names: fn(&Json) -> bool| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let mut files: Vec<PathBuf> = files.collect();
        files.sort();
        let json = |path: &PathBuf| Json::parse(&file::read_named(path).ok()?).ok();
        files.into_iter().find(|path| json(path).is_some_and(|json| names(&json)))
    };
    of(conf_dir, is_folded).or_else(|| of(Path::new(RESULTS), is_of_folded))
}

/// The plugins of a configuration; a single one counts as a list of one.
fn is_folded(config: &Json) -> bool {
    let is_chain = |plugin: &Json| {
        plugin.get("type").and_then(|name| name.decode::<String>().ok()).as_deref() == Some(PLUGIN)
    };
    let plugins = config.get("plugins").and_then(|plugins| plugins.decode::<Vec<Json>>().ok());
    plugins.iter().flatten().chain([config]).any(is_chain)
}

fn is_of_folded(result: &Json) -> bool {
    let config = || BASE64_STANDARD.decode(result.get("config")?.decode::<String>().ok()?).ok();
    config().and_then(|config| Json::parse(&config).ok()).is_some_and(|config| is_folded(&config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_configuration_or_a_cached_one_names_it() {
        let json = |text: &str| Json::parse(text.as_bytes()).unwrap();
        let folded = r#"{"plugins": [{"type": "x"}, {"type": "chain", "plugins": []}]}"#;
        assert!(is_folded(&json(folded)) && is_folded(&json(r#"{"type": "chain"}"#)));
        assert!(!is_folded(&json(r#"{"plugins": [{"type": "bridge", "ipam": {"type": "chain"}}]}"#)));
        let cached = |config: &str| json(&format!(r#"{{"config": "{}"}}"#, BASE64_STANDARD.encode(config)));
        assert!(is_of_folded(&cached(folded)));
        assert!(
            !is_of_folded(&cached("{}"))
                && !is_of_folded(&json("[]"))
                && !is_of_folded(&json(r#"{"config": "?"}"#))
        );
    }
}
