//! What another network of a cluster has left on the node.

use std::collections::BTreeSet;
use std::path::Path;

use ferrule_kit::origin::{LeftOvers, NETWORKS, ORIGINS, Places, find};
use itertools::Itertools as _;

use super::{Finding, Subject};
use crate::cache::Cache;
use crate::model::Sockets;

const SUBJECT: &str = "left-overs";
/// How many things a line names.
const NAMED: usize = 5;

/// Looks for those of all known networks. `cache` has the pods.
pub fn judge(conf_dir: &Path, cache: &Cache, sockets: &mut Sockets) -> Subject {
    let places = Places { conf_dir, networks: Path::new(NETWORKS) };
    let mut findings = Vec::new();
    for origin in &ORIGINS {
        match find(origin, places, &mut sockets.route, &mut sockets.netfilter) {
            Ok(found) => findings.extend(finding(&found, &pods(&found, cache))),
            Err(error) => return Subject::unseen(SUBJECT, &error),
        }
    }
    let known = ORIGINS.iter().map(|origin| origin.name).join(", ");
    Subject::new(SUBJECT, format!("{known}: nothing is left of them, or they run"), findings)
}

/// The running pods on its networks, by name.
fn pods(found: &LeftOvers, cache: &Cache) -> BTreeSet<String> {
    let its = cache.entries.iter().filter(|entry| {
        entry.owner.network.as_deref().is_some_and(|network| found.origin.networks.contains(&network))
    });
    its.filter(|entry| entry.netns_state.inode().is_some()).filter_map(|entry| entry.pod.clone()).collect()
}

/// A network that runs has left nothing: it is the node's.
fn finding(found: &LeftOvers, pods: &BTreeSet<String>) -> Option<Finding> {
    let LeftOvers { origin, things, users, process: None } = found else { return None };
    if things.is_empty() {
        return None;
    }
    let name = origin.name;
    let more = things.len().saturating_sub(NAMED);
    let listed = things.iter().take(NAMED).join(", ");
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let problem = format!("{name} does not run, and has left: {listed}{more}");
    if users.is_empty() {
        let remedy = format!("{} --dry-run shows all; without --dry-run it removes them", origin.cleanup());
        return Some(Finding::warning(SUBJECT, problem, remedy));
    }
    let of_pods = if pods.is_empty() { String::new() } else { format!(" (pods {})", pods.iter().join(", ")) };
    let problem = format!("{problem}; pods still use it: {}{of_pods}", users.iter().join(", "));
    let remedy = format!("restart these pods, then {}", origin.cleanup());
    Some(Finding::warning(SUBJECT, problem, remedy))
}

#[cfg(test)]
mod tests {
    use ferrule_kit::origin::{Thing, named};

    use super::*;

    #[test]
    fn users_come_before_a_cleanup() {
        let left = |users: &[&str], process: Option<&str>| LeftOvers {
            origin: named("flannel").unwrap(),
            things: vec![Thing::File("/n/10-flannel.conflist".into()); 7],
            users: users.iter().map(|user| (*user).to_owned()).collect(),
            process: process.map(str::to_owned),
        };
        assert_eq!(finding(&left(&["veth1"], Some("flanneld (7)")), &BTreeSet::new()), None);
        let idle = finding(&left(&[], None), &BTreeSet::new()).unwrap();
        assert!(
            idle.problem.ends_with("10-flannel.conflist and 2 more") && idle.remedy.contains("--dry-run"),
            "{idle:?}"
        );
        let used = finding(&left(&["veth1"], None), &["web/a".to_owned()].into()).unwrap();
        assert!(used.problem.ends_with("pods still use it: veth1 (pods web/a)"), "{used:?}");
        assert!(used.remedy.starts_with("restart these pods"));
    }
}
