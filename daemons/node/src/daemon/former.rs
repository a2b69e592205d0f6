//! The podCIDRs that this node had before: their pods run on with the addresses that they have.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnetwork::IpNetwork;

use crate::kernel::Local;
use crate::plan::Former;
use crate::status::Conflist;
use crate::store::addresses;

/// The most podCIDRs that are remembered.
const MOST: usize = 16;

/// The podCIDRs of the status that are not among `own`, each with the addresses that are in use, if host-local's store can
/// be read.
pub(super) fn read(status: &Conflist, own: &[IpNetwork]) -> Former {
    let known = status.networks.iter().chain(&status.former).filter_map(|text| text.parse().ok());
    let mut former: Former =
        known.filter(|network| !own.contains(network)).map(|network| (network, None)).collect();
    if former.is_empty() {
        return former;
    }
    let Ok(used) = addresses(&status.store) else { return former };
    former.values_mut().for_each(|pods| *pods = Some(BTreeSet::new()));
    for address in used {
        for (_, pods) in former.iter_mut().filter(|(network, _)| network.contains(address)) {
            pods.get_or_insert_default().insert(address);
        }
    }
    former
}

/// Notes those that still matter: pods or addresses of this node are in them.
pub(super) fn note(status: &mut Conflist, former: &Former, local: &Local) {
    let has_address = |network: &IpNetwork| local.addresses.iter().any(|(_, ip)| network.contains(*ip));
    let has_pods = |pods: &Option<BTreeSet<IpAddr>>| pods.as_ref().is_some_and(|pods| !pods.is_empty());
    let matters = former.iter().filter(|(network, pods)| has_pods(pods) || has_address(network));
    status.former = matters.map(|(network, _)| network.to_string()).take(MOST).collect();
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_former_podcidr_stays_while_something_is_in_it() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["10.244.1.2", "10.244.9.3", "10.244.9.4", "last_reserved_ip.0", "lock"] {
            fs::write(folder.path().join(name), "").unwrap();
        }
        let texts = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        let mut status = Conflist {
            networks: texts(&["10.244.1.0/24", "10.244.9.0/24"]),
            former: texts(&["10.244.7.0/24", "10.244.8.0/24"]),
            store: folder.path().into(),
            ..Conflist::default()
        };
        let former = read(&status, &["10.244.1.0/24".parse().unwrap()]);
        let pods: Vec<usize> = former.values().map(|pods| pods.as_ref().unwrap().len()).collect();
        assert_eq!(pods, [0, 0, 2]);
        let unknown = read(&Conflist { store: "/nowhere".into(), ..status.clone() }, &[]);
        assert!(unknown.values().all(Option::is_none));
        let mut local = Local::default();
        local.addresses.insert((3, "10.244.8.1".parse().unwrap()));
        note(&mut status, &former, &local);
        assert_eq!(status.former, ["10.244.8.0/24", "10.244.9.0/24"]);
    }
}
