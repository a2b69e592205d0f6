//! host-local's store of this node's pods: a file for each address in use, named like it.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::{fs, io};

/// The addresses in use.
///
/// # Errors
/// The folder does not exist, or cannot be read.
pub fn addresses(store: &Path) -> io::Result<BTreeSet<IpAddr>> {
    let mut used = BTreeSet::new();
    for entry in fs::read_dir(store)? {
        used.extend(entry?.file_name().to_str().and_then(|name| name.parse::<IpAddr>().ok()));
    }
    Ok(used)
}
