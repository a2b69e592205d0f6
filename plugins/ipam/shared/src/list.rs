//! The ledgers of a node, for operators.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;
use std::{fs, io};

use cni_common::spec::CniError;
use ferrule_blocks::ledger::{Ledger, State};
use ferrule_blocks::plan::Use;
use ferrule_reservations::store::Store;

/// A ledger's file and its content.
#[derive(Debug)]
pub struct Listed {
    /// The file.
    pub path: PathBuf,
    /// The ledger, or why it cannot be read.
    pub ledger: Result<Ledger, String>,
}

impl Listed {
    /// The network that the file's name names.
    pub fn network(&self) -> String {
        self.path.file_stem().unwrap_or_default().to_string_lossy().into_owned()
    }
}

/// The ledgers in a folder, by name; none without the folder.
///
/// # Errors
/// The folder cannot be read.
pub fn ledgers(folder: &Path) -> io::Result<Vec<Listed>> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut paths: Vec<PathBuf> = entries.map(|entry| Ok(entry?.path())).collect::<io::Result<_>>()?;
    paths.retain(|path| path.extension().is_some_and(|end| end == "json"));
    paths.sort();
    let listed = |path: PathBuf| {
        let text = crate::read(&path).map_err(|error| error.to_string());
        let ledger = text.and_then(|text| Ledger::parse(&text.unwrap_or_default()));
        Listed { path, ledger }
    };
    Ok(paths.into_iter().map(listed).collect())
}

/// The blocks of a ledger, each with the index of its range set, its state and its addresses in use. A block outside of all sets, as
/// after a change of the ranges, counts for the first one.
///
/// # Errors
/// Code 5 if the network's store cannot be read.
pub fn uses(ledger: &Ledger) -> Result<Vec<(usize, State, Use)>, CniError> {
    let network = &ledger.network;
    let store = Store::new(network.data_dir.join(&network.network));
    let used: BTreeSet<IpAddr> = store.addresses()?.into_iter().collect();
    let of = |(block, state)| {
        let has = |set: &Vec<_>| {
            set.iter().any(|range: &ferrule_blocks::range::Range| range.fixed.part_of(&block).is_some())
        };
        let at = network.sets.iter().position(has).unwrap_or_default();
        let set = network.sets.get(at).map_or(&[][..], Vec::as_slice);
        (at, state, Use::of(set, block, &used, Duration::ZERO))
    };
    Ok(ledger.states().map(of).collect())
}
