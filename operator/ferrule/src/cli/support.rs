//! The commands that help to find a fault. Each returns the exit status.

use std::collections::HashSet;
use std::fs;
use std::io::{self, IsTerminal as _, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use cni_common::line::{Line, Text};
use ferrule_inspect::report::{self, Extra, Options};
use ferrule_inspect::selftest;
use ferrule_install::console::{note, say};
use ferrule_install::fingerprint::Fingerprint;
use ferrule_install::options::Status;
use ferrule_install::signals::Signals;

use super::arguments::support::{Report, Test};
use super::operator::seconds;

/// The output that means standard output.
const STANDARD: &str = "-";

pub(super) fn report(arguments: &Report, names: &[&'static str]) -> Result<u8> {
    let Report { output, unmasked, conf_dir, programs, log, state } = arguments;
    let is_standard = output.as_deref() == Some(Path::new(STANDARD));
    if is_standard && io::stdout().is_terminal() {
        bail!("the archive is no text: redirect standard output to a file");
    }
    state.node.enter()?;
    if let Some(path) = output.as_ref().filter(|path| !is_standard && fs::symlink_metadata(path).is_ok()) {
        bail!("{} exists", path.display());
    }
    let program = fs::read("/proc/self/exe").map(|program| Fingerprint::of_content(program).to_string());
    let program = program.unwrap_or_default();
    let made = report::run(Options {
        results: state.cache.dir.join("results"),
        data_dirs: state.data_dirs.clone(),
        conf_dir: conf_dir.clone(),
        path: programs.bin_dir.clone(),
        init: state.node.init,
        log: log.clone(),
        ours: names.to_vec(),
        extra: vec![("installed.txt", installed(programs.bin_dir.clone(), names.to_vec(), &program))],
        kept: HashSet::from([program]),
        unmasked: *unmasked,
    });
    let place = if is_standard {
        io::stdout().write_all(&made.archive).context("write the archive")?;
        "standard output".to_owned()
    } else {
        let path = output.clone().unwrap_or_else(|| PathBuf::from(format!("{}.tar", made.name)));
        report::write(&path, &made.archive).with_context(|| format!("write {}", path.display()))?;
        path.display().to_string()
    };
    made.failures.iter().for_each(|why| note(Line::new(format_args!("not complete: {why}"))));
    let told = format!("{} files in {place}; README.txt says what is not complete", made.files);
    if is_standard {
        note(Line::new(told))
    } else {
        say(Line::new(told))
    }
    Ok(0)
}

pub(super) fn test(Test { network, dns, conf_dir, plugins, json, cache, node }: &Test) -> Result<u8> {
    let signals = Signals::catch()?;
    node.enter()?;
    let options = selftest::Options {
        results: cache.dir.join("results"),
        conf_dir: conf_dir.clone(),
        path: plugins.programs.bin_dir.clone(),
        limit: seconds(plugins.timeout),
        init: node.init,
        network: network.clone(),
        dns: *dns,
    };
    let mut tell = |test: &selftest::Test| {
        if !json {
            test.lines().into_iter().for_each(say);
        }
    };
    let tests = selftest::run(&options, &|| signals.check().is_err(), &mut tell)?;
    match json {
        true => say(Text::json(selftest::document(&tests))),
        false => say(Line::new(selftest::summary(&tests))),
    }
    signals.check()?;
    Ok(u8::from(!selftest::is_passed(&tests)))
}

/// What `ferrule status` and `ferrule version` say.
fn installed(folders: Vec<PathBuf>, names: Vec<&'static str>, program: &str) -> Extra {
    let version = format!("ferrule v{}\nsha256 {program}\n", env!("CARGO_PKG_VERSION"));
    Box::new(move || {
        let mut text = version;
        for bin_dir in folders {
            let said = ferrule_install::status(&Status { bin_dir, json: false }, &names);
            text += &said.map_or_else(|error| format!("{error:#}\n"), |(text, _)| text);
        }
        Ok(text)
    })
}
