//! A change touches only what changes.

use ferrule_node_policy::model::*;
use ferrule_node_policy::ruleset::{Element, MapChange};

use crate::kit::*;

fn web_to_db() -> NetworkPolicy {
    only(policy("a", "one", "app=db", &[rule(&[spaces("team=b")], &[port("TCP", 80)])], &[]), "Ingress")
}

fn world() -> World {
    World::of(
        &[pod("a", "db", "app=db", 2), pod("a", "db2", "app=db", 3), pod("b", "web", "app=web", 4)],
        &[web_to_db()],
    )
}

#[test]
fn equal_selectors_share_a_set_and_equal_policies_a_chain() {
    let mut world = world();
    assert_eq!((world.kernel.sets.len(), world.kernel.chains.len(), world.kernel.maps.len()), (2, 2, 4));
    let written_otherwise =
        Peer { namespaces: Some(expression("team", "In", &["b", "b"])), ..Peer::default() };
    let other = rule(&[written_otherwise], &[port("TCP", 81)]);
    world.compiler.set_policy(only(policy("a", "two", "app=db", &[other], &[]), "Ingress"));
    let change = world.update();
    assert!(change.new_sets.is_empty() && change.gone_sets.is_empty() && change.elements.is_empty());
    assert_eq!((change.new_chains.len(), change.gone_chains.len(), change.maps.len()), (2, 2, 4));
}

#[test]
fn a_peer_that_comes_or_goes_touches_one_set_of_each_family() {
    let mut world = world();
    world.compiler.set_pod(&Pod { local: false, ..pod("b", "late", "", 7) });
    let change = world.update();
    assert!(change.maps.is_empty() && change.new_chains.is_empty() && change.new_sets.is_empty());
    assert!(
        change.elements.values().all(|set| set.added.len() == 1 && set.removed.is_empty())
            && change.elements.len() == 2
    );
    assert!(change.tightened().is_empty());
    world.compiler.remove_pod("b", "late");
    let change = world.update();
    assert_eq!(change.tightened(), addresses(7).all().collect());
    let removed = change.elements.values().flat_map(|set| &set.removed).copied().collect::<Vec<_>>();
    let expected: Vec<_> = addresses(7).all().map(Element::Address).collect();
    assert!(removed.len() == 2 && expected.iter().all(|element| removed.contains(element)), "{removed:?}");
}

#[test]
fn labels_of_pods_and_namespaces() {
    let mut world = world();
    assert!(world.passes(4, 2, TCP, 80) && !world.passes(9, 2, TCP, 80));
    world.compiler.set_namespace(&Namespace { name: "b".into(), labels: labels("team=x"), mode: None });
    assert_eq!(world.update().tightened(), addresses(4).all().collect());
    assert!(!world.passes(4, 2, TCP, 80));
    world.compiler.set_namespace(&Namespace {
        name: "b".into(),
        labels: labels("team=b more=1"),
        mode: None,
    });
    world.update();
    assert!(world.passes(4, 2, TCP, 80));
    world.compiler.remove_namespace("b");
    world.update();
    assert!(!world.passes(4, 2, TCP, 80));
    // The pod is no longer a database: no policy isolates it. Then it is one again.
    world.compiler.set_pod(&pod("a", "db", "app=free", 2));
    let change = world.update();
    assert!(
        change.maps.len() == 2
            && change.maps.values().all(|map| map.to.is_none())
            && change.gone_chains.is_empty()
    );
    assert!(world.passes(9, 2, TCP, 80) && change.tightened().is_empty());
    world.compiler.set_pod(&pod("a", "db", "app=db", 2));
    let change = world.update();
    assert!(
        change.maps.values().all(|MapChange { from, to }| from.is_none() && to.is_some())
            && change.new_chains.is_empty()
    );
    assert_eq!(change.tightened(), addresses(2).all().collect());
}

#[test]
fn another_address_and_an_end() {
    let mut world = world();
    world.compiler.set_addresses("b", "web", addresses(8));
    world.update();
    assert!(world.passes(8, 2, TCP, 80) && !world.passes(4, 2, TCP, 80));
    // Another pod has the address of one that has ended, in this order or the other one.
    world.compiler.set_pod(&pod("c", "next", "", 8));
    world.compiler.set_pod(&Pod { ended: true, ..pod("b", "web", "app=web", 8) });
    world.update();
    assert!(!world.passes(8, 2, TCP, 80));
}

#[test]
fn what_is_told_twice_or_undone_is_no_change() {
    let mut world = world();
    let addressless = Pod { addresses: Addresses::default(), local: false, ..pod("b", "early", "", 0) };
    world.compiler.set_pod(&addressless);
    world.compiler.set_pod(&pod("b", "web", "app=web", 4));
    world.compiler.set_policy(web_to_db());
    world.compiler.set_namespace(&Namespace { name: "b".into(), labels: labels("team=b"), mode: None });
    assert!(world.update().is_empty());
    world.compiler.set_pod(&pod("b", "web", "app=web", 9));
    world.compiler.set_namespace(&Namespace { name: "b".into(), labels: labels(""), mode: None });
    world.compiler.remove_policy("a", "one");
    world.compiler.set_policy(web_to_db());
    world.compiler.set_namespace(&Namespace { name: "b".into(), labels: labels("team=b"), mode: None });
    world.compiler.set_pod(&pod("b", "web", "app=web", 4));
    assert!(world.update().is_empty());
}

#[test]
fn a_new_list_removes_what_is_missing_in_it() {
    let mut world = world();
    world.compiler.retain_pods(|namespace, name| (namespace, name) != ("b", "web"));
    world.update();
    assert!(!world.passes(4, 2, TCP, 80));
    world.compiler.retain_policies(|_, _| false);
    world.compiler.retain_namespaces(|name| name != "b");
    world.update();
    assert!(world.kernel == Default::default() && world.compiler.isolated().is_empty());
}

/// Another name of an unchanged chain or set would replace all of them at an update of the daemon.
#[test]
fn names_are_those_of_the_release_before() {
    let world = world();
    let chains: Vec<_> = world.kernel.chains.keys().map(ToString::to_string).collect();
    let sets: Vec<_> = world.kernel.sets.keys().map(ToString::to_string).collect();
    assert_eq!(chains, ["c5289929247b88857382d", "cbc515644adbe93209b8f"]);
    assert_eq!(sets, ["sa0cae09176f6fa37a5ee", "sdc75c1836300b751d45e"]);
}
