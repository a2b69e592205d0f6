//! The endpoint's addresses in host-local's store of the pods: a file with a sentence, which host-local takes for a reservation by
//! hand, and which no GC removes.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;

use ferrule_kernel::file;

use crate::store::addresses;

/// The content of the files. It is no container's name: they have no spaces.
const SENTENCE: &str = "reserved by ferrule-node for the health endpoint of this node\n";
/// The file until it is complete. It lies beside the stores: the reference reads each file in them.
const PENDING: &str = ".ferrule-node-health.new";

/// The addresses in use. A store that does not exist has none.
pub(in crate::proof) fn used(store: &Path) -> io::Result<BTreeSet<IpAddr>> {
    match addresses(store) {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeSet::new()),
        used => used,
    }
}

/// Reserves the address. Returns whether it is ours now.
pub(super) fn reserve(store: &Path, ip: IpAddr) -> io::Result<bool> {
    fs::create_dir_all(store)?;
    let pending = store.parent().unwrap_or(store).join(PENDING);
    match file::create_durably(&store.join(ip.to_string()), &pending, 0o644, SENTENCE.as_bytes()) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(is_ours(store, ip)),
        outcome => outcome.map(|()| true),
    }
}

/// Whether the address is reserved for the endpoint.
pub(super) fn is_ours(store: &Path, ip: IpAddr) -> bool {
    let path = store.join(ip.to_string());
    file::read_up_to(&path, SENTENCE.len() as u64).is_ok_and(|content| content == SENTENCE.as_bytes())
}

/// Releases all addresses that are reserved for the endpoint, except these.
pub(super) fn release(store: &Path, except: &BTreeSet<IpAddr>) -> io::Result<()> {
    let _ = fs::remove_file(store.parent().unwrap_or(store).join(PENDING));
    for ip in used(store)?.difference(except).filter(|ip| is_ours(store, **ip)) {
        match fs::remove_file(store.join(ip.to_string())) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_a_pod_is_never_ours() {
        let folder = tempfile::tempdir().unwrap();
        let store = folder.path().join("pods");
        let ips: Vec<IpAddr> = (1..5).map(|last| IpAddr::from([10, 0, 0, last])).collect();
        assert!(used(&store).unwrap().is_empty() && release(&store, &BTreeSet::new()).is_ok());
        assert!(reserve(&store, ips[0]).unwrap() && reserve(&store, ips[0]).unwrap(), "again");
        for (ip, content) in ips[1..].iter().zip(["pod\r\neth0", "", &format!("{SENTENCE} ")]) {
            fs::write(store.join(ip.to_string()), content).unwrap();
            assert!(!reserve(&store, *ip).unwrap() && !is_ours(&store, *ip), "{content:?}");
        }
        fs::write(store.join("lock"), "").unwrap();
        assert_eq!(used(&store).unwrap(), ips.iter().copied().collect());
        release(&store, &ips.iter().copied().collect()).unwrap();
        assert!(is_ours(&store, ips[0]));
        release(&store, &BTreeSet::new()).unwrap();
        assert_eq!(used(&store).unwrap(), ips[1..].iter().copied().collect());
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "no pending file");
    }
}
