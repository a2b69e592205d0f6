//! Signs of life, doubts and deaths.

use super::*;
use ferrule_kernel::netlink::Link;
use ferrule_kit::presence::Presence;
use ferrule_kit::veth;

use crate::cache::{CachedLink, Entry};
use crate::model::{Kind, Maker};
use crate::scene::Inside;

impl Evidence {
    fn judge(&self, object: &Object, siblings: &[&Object]) -> State {
        Judge::new(self).judge(object, siblings.iter().copied().chain([object]))
    }
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn owner() -> Owner {
    Owner::container("c1").on("net").with_ifname("eth0")
}

fn object(owner: Owner) -> Object {
    let object = Object::new(Kind::Address, "10.1.0.2".into(), "a file".into(), owner, Maker::Ferrule);
    Object { addresses: [ip("10.1.0.2")].into(), ..object }
}

fn entry(container: &str, netns_state: Presence) -> Entry {
    Entry {
        owner: Owner::container(container).on("net").with_ifname("eth0"),
        netns_state,
        netns: "/run/netns/x".into(),
        addresses: [ip("10.1.0.2")].into(),
        ..Entry::default()
    }
}

fn readable() -> Evidence {
    Evidence { cache: Cache::with(Vec::new()), ..Evidence::default() }
}

fn judge(evidence: &Evidence) -> State {
    evidence.judge(&object(owner()), &[&object(owner())])
}

fn namespace(addresses: Option<Vec<IpAddr>>) -> Namespace {
    let inside = addresses.map(|addresses| Inside {
        addresses: addresses.into_iter().collect(),
        parents: [9].into(),
        partial_lists: 0,
    });
    Namespace { inode: 7, path: "/run/netns/y".into(), inside, ..Namespace::default() }
}

fn gone() -> Presence {
    Presence::Gone { is_missing: true }
}

#[test]
fn without_any_sign_of_life_the_owner_is_dead() {
    let proof = "no cache entry, no process works for it, no live namespace of it has 10.1.0.2";
    assert_eq!(judge(&readable()), State::Dead(proof.to_owned()));
    let mut evidence = readable();
    evidence.cache = Cache::with(vec![entry("c1", gone())]);
    let State::Dead(proof) = judge(&evidence) else { panic!() };
    assert!(proof.starts_with("namespace /run/netns/x does not exist, no process"), "{proof}");
}

/// Each sign alone saves the owner.
#[test]
fn one_sign_of_life_is_enough() {
    let mut signs: Vec<Evidence> = (0..5).map(|_| readable()).collect();
    signs[0].cache = Cache::with(vec![entry("c1", gone()), entry("c1", Presence::Present((0, 7)))]);
    signs[1].processes.push(Process { works_for: ["c1".to_owned()].into(), ..Process::default() });
    signs[3].namespaces.push(namespace(Some(vec![ip("10.1.0.2")])));
    let (name, mac) = veth::names(&owner().attachment().unwrap()).nth(1).unwrap();
    signs[2].pairs.insert(name.clone(), Link { name, mac, ..Link::default() });
    let link = Link { name: "veth0".into(), ..Link::default() };
    let end = CachedLink { name: "veth0".into(), mac: link.mac.to_string(), ..CachedLink::default() };
    let cached = Entry { links: vec![end], ..entry("c1", gone()) };
    signs[4].cache = Cache::with(vec![cached]);
    signs[4].pairs.insert("veth0".into(), link);
    for (number, evidence) in signs.iter().enumerate() {
        assert!(matches!(judge(evidence), State::Alive(_)), "{number}: {:?}", judge(evidence));
    }
    let there = Object { sign: Some(State::Alive("there".into())), ..object(owner()) };
    assert_eq!(readable().judge(&object(owner()), &[&there]), State::Alive("there".into()));
}

#[test]
fn doubt_is_no_death() {
    let mut doubts: Vec<Evidence> = (0..4).map(|_| readable()).collect();
    doubts[0].cache.is_readable = false;
    doubts[1].cache.unknown.push("net-c1-eth0".into());
    doubts[2].cache = Cache::with(vec![entry("c1", Presence::Unknown)]);
    doubts[3].namespaces.push(namespace(None));
    for (number, evidence) in doubts.iter().enumerate() {
        assert!(matches!(judge(evidence), State::Unknown(_)), "{number}: {:?}", judge(evidence));
    }
    let unlisted = Evidence { unlisted: Some("cannot read host ports".into()), ..readable() };
    assert_eq!(judge(&unlisted), State::Unknown("cannot read host ports".to_owned()));
    let partial = Evidence { partial: Some("no /proc".into()), ..readable() };
    assert_eq!(judge(&partial), State::Unknown("no /proc".to_owned()));
    let unnamed = object(Owner::default());
    assert_eq!(partial.judge(&unnamed, &[]), State::Unknown("no /proc".to_owned()));
    // An object older than the boot needs no cache.
    let old = Object { sign: Some(State::Dead("made before the last boot".into())), ..object(owner()) };
    let state = doubts[0].judge(&old, &[]);
    assert!(matches!(&state, State::Dead(proof) if proof.starts_with("made before")), "{state:?}");
}

#[test]
fn an_address_that_another_live_container_has_now_saves_nobody() {
    let mut evidence = readable();
    evidence.namespaces.push(namespace(Some(vec![ip("10.1.0.2")])));
    evidence.cache = Cache::with(vec![entry("c2", Presence::Present((0, 7)))]);
    assert!(matches!(judge(&evidence), State::Dead(_)));
    // But a rule that knows only the address serves the other container now.
    let rule = Object { is_by_address: true, ..object(owner()) };
    assert!(matches!(evidence.judge(&rule, &[]), State::Alive(_)));
}

#[test]
fn an_object_without_a_name_is_judged_by_its_addresses() {
    let unnamed = object(Owner::default());
    let judge = |evidence: &Evidence| evidence.judge(&unnamed, &[]);
    assert!(matches!(judge(&readable()), State::Dead(_)));
    let mut evidence = readable();
    evidence.cache = Cache::with(vec![entry("c2", gone())]);
    assert!(matches!(judge(&evidence), State::Unknown(_)), "another leak names the owner");
    let mut evidence = readable();
    evidence.processes.push(Process { is_on_host: true, ..Process::default() });
    assert!(matches!(judge(&evidence), State::Unknown(_)), "an ADD runs");
    let mut evidence = readable();
    evidence.namespaces.push(namespace(Some(vec![ip("10.1.0.2")])));
    assert!(matches!(judge(&evidence), State::Alive(_)));
    let user =
        Object { parent: Some(9), sign: Some(State::Dead("unused".into())), ..object(Owner::default()) };
    assert!(matches!(evidence.judge(&user, &[]), State::Unknown(_)), "a macvlan is on link 9");
    let other = Object { parent: Some(8), ..user };
    assert_eq!(evidence.judge(&other, &[]), State::Dead("unused".into()));
    let nothing = Object { addresses: BTreeSet::new(), ..object(Owner::default()) };
    assert!(matches!(readable().judge(&nothing, &[]), State::Unknown(_)));
}

fn unread(inode: u64, is_mounted: bool, processes: &[u32]) -> Namespace {
    let why = Some("no access".to_owned());
    Namespace { inode, is_mounted, processes: processes.into(), unread: why, ..namespace(None) }
}

fn process(pid: u32, cgroup: &str) -> Process {
    Process { pid, cgroup: cgroup.to_owned(), ..Process::default() }
}

/// The state of `c1`, and of `c2`, which has a cache entry whose path is gone.
fn both(namespaces: Vec<Namespace>, processes: Vec<Process>) -> [&'static str; 2] {
    let pod = ("K8S_POD_UID".to_owned(), "12ab-34".to_owned());
    let mut living = entry("c3", Presence::Present((0, 7)));
    living.addresses.clear();
    let mut dead = entry("c2", gone());
    dead.addresses.clear();
    dead.sent.cni_args.push(pod);
    let evidence = Evidence { namespaces, processes, ..readable() };
    let evidence = Evidence { cache: Cache::with(vec![dead, living]), ..evidence };
    ["c1", "c2"].map(|name| {
        let object = Object { addresses: BTreeSet::new(), ..object(Owner::container(name)) };
        evidence.judge(&object, &[]).word()
    })
}

#[test]
fn a_namespace_that_cannot_be_read_is_a_doubt_for_its_container() {
    let any = ["unknown", "unknown"];
    let only_c2 = ["dead", "unknown"];
    assert_eq!(both(vec![unread(7, true, &[])], vec![]), ["dead", "dead"], "the cache names c3");
    assert_eq!(both(vec![unread(9, true, &[])], vec![]), any);
    let of_c2 = || process(5, "0::/machine.slice/libpod-c2.scope\n");
    assert_eq!(both(vec![unread(9, false, &[5])], vec![of_c2()]), only_c2);
    assert_eq!(both(vec![unread(9, true, &[5])], vec![of_c2()]), any, "a tool of c2 may have entered it");
    let pods = ["0::/kubepods/pod12ab-34/0123\n", "0::/kubepods-pod12ab_34.slice/cri-0123.scope\n"];
    for pod in pods {
        assert_eq!(both(vec![unread(9, false, &[5])], vec![process(5, pod)]), only_c2, "{pod}");
    }
    let with_another = vec![of_c2(), process(6, "0::/user.slice\n")];
    assert_eq!(both(vec![unread(9, false, &[5, 6])], with_another), any);
    assert_eq!(both(vec![unread(0, false, &[6])], vec![]), any, "process 6 does not show it");

    let evidence = Evidence { namespaces: vec![unread(9, true, &[])], ..readable() };
    assert_eq!(evidence.left_out(), ["network namespace /run/netns/y: no access"]);
}

#[test]
fn all_addresses_of_a_namespace_that_changes_while_it_is_listed_are_in_use() {
    let partial = |inode| {
        let inside = Inside { addresses: [ip("10.1.0.2")].into(), partial_lists: 5, ..Inside::default() };
        Namespace { inside: Some(inside), ..unread(inode, false, &[5]) }
    };
    let unnamed = Evidence { namespaces: vec![partial(9)], ..readable() };
    assert!(matches!(judge(&unnamed), State::Alive(_)));
    assert_eq!((both(vec![partial(9)], vec![]), unnamed.left_out()), (["dead", "dead"], vec![]));
    let of_c2 = || process(5, "0::/machine.slice/libpod-c2.scope\n");
    assert_eq!(both(vec![partial(9)], vec![of_c2()]), ["dead", "unknown"]);
    let cache = Cache::with(vec![entry("c2", Presence::Present((0, 9)))]);
    let named = Evidence { namespaces: vec![partial(9)], cache, ..readable() };
    assert_eq!(named.left_out(), ["network namespace /run/netns/y of container c2: no access"]);
}

#[test]
fn a_process_that_cannot_be_judged_is_a_doubt_for_what_it_may_work_for() {
    let unjudged = |cgroup| Process { unjudged: Some("no access".into()), ..process(5, cgroup) };
    let of_c2 = "0::/machine.slice/libpod-c2.scope\n";
    let elsewhere = || Namespace { processes: vec![5], ..namespace(Some(Vec::new())) };
    assert_eq!(both(vec![], vec![unjudged("0::/system.slice\n")]), ["unknown", "unknown"]);
    assert_eq!(both(vec![], vec![unjudged(of_c2)]), ["unknown", "unknown"], "it may be a plugin");
    assert_eq!(both(vec![elsewhere()], vec![unjudged(of_c2)]), ["dead", "unknown"]);
    let inside = |cgroup| Process { is_inside: true, ..unjudged(cgroup) };
    assert_eq!(both(vec![], vec![inside("0::/system.slice\n")]), ["dead", "dead"]);
    assert_eq!(both(vec![], vec![inside("")]), ["unknown", "unknown"], "its control group is not known");
    let evidence = Evidence { processes: vec![unjudged("")], ..readable() };
    assert_eq!(evidence.left_out(), ["process 5 (): no access"]);
}
