//! The dry mode: of a namespace, and of the cluster. Nothing is denied, and what would be denied is told apart.

use ferrule_node_policy::Compiler;
use ferrule_node_policy::judge::why;
use ferrule_node_policy::model::*;

use crate::kit::*;

fn space(name: &str, mode: Option<&str>) -> Namespace {
    Namespace { name: name.into(), labels: labels(&format!("team={name}")), mode: mode.map(str::to_owned) }
}

/// A pod of each of the namespaces a and b, which deny everything, and one of c, which has no policy.
fn world() -> World {
    let pods = [pod("a", "one", "", 1), pod("b", "two", "", 2), pod("c", "three", "", 3)];
    World::of(&pods, &[policy("a", "closed", "", &[], &[]), policy("b", "closed", "", &[], &[])])
}

#[test]
fn a_dry_namespace_is_denied_nothing_and_others_are() {
    let mut world = world();
    assert!(!world.passes(1, 3, TCP, 80) && !world.passes(3, 1, TCP, 80) && !world.passes(2, 3, TCP, 80));
    world.compiler.set_namespace(&space("a", Some("dry")));
    let change = world.update();
    assert!(change.dry.len() == 2 && change.dry.values().all(|is_dry| *is_dry), "{change:?}");
    assert!(world.passes(1, 3, TCP, 80) && world.passes(3, 1, TCP, 80), "dry");
    assert!(!world.passes(1, 2, TCP, 80) && !world.passes(2, 1, TCP, 80), "the other end denies it");
    let [from, to] = [addresses(3), addresses(1)].map(|of| of.all().next().unwrap());
    let explanation = why(world.compiler.cluster(), from, to, 80, TCP);
    assert!(explanation.ingress.is_dry && explanation.ingress.reason.denies(), "{explanation:?}");
    assert!(!explanation.egress.is_dry, "nothing would be denied there: {explanation:?}");
    assert!(!world.isolates("a", Direction::Ingress) && world.isolates("b", Direction::Ingress));

    // Back: the daemon judges the flows of its pods again.
    world.compiler.set_namespace(&space("a", None));
    let change = world.update();
    assert!(addresses(1).all().all(|address| change.tightened().contains(&address)), "{change:?}");
    assert!(!world.passes(3, 1, TCP, 80) && world.isolates("a", Direction::Ingress));
}

#[test]
fn an_annotation_that_is_not_understood_is_enforced_and_reported() {
    let mut world = world();
    for mode in ["Dry", "", "off"] {
        world.compiler.set_namespace(&space("a", Some(mode)));
        world.update();
        assert!(!world.passes(3, 1, TCP, 80), "{mode}");
        let wanted =
            format!("a/: annotation ferrule.dev/policy is {mode:?}, neither dry nor enforce: policies hold");
        assert_eq!(world.faults(), [wanted]);
    }
    world.compiler.set_namespace(&space("a", Some("enforce")));
    assert_eq!((world.update().is_empty(), world.faults()), (true, Vec::new()));
    // Without its Namespace it is no dry one.
    world.compiler.set_namespace(&space("a", Some("dry")));
    world.update();
    world.compiler.remove_namespace("a");
    world.update();
    assert!(!world.passes(3, 1, TCP, 80));
}

#[test]
fn cluster_policies_deny_nothing_in_a_dry_namespace() {
    let mut world = world();
    let everything = |action: &str| ClusterRule {
        action: action.into(),
        peers: vec![ClusterPeer::Pods(NamespacedPods::default())],
        ..ClusterRule::default()
    };
    let admin = ClusterNetworkPolicy {
        name: "admin".into(),
        tier: "Admin".into(),
        ingress: vec![everything("Deny")],
        ..ClusterNetworkPolicy::default()
    };
    world.compiler.set_cluster_policy(admin);
    world.update();
    assert!(!world.passes(1, 3, TCP, 80));
    world.compiler.set_namespace(&space("c", Some("dry")));
    world.compiler.set_namespace(&space("a", Some("dry")));
    world.update();
    assert!(world.passes(1, 3, TCP, 80));
    assert!(!world.isolates("c", Direction::Ingress) && world.isolates("new", Direction::Ingress));
}

#[test]
fn a_dry_cluster_denies_nothing_and_isolates_nobody() {
    let mut world = World { compiler: Compiler::new(true), ..World::default() };
    world.compiler.set_namespace(&space("a", Some("enforce")));
    world.compiler.set_pod(&pod("a", "one", "", 1));
    world.compiler.set_pod(&pod("nowhere", "two", "", 2));
    for namespace in ["a", "nowhere"] {
        world.compiler.set_policy(policy(namespace, "closed", "", &[], &[]));
    }
    world.compiler.set_cluster_policy(ClusterNetworkPolicy {
        name: "broken".into(),
        tier: "?".into(),
        ingress: vec![ClusterRule::default()],
        ..ClusterNetworkPolicy::default()
    });
    world.update();
    assert_eq!(world.kernel.dry.len(), 4, "{:?}", world.kernel);
    assert!(world.passes(1, 2, TCP, 80) && world.passes(2, 1, TCP, 80));
    for namespace in ["a", "nowhere", "new"] {
        assert!(
            !Direction::ALL.into_iter().any(|direction| world.isolates(namespace, direction)),
            "{namespace}"
        );
    }
}
