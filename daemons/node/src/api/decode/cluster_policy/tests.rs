use ferrule_node_policy::model::{Expression, LabelSelector};
use serde_json::json;

use super::super::MAX_PARTS;
use super::*;

fn read(spec: Value) -> Result<ClusterNetworkPolicy, String> {
    let object = json!({"metadata": {"name": "p"}, "spec": spec});
    match serde_json::from_value::<ClusterPolicy>(object).map_err(|error| error.to_string())?.told("n1")? {
        Told::ClusterPolicy(policy) => Ok(policy),
        other => panic!("{other:?}"),
    }
}

/// The one ingress rule of a policy for all pods.
fn ingress(rule: Value) -> ClusterRule {
    let spec = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": [rule]});
    read(spec).unwrap().ingress.remove(0)
}

fn select(key: &str, value: &str) -> LabelSelector {
    LabelSelector { labels: [(key.to_owned(), value.to_owned())].into(), ..LabelSelector::default() }
}

fn ports_of(protocol: Protocol, first: i32, last: i32) -> ClusterProtocol {
    ClusterProtocol::Ports { protocol, first, last }
}

#[test]
fn a_policy_with_everything() {
    let policy = read(json!({
        "tier": "Baseline", "priority": 7,
        "subject": {"pods": {"namespaceSelector": {"matchLabels": {"team": "a"}}, "podSelector": {"matchLabels": {"app": "db"}}}},
        "ingress": [{"name": "first", "action": "Deny", "from": [{"namespaces": {"matchExpressions": [
            {"key": "team", "operator": "NotIn", "values": ["a"]}]}}, {"pods": {"podSelector": {}}}]}],
        "egress": [{"action": "Pass", "to": [{"networks": ["10.0.0.0/8", "fd00::/8"]}], "protocols": [
            {"tcp": {"destinationPort": {"number": 80}}}, {"udp": {"destinationPort": {"range": {"start": 5, "end": 9}}}},
            {"sctp": {"destinationPort": {"number": 3868}}}, {"destinationNamedPort": "dns"}]}],
    }));
    let not_in = Expression { key: "team".into(), operator: "NotIn".into(), values: vec!["a".into()] };
    let others = LabelSelector { expressions: vec![not_in], ..LabelSelector::default() };
    let all = NamespacedPods::default;
    let expected = ClusterNetworkPolicy {
        name: "p".into(),
        tier: "Baseline".into(),
        priority: 7,
        subject: ClusterSubject::Pods(NamespacedPods {
            namespaces: select("team", "a"),
            pods: select("app", "db"),
        }),
        ingress: vec![ClusterRule {
            name: "first".into(),
            action: "Deny".into(),
            peers: vec![
                ClusterPeer::Pods(NamespacedPods { namespaces: others, ..all() }),
                ClusterPeer::Pods(all()),
            ],
            protocols: Vec::new(),
        }],
        egress: vec![ClusterRule {
            name: String::new(),
            action: "Pass".into(),
            peers: vec![ClusterPeer::Networks(vec!["10.0.0.0/8".into(), "fd00::/8".into()])],
            protocols: vec![
                ports_of(Protocol::Tcp, 80, 80),
                ports_of(Protocol::Udp, 5, 9),
                ports_of(Protocol::Sctp, 3868, 3868),
                ClusterProtocol::Named("dns".into()),
            ],
        }],
    };
    assert_eq!(policy, Ok(expected));
}

#[test]
fn a_peer_or_a_protocol_that_is_not_one_known_field_is_unknown() {
    let field = r#"the field "x" is not known"#;
    for (peer, why) in [
        (json!({}), "it has 0 fields that are known, not one"),
        (json!({"nodes": {}}), "the field \"nodes\" is not known"),
        (json!({"domainNames": ["a.example"]}), "the field \"domainNames\" is not known"),
        (json!({"namespaces": {}, "pods": {"podSelector": {}}}), "it has 2 fields that are known, not one"),
        (json!({"namespaces": {}, "networks": ["10.0.0.0/8"]}), "it has 2 fields that are known, not one"),
        (json!({"namespaces": {"x": 1}}), field),
        (json!({"pods": {"namespaceSelector": {}}}), "it has no podSelector"),
        (json!({"pods": {"podSelector": {}, "x": 1}}), field),
        (
            json!({"pods": {"podSelector": {"matchExpressions": [{"key": "k", "operator": "Exists", "x": 1}]}}}),
            field,
        ),
    ] {
        let rule = ingress(json!({"action": "Accept", "from": [peer, {"namespaces": {}}]}));
        assert_eq!((rule.peers.len(), &rule.peers[0]), (2, &ClusterPeer::Unknown(why.into())), "{peer}");
    }
    let none = "it has 0 fields that are known, not one";
    for (protocol, why) in [
        (json!({}), none),
        (json!({"icmp": {}}), "the field \"icmp\" is not known"),
        (json!({"tcp": {}}), none),
        (json!({"tcp": {"destinationPort": {}}}), none),
        (json!({"tcp": {"destinationPort": {"number": 80}, "x": 1}}), field),
        (json!({"tcp": {"destinationPort": {"number": 80, "x": 1}}}), field),
        (json!({"udp": {"destinationPort": {"range": {"start": 1, "end": 2, "x": 1}}}}), field),
        (
            json!({"udp": {"destinationPort": {"number": 1, "range": {"start": 1, "end": 2}}}}),
            "it has 2 fields that are known, not one",
        ),
        (
            json!({"tcp": {"destinationPort": {"number": 80}}, "destinationNamedPort": "a"}),
            "it has 2 fields that are known, not one",
        ),
        (json!({"destinationNamedPort": ""}), "the name of the port is empty"),
    ] {
        let rule = ingress(json!({"action": "Deny", "from": [{"namespaces": {}}], "protocols": [protocol]}));
        assert_eq!(rule.protocols, [ClusterProtocol::Unknown(why.into())], "{protocol}");
    }
    let rule = ingress(json!({"action": "Deny", "from": [{"namespaces": {}}], "protocols": []}));
    assert_eq!(rule.protocols, [ClusterProtocol::Unknown("the list is empty".into())]);
}

/// The action stays: it says how the rule fails closed.
#[test]
fn a_rule_that_cannot_be_read_has_its_action_and_no_other_rule_suffers() {
    for (rule, why) in [
        (json!({"action": "Accept", "from": [{"namespaces": {}}], "x": 1}), "the field \"x\" is not known"),
        (
            json!({"action": "Accept", "from": [{"namespaces": {}}], "to": []}),
            "the field \"to\" is of the other direction",
        ),
        (json!({"action": "Accept", "from": {}}), "invalid type: map, expected a sequence"),
        (
            json!({"action": "Accept", "from": [{"networks": [1]}]}),
            "invalid type: integer `1`, expected a string",
        ),
    ] {
        let read = ingress(rule.clone());
        assert_eq!(
            (read.action.as_str(), &*read.peers),
            ("Accept", &[ClusterPeer::Unknown(why.into())][..]),
            "{rule}"
        );
    }
    assert_eq!(ingress(json!({"action": 1})).action, "");
    assert_eq!(ingress(json!([])).action, "");
    let long = ingress(json!({"action": "x", "name": "n".repeat(300), "from": "y".repeat(900)}));
    let ClusterPeer::Unknown(why) = &long.peers[0] else { panic!("{long:?}") };
    assert_eq!(why.len(), MAX_ERROR);
    let rules = json!([{"action": "Deny", "from": 1}, {"action": "Accept", "from": [{"namespaces": {}}]}]);
    let spec = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {}}, "ingress": rules});
    let rules = read(spec).unwrap().ingress;
    assert_eq!(rules[1].peers, [ClusterPeer::Pods(NamespacedPods::default())]);
}

#[test]
fn a_policy_that_is_not_understood_denies_everything_to_its_subject() {
    let accepts = json!({"tier": "Admin", "priority": 1, "subject": {"namespaces": {"matchLabels": {"a": "b"}}},
        "ingress": [{"action": "Accept", "from": [{"namespaces": {}}]}]});
    let with = |change: &dyn Fn(&mut Value)| {
        let mut spec = accepts.clone();
        change(&mut spec);
        read(spec).unwrap()
    };
    let of_a =
        ClusterSubject::Pods(NamespacedPods { namespaces: select("a", "b"), ..NamespacedPods::default() });
    for (policy, why) in [
        (with(&|spec| spec["x"] = json!(1)), "the field \"x\" is not known"),
        (with(&|spec| spec["priority"] = Value::Null), "it has no priority"),
    ] {
        let refused = |rules: &[ClusterRule]| {
            assert_eq!(rules.len(), 1);
            assert_eq!(
                (&*rules[0].action, &rules[0].peers[..]),
                ("Deny", &[ClusterPeer::Unknown(why.into())][..])
            );
        };
        refused(&policy.ingress);
        refused(&policy.egress);
        assert_eq!((&*policy.tier, &policy.subject), ("Admin", &of_a));
    }
    for (subject, why) in [
        (json!({}), "it has 0 fields that are known, not one"),
        (json!({"namespaces": {}, "pods": {"podSelector": {}}}), "it has 2 fields that are known, not one"),
        (json!({"pods": {}}), "it has no podSelector"),
        (json!({"serviceAccounts": {}}), "the field \"serviceAccounts\" is not known"),
    ] {
        let policy = with(&|spec| spec["subject"] = subject.clone());
        assert_eq!(policy.subject, ClusterSubject::Unknown(why.into()), "{subject}");
    }
    // Such an object is told as one that cannot be read.
    for (key, value) in
        [("tier", json!(1)), ("priority", json!("1")), ("subject", json!([])), ("ingress", json!({}))]
    {
        let mut spec = accepts.clone();
        spec[key] = value;
        read(spec).unwrap_err();
    }
    let networks: Vec<_> = (0..MAX_PARTS).map(|number| number.to_string()).collect();
    let wide = json!({"priority": 1, "egress": [{"action": "Deny", "to": [{"networks": networks}]}]});
    assert_eq!(read(wide).unwrap_err(), "it has 50002 parts, 50000 are the most");
}

#[test]
fn the_examples_are_understood() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/policies/cluster-network-policies.yaml");
    let text = std::fs::read_to_string(path).unwrap();
    let mut compiler = ferrule_node_policy::Compiler::default();
    for object in yaml_serde::Deserializer::from_str(&text) {
        let object = Value::deserialize(object).unwrap();
        assert_eq!(object["apiVersion"], "policy.networking.k8s.io/v1alpha2");
        compiler.set_cluster_policy(read(object["spec"].clone()).unwrap());
        assert_eq!((compiler.cluster_policies(), compiler.faults().next()), (1, None), "{object}");
    }
}
