//! `ferrule report`: one archive for a report of a fault.
//!
//! `collect` runs the `parts` side by side, each with its own failures, and stops waiting after a time. `mask` replaces names and
//! addresses, and removes secrets. `tar` packs the files. Nothing is changed: what is called only reads.

mod collect;
mod configs;
mod facts;
mod known;
mod links;
mod mask;
mod parts;
mod programs;
mod rules;
mod tar;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use cni_common::call_log::rfc3339;
use ferrule_kernel::file;

use self::collect::{Outcome, collect};
use self::mask::Mask;
use self::mask::names::Names;
use crate::line::clean;
use crate::process;

/// When the plugins that the parts call have to end.
const PLUGINS_END: Duration = Duration::from_secs(5);
/// When the parts have to end. Masking and writing follow.
const PARTS_END: Duration = Duration::from_secs(7);

/// A part that the caller adds.
pub type Extra = Box<dyn FnOnce() -> Result<String, String> + Send>;

/// What to report.
pub struct Options {
    /// libcni's folder of results.
    pub results: PathBuf,
    /// More folders of host-local.
    pub data_dirs: Vec<PathBuf>,
    /// The folder of the network configurations.
    pub conf_dir: PathBuf,
    /// The folders of the plugins, as in CNI_PATH.
    pub path: Vec<PathBuf>,
    /// The node's first process, if it is not 1.
    pub init: Option<u32>,
    /// The log of calls, if it is not the configured one.
    pub log: Option<PathBuf>,
    /// The plugins that Ferrule has.
    pub ours: Vec<&'static str>,
    /// More files: the name of each, and what makes it.
    pub extra: Vec<(&'static str, Extra)>,
    /// Texts that look like the ID of a container and stay, such as the hash of this program.
    pub kept: HashSet<String>,
    /// Whether names and addresses stay.
    pub unmasked: bool,
}

/// A report.
pub struct Report {
    /// Its name, which has the time.
    pub name: String,
    /// The archive.
    pub archive: Vec<u8>,
    /// The number of its files.
    pub files: usize,
    /// What is missing or not complete, masked.
    pub failures: Vec<String>,
}

/// Collects the report. Takes less than 10 seconds.
pub fn run(options: Options) -> Report {
    let began = Instant::now();
    process::end_calls_at(began + PLUGINS_END);
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let time = rfc3339(since_1970);
    let (unmasked, kept) = (options.unmasked, options.kept.clone());
    let outcomes = collect(parts::all(options), began + PARTS_END);
    let mut names = Names::default();
    for outcome in &outcomes {
        outcome.names.iter().for_each(|(class, name)| names.learn(*class, name));
        outcome.learned.iter().for_each(|document| names.learn_from(document));
        for file in &outcome.files {
            file.learn(&mut names);
        }
    }
    let mask = Mask::new(names, kept, unmasked);
    let mut files = vec![("README.txt".to_owned(), String::new())];
    let mut failures = Vec::new();
    for Outcome { part, files: found, failures: of_part, .. } in &outcomes {
        failures.extend(of_part.iter().map(|why| mask.text(&clean(&format!("{part}: {why}")))));
        files.extend(found.iter().map(|file| (file.name.clone(), file.masked(&mask))));
    }
    files[0].1 = readme(&time, unmasked, &outcomes, &failures);
    let name = format!("ferrule-report-{}", time[..19].replace([':', '-'], ""));
    let packed = files.iter().map(|(file, text)| (format!("{name}/{file}"), text.as_str()));
    let archive = tar::archive(packed, since_1970.as_secs());
    Report { archive, files: files.len(), failures, name }
}

/// Writes the archive for its owner alone. Never replaces anything.
///
/// # Errors
/// Something has this name, or the file cannot be written.
pub fn write(path: &Path, archive: &[u8]) -> std::io::Result<()> {
    file::create_durably(path, &file::pending_beside(path), 0o600, archive)
}

fn readme(time: &str, unmasked: bool, outcomes: &[Outcome], failures: &[String]) -> String {
    let masked = match unmasked {
        true => "Names and addresses are the node's. Secrets are removed.",
        false => {
            "Names of pods, namespaces, containers, networks and nodes, and IP and MAC addresses are masked: equal ones have \
             equal masks, and subnets stay subnets. Secrets are removed."
        }
    };
    let mut text = format!(
        "A report of ferrule v{}, made at {time}.\n{masked}\ndocs/report.md says how to read it.\n\n",
        env!("CARGO_PKG_VERSION")
    );
    for Outcome { part, files, took, .. } in outcomes {
        let took = took.map_or_else(|| "not done".to_owned(), |took| format!("{} ms", took.as_millis()));
        let files: Vec<&str> = files.iter().map(|file| file.name.as_str()).collect();
        text += &format!("{part} ({took}): {}\n", files.join(" "));
    }
    text += "\nNot complete:\n";
    match failures {
        [] => text += "nothing\n",
        failures => failures.iter().for_each(|why| text += &format!("{why}\n")),
    }
    text
}
