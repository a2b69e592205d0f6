//! ClusterNetworkPolicies in the kernel: a sample of tiers, priorities and actions, with NetworkPolicies between them.

use std::net::{IpAddr, SocketAddr};

use cni_lab::testing::serve;
use cni_lab::{TIMEOUT, eventually};
use ferrule_node::policy::objects::{Kind, Told};
use ferrule_node_policy::model;
use ferrule_node_policy::model::{
    ClusterNetworkPolicy, ClusterPeer, ClusterProtocol, ClusterRule, ClusterSubject, NamespacedPods,
    NetworkPolicy, Protocol, Rule,
};

use super::rig::{
    Rig, Talk, Try, from, key, labels, number, object, pods, policy, selects, try_all, with_addresses,
};

/// The label of a namespace that has its name.
const NAME: &str = "kubernetes.io/metadata.name";

fn of_app(app: &str) -> NamespacedPods {
    NamespacedPods { pods: selects(&[("app", app)]), ..NamespacedPods::default() }
}

fn of_namespace(name: &str) -> ClusterPeer {
    ClusterPeer::Pods(NamespacedPods { namespaces: selects(&[(NAME, name)]), ..NamespacedPods::default() })
}

fn everybody() -> ClusterPeer {
    ClusterPeer::Pods(NamespacedPods::default())
}

fn rule(action: &str, peer: ClusterPeer, protocols: &[ClusterProtocol]) -> ClusterRule {
    ClusterRule {
        action: action.into(),
        peers: vec![peer],
        protocols: protocols.to_vec(),
        ..ClusterRule::default()
    }
}

fn tcp(first: i32, last: i32) -> ClusterProtocol {
    ClusterProtocol::Ports { protocol: Protocol::Tcp, first, last }
}

/// For the pods with the label `app=web` in all namespaces.
fn tier(tier: &str, priority: i32, ingress: &[ClusterRule]) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy {
        name: format!("{}-{priority}", tier.to_lowercase()),
        tier: tier.into(),
        priority,
        subject: ClusterSubject::Pods(of_app("web")),
        ingress: ingress.to_vec(),
        egress: Vec::new(),
    }
}

fn allows(peers: &[model::Peer], ports: &[model::Port]) -> NetworkPolicy {
    let rules = if peers.is_empty() {
        Vec::new()
    } else {
        vec![Rule { peers: peers.to_vec(), ports: ports.to_vec() }]
    };
    NetworkPolicy { types: vec!["Ingress".into()], ingress: rules, ..policy("shop", "np", "web") }
}

/// These policies and no others.
fn set(
    rig: &Rig,
    network_policy: Option<NetworkPolicy>,
    tiers: &[ClusterNetworkPolicy],
    former: &mut Vec<String>,
) {
    let gone = former.drain(..).map(|name| Told::Gone(Kind::ClusterPolicies, key(&name, &name)));
    rig.tell(gone.collect::<Vec<_>>());
    rig.tell([network_policy.map_or_else(|| Told::Gone(Kind::Policies, key("shop", "np")), Told::Policy)]);
    former.extend(tiers.iter().map(|policy| policy.name.clone()));
    rig.tell(tiers.iter().cloned().map(Told::ClusterPolicy));
    rig.settle();
}

#[test]
fn tiers_priorities_and_actions() {
    let rig = Rig::new();
    rig.start_daemon();
    let objects = [object("shop", "web"), object("shop", "client"), object("tools", "other")];
    rig.listed(&["shop", "tools"], &[], &objects);
    let (web, client, other) = (rig.add("shop", "web"), rig.add("shop", "client"), rig.add("tools", "other"));
    // Nothing isolates them yet, so nothing is announced: the API has their addresses.
    let at = [web.addresses, client.addresses, other.addresses];
    rig.tell(objects.into_iter().zip(at).map(|(pod, at)| Told::Pod(with_addresses(pod, at))));
    for place in &rig.world.outside {
        serve(place, "outside", 80);
    }
    let outside = rig.world.outside.each_ref().map(|client| client.address());
    let (of_web, of_client, of_other) = (from(&web.pod), from(&client.pod), from(&other.pod));
    let node = from(&rig.world.node);
    let (w, c) = (web.addresses, client.addresses);
    let unknown = || ClusterPeer::Unknown("of the experimental channel".to_owned());
    let deny_all = |name, priority| tier(name, priority, &[rule("Deny", everybody(), &[])]);
    let of_client_only = || Some(allows(&[pods(&[("app", "client")])], &[]));
    let egress =
        |rules: &[ClusterRule]| ClusterNetworkPolicy { egress: rules.to_vec(), ..tier("Admin", 5, &[]) };
    let networks = ClusterPeer::Networks(vec!["192.0.2.0/24".into(), "2001:db8::/64".into()]);
    type Row<'a> = (&'a str, Option<NetworkPolicy>, Vec<ClusterNetworkPolicy>, Vec<Try<'a>>);
    let rows: [Row<'_>; 9] = [
        (
            "Admin denies a namespace",
            None,
            vec![tier("Admin", 5, &[rule("Deny", of_namespace("tools"), &[])])],
            vec![
                (&of_other, "tcp", w, 80, false),
                (&of_other, "udp", w, 80, false),
                (&of_client, "tcp", w, 80, true),
                (&of_other, "tcp", c, 80, true),
                (&of_web, "tcp", other.addresses, 80, true),
            ],
        ),
        (
            "Admin accepts a range of ports before it denies, and no NetworkPolicy is asked",
            Some(allows(&[], &[])),
            vec![
                deny_all("Admin", 5),
                tier("Admin", 4, &[rule("Accept", of_namespace("tools"), &[tcp(80, 81)])]),
            ],
            vec![
                (&of_other, "tcp", w, 81, true),
                (&of_other, "tcp", w, 82, false),
                (&of_other, "udp", w, 80, false),
                (&of_client, "tcp", w, 80, false),
                (&node, "tcp", w, 82, true),
            ],
        ),
        (
            "the order of priorities is that of the numbers",
            None,
            vec![deny_all("Admin", 9), tier("Admin", 10, &[rule("Accept", everybody(), &[])])],
            vec![(&of_client, "tcp", w, 80, false), (&node, "tcp", w, 80, true)],
        ),
        (
            "Admin passes a namespace on, and denies the others",
            Some(allows(
                &[model::Peer { namespaces: Some(selects(&[(NAME, "tools")])), ..Default::default() }],
                &[number("TCP", 80)],
            )),
            vec![tier(
                "Admin",
                5,
                &[rule("Pass", of_namespace("tools"), &[]), rule("Deny", everybody(), &[])],
            )],
            vec![
                (&of_other, "tcp", w, 80, true),
                (&of_other, "tcp", w, 81, false),
                (&of_client, "tcp", w, 80, false),
            ],
        ),
        (
            "Baseline denies what no NetworkPolicy isolates",
            None,
            vec![deny_all("Baseline", 5), tier("Admin", 1, &[rule("Pass", everybody(), &[])])],
            vec![
                (&of_other, "tcp", w, 80, false),
                (&of_client, "udp", w, 80, false),
                (&of_other, "tcp", c, 80, true),
            ],
        ),
        (
            "a NetworkPolicy replaces Baseline",
            of_client_only(),
            vec![deny_all("Baseline", 5)],
            vec![(&of_client, "tcp", w, 80, true), (&of_other, "tcp", w, 80, false)],
        ),
        (
            "networks, a named port of the peer, and ICMP",
            None,
            vec![egress(&[
                rule("Accept", everybody(), &[ClusterProtocol::Named("web".into())]),
                rule("Deny", of_namespace("shop"), &[]),
                rule("Deny", networks, &[]),
            ])],
            vec![
                (&of_web, "udp", outside, 80, false),
                (&of_web, "tcp", c, 82, true),
                (&of_web, "tcp", c, 81, false),
                (&of_web, "tcp", other.addresses, 81, true),
                (&of_client, "udp", outside, 80, true),
            ],
        ),
        (
            "a named port of the subject",
            None,
            vec![tier("Admin", 5, &[rule("Deny", everybody(), &[ClusterProtocol::Named("web".into())])])],
            vec![(&of_other, "tcp", w, 82, false), (&of_other, "tcp", w, 81, true)],
        ),
        (
            "a rule that is not understood fails closed",
            None,
            vec![
                tier("Admin", 1, &[rule("Accept", unknown(), &[])]),
                tier("Admin", 2, &[rule("Pass", unknown(), &[])]),
            ],
            vec![
                (&of_other, "tcp", w, 80, false),
                (&of_web, "tcp", c, 80, true),
                (&node, "tcp", w, 80, true),
            ],
        ),
    ];
    let mut former = Vec::new();
    for (what, network_policy, tiers, tries) in rows {
        set(&rig, network_policy, &tiers, &mut former);
        try_all(what, &tries);
    }
    assert_eq!(rig.report().faulty, 2, "{:?}", rig.report());

    // A change ends the flows that it denies, and no others. Without the policies all is as before.
    set(&rig, None, &[], &mut former);
    assert!(eventually(TIMEOUT, || rig.isolated() == "ferrule-policy 1\nend\n"), "{}", rig.isolated());
    let to = |addresses: [IpAddr; 2], family: usize, port| SocketAddr::new(addresses[family], port);
    let (mut ended, mut others) = (Vec::new(), Vec::new());
    for family in [0, 1] {
        ended.push(Talk::udp(&other.pod, to(w, family, 81)));
        ended.push(Talk::tcp(&other.pod, &web.pod, to(w, family, 90)));
        others.push(Talk::udp(&client.pod, to(w, family, 81)));
        others.push(Talk::tcp(&client.pod, &web.pod, to(w, family, 91)));
    }
    assert!(ended.iter().chain(&others).all(Talk::goes), "before the change");
    set(&rig, None, &[tier("Admin", 5, &[rule("Deny", of_namespace("tools"), &[])])], &mut former);
    assert!(eventually(TIMEOUT, || ended.iter().all(|talk| !talk.goes())), "a flow goes on");
    assert!(others.iter().all(Talk::goes), "another flow has ended");
    set(&rig, None, &[], &mut former);
    assert!(eventually(TIMEOUT, || ended.iter().filter(|talk| talk.is_udp()).all(Talk::goes)));
}

/// A new pod waits in the directions in which a policy may deny: also until the labels of its namespace are known.
#[test]
fn a_pod_waits_for_the_labels_of_its_namespace() {
    let rig = Rig::new();
    rig.start_daemon();
    rig.listed(&["shop"], &[], &[object("shop", "client")]);
    let client = rig.add("shop", "client");
    rig.tell([Told::Pod(with_addresses(object("shop", "client"), client.addresses))]);
    let subject = NamespacedPods { namespaces: selects(&[("team", "ops")]), ..NamespacedPods::default() };
    let deny = ClusterNetworkPolicy {
        subject: ClusterSubject::Pods(subject),
        ..tier("Admin", 5, &[rule("Deny", of_namespace("shop"), &[])])
    };
    rig.tell([Told::ClusterPolicy(deny)]);
    rig.wait_isolated("ferrule-policy 1\n* ingress\nshop none\nend\n");
    // Its pod comes before the namespace.
    let late = rig.add("late", "late");
    rig.tell([Told::Pod(object("late", "late"))]);
    rig.settle();
    assert_eq!(rig.undecided(), ["late late/late"]);
    let of_client = from(&client.pod);
    try_all("undecided", &[(&of_client, "tcp", late.addresses, 80, false)]);
    let name = "late".to_owned();
    rig.tell([Told::Namespace(model::Namespace {
        name: name.clone(),
        labels: labels(&[("team", "ops")]),
        mode: None,
    })]);
    rig.wait("released", |report| report.waiting == 0 && report.isolated == 2);
    rig.wait_isolated("ferrule-policy 1\n* ingress\nlate ingress\nshop none\nend\n");
    try_all("denied", &[(&of_client, "tcp", late.addresses, 80, false)]);
    // What cannot be read denies everything, and says so.
    let why = "it has 9 parts".to_owned();
    rig.tell([Told::Unread(Kind::ClusterPolicies, key("admin-5", "admin-5"), why)]);
    rig.wait("a fault", |report| report.faults.iter().any(|fault| fault.what.contains("it has 9 parts")));
    rig.settle();
    try_all(
        "unread",
        &[
            (&from(&late.pod), "tcp", client.addresses, 80, false),
            (&of_client, "udp", late.addresses, 80, false),
        ],
    );
    // Without its CRD there is no policy.
    rig.tell([
        Told::Listed(Kind::ClusterPolicies, Default::default()),
        Told::Namespace(model::Namespace { name, labels: labels(&[]), mode: None }),
    ]);
    rig.wait_isolated("ferrule-policy 1\nend\n");
    try_all(
        "none",
        &[
            (&of_client, "tcp", late.addresses, 80, true),
            (&from(&late.pod), "tcp", client.addresses, 80, true),
        ],
    );
}
