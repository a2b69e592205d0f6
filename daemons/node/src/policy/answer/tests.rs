use ferrule_node_policy::model::{
    self, Addresses, ClusterNetworkPolicy, ClusterPeer, ClusterRule, LabelSelector, NamedPort,
    NamespacedPods, Peer, Port, Protocol,
};

use super::*;

const TCP: u8 = 6;

fn selector(app: &str) -> LabelSelector {
    LabelSelector { labels: [("app".to_owned(), app.to_owned())].into(), ..LabelSelector::default() }
}

fn address(last: u8) -> IpAddr {
    [10, 0, 0, last].into()
}

/// A pod of the namespace `shop`; its label is its name.
fn object(name: &str, last: u8, local: bool) -> model::Pod {
    model::Pod {
        namespace: "shop".into(),
        name: name.into(),
        labels: [("app".to_owned(), name.to_owned())].into(),
        addresses: Addresses { v4: Some([10, 0, 0, last].into()), v6: None },
        ports: vec![NamedPort { name: "web".into(), protocol: Protocol::Tcp, port: 8080 }],
        local,
        ..model::Pod::default()
    }
}

fn named_port(name: &str) -> Port {
    Port { port: Some(PortValue::Name(name.into())), ..Port::default() }
}

fn pods(app: &str) -> Peer {
    Peer { pods: Some(selector(app)), ..Peer::default() }
}

/// The pods web (1), client (2) and far (3, of another node), and policies for web.
fn compiler() -> Compiler {
    let mut compiler = Compiler::default();
    for pod in [object("web", 1, true), object("client", 2, true), object("far", 3, false)] {
        compiler.set_pod(&pod);
    }
    let number = Port { port: Some(PortValue::Number(80)), ..Port::default() };
    let block = model::IpBlock { cidr: "192.0.2.0/24".into(), except: Vec::new() };
    compiler.set_policy(NetworkPolicy {
        namespace: "shop".into(),
        name: "web".into(),
        pods: selector("web"),
        ingress: vec![
            Rule { peers: vec![pods("nobody"), pods("client")], ports: vec![named_port("web"), number] },
            Rule { peers: vec![pods("far")], ports: vec![named_port("metrics")] },
            Rule { peers: vec![Peer { block: Some(block), ..Peer::default() }], ports: Vec::new() },
        ],
        ..NetworkPolicy::default()
    });
    compiler.set_policy(NetworkPolicy {
        namespace: "shop".into(),
        name: "closed".into(),
        pods: selector("web"),
        types: vec!["Egress".into()],
        ..NetworkPolicy::default()
    });
    let _ = compiler.update();
    compiler
}

fn ask(compiler: &Compiler, from: IpAddr, to: IpAddr, port: u16) -> Flow {
    let question = Question { from, to, protocol: TCP, port };
    answer(&Ask::Why(vec![question]), compiler).flows.remove(0)
}

fn lines(side: &Side) -> Vec<String> {
    side.by.iter().map(line).collect()
}

fn line(By { policy, entry, misses }: &By) -> String {
    format!("{policy} {}: {misses}", entry.as_deref().unwrap_or("-"))
}

/// For all peers.
fn rule(action: &str, name: &str) -> ClusterRule {
    ClusterRule {
        name: name.into(),
        action: action.into(),
        peers: vec![ClusterPeer::Pods(NamespacedPods::default())],
        ..ClusterRule::default()
    }
}

fn policy(tier: &str, rules: Vec<ClusterRule>) -> ClusterNetworkPolicy {
    ClusterNetworkPolicy {
        name: tier.to_lowercase(),
        tier: tier.into(),
        ingress: rules,
        ..ClusterNetworkPolicy::default()
    }
}

#[test]
fn each_end_names_its_policies_and_their_entries() {
    let compiler = compiler();
    let [web, client, far] = [1, 2, 3].map(address);
    let flow = ask(&compiler, client, web, 8080);
    assert_eq!((flow.egress.reason, flow.ingress.reason), (Reason::NoPolicy, Reason::Allowed));
    assert_eq!(
        (flow.egress.pods, &flow.ingress.pods),
        (vec!["shop/client".to_owned()], &vec!["shop/web".to_owned()])
    );
    assert_eq!(lines(&flow.ingress), ["NetworkPolicy shop/web ingress[0].from[1], ports[0]: "]);
    let denied = ask(&compiler, client, web, 81).ingress;
    assert_eq!(denied.reason, Reason::NothingAllows);
    assert_eq!(
        lines(&denied),
        [
            "NetworkPolicy shop/web ingress[0]: a peer matches, no port does; its ports: web/TCP, 80/TCP; the port \"web\" of the pod at 10.0.0.1 is 8080/TCP",
            "NetworkPolicy shop/web ingress[1]: neither a peer nor a port matches; from[0]: the pod must have app=far, and shop/client has app=client; its ports: metrics/TCP; no pod at 10.0.0.1 has a port with the name \"metrics\"",
            "NetworkPolicy shop/web ingress[2]: the port matches, no peer does; from[0]: 10.0.0.2 is not in 192.0.2.0/24",
        ]
    );
    // Who is no peer, whatever its labels are.
    let outside = ask(&compiler, [203, 0, 113, 9].into(), web, 80).ingress;
    assert_eq!(
        lines(&outside)[2],
        "NetworkPolicy shop/web ingress[2]: the port matches, no peer does; no pod that is known has 203.0.113.9: only an ipBlock matches it; from[0]: 203.0.113.9 is not in 192.0.2.0/24"
    );
    let nothing = ask(&compiler, web, client, 80).egress;
    assert_eq!(
        lines(&nothing),
        ["NetworkPolicy shop/closed -: it has no entry in egress: it allows nothing"]
    );
    let mut compiler = compiler;
    compiler.set_pod(&model::Pod { namespace: "tools".into(), ..object("client", 4, true) });
    let stranger = lines(&ask(&compiler, address(4), web, 80).ingress).remove(0);
    assert!(
        stranger.contains(
            "from[1]: a podSelector alone selects pods of namespace shop, and tools/client is of another one"
        ),
        "{stranger}"
    );
    // A pod of another node has a name, but this node does not judge it; an address outside has none.
    let elsewhere = ask(&compiler, far, [192, 0, 2, 9].into(), 80);
    assert_eq!(
        (elsewhere.egress.reason, elsewhere.egress.pods),
        (Reason::NotHere, vec!["shop/far".to_owned()])
    );
    assert_eq!((elsewhere.ingress.reason, elsewhere.ingress.pods), (Reason::NotHere, Vec::new()));
    assert_eq!(ask(&compiler, web, web, 1).ingress.reason, Reason::Itself);
}

#[test]
fn each_peer_says_what_does_not_fit() {
    let mut compiler = compiler();
    compiler.set_namespace(&model::Namespace {
        name: "shop".into(),
        labels: [("team".to_owned(), "sales".to_owned())].into(),
        mode: None,
    });
    let team = |values: &[&str]| LabelSelector {
        expressions: vec![model::Expression {
            key: "team".into(),
            operator: "In".into(),
            values: values.iter().map(|value| value.to_string()).collect(),
        }],
        ..LabelSelector::default()
    };
    let namespaces = |selector| Peer { namespaces: Some(selector), ..Peer::default() };
    let block = |cidr: &str, except: &str| Peer {
        block: Some(model::IpBlock { cidr: cidr.into(), except: vec![except.into()] }),
        ..Peer::default()
    };
    let unread = Peer { unread: Some("odd".into()), ..Peer::default() };
    let mut says = |peer: Peer, from: u8| {
        compiler.set_policy(NetworkPolicy {
            namespace: "shop".into(),
            name: "web".into(),
            pods: selector("web"),
            ingress: vec![Rule { peers: vec![peer.clone(); 5], ports: Vec::new() }],
            ..NetworkPolicy::default()
        });
        let line = lines(&ask(&compiler, address(from), address(1), 80).ingress).remove(0);
        let parts: Vec<&str> = line.split("; ").collect();
        assert_eq!((parts.len(), parts[4]), (5, "and 2 more peers"), "{line}");
        parts[3].to_owned()
    };
    for (peer, said) in [
        (
            namespaces(team(&["a", "b", "c", "d", "e", "f"])),
            "from[2]: the namespace must have team In a b c d e and 1 more, and shop has team=sales",
        ),
        (namespaces(selector("x")), "from[2]: the namespace must have app=x, and shop has no label app"),
        (
            Peer { namespaces: Some(team(&["sales"])), ..pods("x") },
            "from[2]: the pod must have app=x, and shop/client has app=client",
        ),
        (
            Peer { namespaces: Some(selector("y")), ..pods("x") },
            "from[2]: the namespace must have app=y, and shop has no label app, and the pod must have app=x, and shop/client has app=client",
        ),
        (block("::/0", "fd00::/8"), "from[2]: 10.0.0.2 is IPv4, and ::/0 is IPv6"),
        (block("10.0.0.0/24", "10.0.0.2/31"), "from[2]: 10.0.0.2 is in its except 10.0.0.2/31"),
        (block("10.0.0.0/24", "fd00::/64"), "from[2]: it is not understood: its CIDRs are not understood"),
        (unread, "from[2]: it is not understood: odd"),
    ] {
        assert_eq!(says(peer, 2), said);
    }
}

#[test]
fn the_ports_of_an_entry_are_shown() {
    let number = |port, end_port| Port { port: Some(PortValue::Number(port)), end_port, ..Port::default() };
    let udp = Port { protocol: Some("UDP".into()), ..named_port("dns") };
    let sctp = Port { protocol: Some("SCTP".into()), ..Port::default() };
    let odd = Port { unread: Some("odd".into()), ..number(1, None) };
    let all = [number(80, None), number(8000, Some(8080)), udp, sctp, odd];
    assert_eq!(
        all.each_ref().map(port),
        ["80/TCP", "8000-8080/TCP", "dns/UDP", "all/SCTP", "1/TCP (not understood)"]
    );
}

#[test]
fn the_answer_about_a_huge_policy_is_short() {
    let mut compiler = compiler();
    let ports: Vec<Port> = (0..20).map(|number| named_port(&format!("p{number}"))).collect();
    compiler.set_policy(NetworkPolicy {
        namespace: "shop".into(),
        name: "web".into(),
        pods: selector("web"),
        ingress: vec![Rule { peers: vec![pods("nobody")], ports }; 1000],
        ..NetworkPolicy::default()
    });
    let found = lines(&ask(&compiler, address(2), address(1), 80).ingress);
    assert_eq!(found.len(), EXPLAINED);
    assert!(found[EXPLAINED - 1].ends_with("; and 950 more entries of policies"), "{found:?}");
    assert_eq!(found[0].matches("has a port with the name").count(), PARTS, "{found:?}");
    assert!(found[0].contains("its ports: p0/TCP, p1/TCP, p2/TCP and 17 more;"), "{found:?}");
}

#[test]
fn rules_of_cluster_policies_have_numbers_and_names() {
    let mut compiler = compiler();
    compiler.set_cluster_policy(policy("Admin", vec![rule("Pass", "")]));
    compiler.set_cluster_policy(policy("Baseline", vec![rule("Deny", "no one")]));
    let [client, far] = [2, 3].map(address);
    let refused = ask(&compiler, far, client, 80).ingress;
    assert_eq!(refused.reason, Reason::Refused);
    assert_eq!(
        lines(&refused),
        ["ClusterNetworkPolicy baseline ingress[0] \"no one\" (Deny, tier Baseline, priority 0): "]
    );
    assert_eq!(refused.passed[0].policy, "ClusterNetworkPolicy admin");
    let does = |compiler: &Compiler| {
        let pods = answer(&Ask::Pods, compiler).pods;
        let all = pods.iter().flat_map(|pod| pod.policies.clone()).map(|policy| (policy.policy, policy.does));
        all.collect::<BTreeMap<_, _>>()["ClusterNetworkPolicy admin"].clone()
    };
    assert_eq!(does(&compiler), "Admin 0: Pass");
    let odd = ClusterRule { peers: vec![ClusterPeer::Unknown("odd".into())], ..rule("Pass", "") };
    compiler.set_cluster_policy(policy("Admin", vec![odd]));
    assert_eq!(does(&compiler), "Admin 0: Pass, partly not understood");
    assert_eq!(
        lines(&ask(&compiler, far, client, 80).ingress),
        [
            "ClusterNetworkPolicy admin ingress[0] (Pass, tier Admin, priority 0): it is not understood, so it denies everything in this direction: odd"
        ]
    );
}

#[test]
fn what_was_not_asked_is_named_if_it_decides_otherwise() {
    let mut compiler = compiler();
    let unreached = |compiler: &Compiler, port| -> Vec<String> {
        ask(compiler, address(2), address(1), port).ingress.unreached.iter().map(line).collect()
    };
    let allows = "NetworkPolicy shop/web ingress[0].from[1], ports[1]: ";
    compiler.set_cluster_policy(policy("Admin", vec![rule("Deny", "")]));
    compiler.set_cluster_policy(policy("Baseline", vec![rule("Accept", ""); 5]));
    // Neither the NetworkPolicy, if it denies as well, nor Baseline, which is behind it.
    assert_eq!((unreached(&compiler, 80), unreached(&compiler, 81)), (vec![allows.to_owned()], Vec::new()));
    let actions = ["Deny", "Accept", "Deny", "Pass", "Accept"];
    compiler.set_cluster_policy(policy("Admin", actions.map(|one| rule(one, "")).into()));
    let accepts = "ClusterNetworkPolicy admin ingress[1] (Accept, tier Admin, priority 0): ";
    assert_eq!(unreached(&compiler, 80), [accepts, allows]);
    compiler.set_cluster_policy(policy("Admin", vec![rule("Accept", "")]));
    assert_eq!(unreached(&compiler, 81), ["NetworkPolicy shop/web -: no entry of it allows this"]);
    // Behind the NetworkPolicy.
    compiler.remove_cluster_policy("admin");
    let baseline =
        |rule| format!("ClusterNetworkPolicy baseline ingress[{rule}] (Accept, tier Baseline, priority 0): ");
    let last = baseline(2) + "and 2 more behind it";
    assert_eq!(
        (unreached(&compiler, 80), unreached(&compiler, 81)),
        (Vec::new(), vec![baseline(0), baseline(1), last])
    );
}

#[test]
fn pods_are_found_by_their_names() {
    let mut compiler = compiler();
    compiler.set_pod(&model::Pod { host_network: true, ..object("agent", 9, true) });
    let pod = |name: &str| answer(&Ask::Pod(name.into()), &compiler);
    let of = |name: &str| pod(name).pod.map(|pod| (pod.addresses[0], pod.is_here, pod.has_part));
    assert_eq!(of("shop/web"), Some((address(1), true, true)));
    assert_eq!(of("shop/far"), Some((address(3), false, true)));
    assert_eq!(of("shop/agent"), Some((address(9), true, false)));
    for name in ["shop/none", "web", "other/web", ""] {
        assert!(pod(name).pod.is_none() && pod(name).error.is_some(), "{name}");
    }
}

#[test]
fn the_policies_of_each_pod_with_whom_they_name() {
    let compiler = compiler();
    let found = answer(&Ask::Pods, &compiler).pods;
    assert_eq!(found.iter().map(|pod| pod.pod.as_str()).collect::<Vec<_>>(), ["shop/client", "shop/web"]);
    assert!(found[0].policies.is_empty());
    let [ingress, egress] = &found[1].policies[..] else { panic!("{found:#?}") };
    assert_eq!((ingress.policy.as_str(), ingress.direction), ("NetworkPolicy shop/web", Direction::Ingress));
    // Not those of the entry whose port the pod does not have.
    assert_eq!(ingress.peers, ["shop/client"]);
    assert_eq!((ingress.addresses, ingress.everybody), (1, false));
    assert_eq!(ingress.blocks, ["192.0.2.0-192.0.2.255"]);
    assert_eq!((egress.policy.as_str(), egress.direction), ("NetworkPolicy shop/closed", Direction::Egress));
    assert_eq!((egress.peers.len(), egress.addresses, egress.everybody), (0, 0, false));
    assert!(ingress.does == "allows" && !found[1].is_dry, "{found:?}");
}

#[test]
fn too_many_questions_are_refused() {
    let question = Question { from: address(1), to: address(2), protocol: TCP, port: 80 };
    let found = answer(&Ask::Why(vec![question; MOST + 1]), &compiler());
    assert!(found.error.is_some() && found.flows.is_empty());
    assert_eq!(answer(&Ask::Why(vec![question; MOST]), &compiler()).flows.len(), MOST);
}
