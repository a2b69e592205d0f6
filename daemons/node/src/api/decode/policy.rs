//! NetworkPolicies. A field that is not known may say anything: the part that has it allows nothing.

use ferrule_node_policy::model;
use serde::Deserialize;

use super::selector::{Selector, Unknown, selector};
use super::{Metadata, Read, bounded};
use crate::policy::objects::{Kind, Told};

#[derive(Debug, Deserialize)]
pub(in super::super) struct Policy {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
}

#[derive(Debug, Default, Deserialize)]
struct Spec {
    #[serde(rename = "podSelector")]
    pods: Option<Selector>,
    #[serde(rename = "policyTypes")]
    types: Option<Vec<String>>,
    ingress: Option<Vec<Ingress>>,
    egress: Option<Vec<Egress>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Ingress {
    from: Option<Vec<Peer>>,
    ports: Option<Vec<Port>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Egress {
    to: Option<Vec<Peer>>,
    ports: Option<Vec<Port>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Peer {
    #[serde(rename = "podSelector")]
    pods: Option<Selector>,
    #[serde(rename = "namespaceSelector")]
    namespaces: Option<Selector>,
    #[serde(rename = "ipBlock")]
    block: Option<Block>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Block {
    cidr: String,
    except: Option<Vec<String>>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
struct Port {
    protocol: Option<String>,
    port: Option<PortValue>,
    #[serde(rename = "endPort")]
    end: Option<i32>,
    #[serde(flatten)]
    unknown: Unknown,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum PortValue {
    Number(i32),
    Name(String),
}

impl Read for Policy {
    const KIND: Kind = Kind::Policies;
    const PATH: &'static str = "/apis/networking.k8s.io/v1/networkpolicies";
    const COST: u32 = 1;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn told(self, _: &str) -> Result<Told, String> {
        let Policy { metadata, spec } = self;
        let mut parts = 0;
        let ingress = spec.ingress.into_iter().flatten();
        let ingress = ingress.map(|rule| rule_of(rule.from, rule.ports, rule.unknown, &mut parts)).collect();
        let egress = spec.egress.into_iter().flatten();
        let egress = egress.map(|rule| rule_of(rule.to, rule.ports, rule.unknown, &mut parts)).collect();
        let mut unread = spec.unknown.why();
        let pods = selector(spec.pods.unwrap_or_default(), &mut unread, &mut parts);
        bounded(parts)?;
        Ok(Told::Policy(model::NetworkPolicy {
            namespace: metadata.namespace,
            name: metadata.name,
            pods,
            types: spec.types.unwrap_or_default(),
            ingress,
            egress,
            unread,
        }))
    }
}

/// A rule with a field that is not known has one peer, which allows nothing.
fn rule_of(
    peers: Option<Vec<Peer>>,
    ports: Option<Vec<Port>>,
    unknown: Unknown,
    parts: &mut usize,
) -> model::Rule {
    *parts += 1;
    let ports: Vec<_> = ports.into_iter().flatten().map(port).collect();
    *parts += ports.len();
    if let Some(why) = unknown.why() {
        return model::Rule {
            peers: vec![model::Peer { unread: Some(why), ..model::Peer::default() }],
            ports,
        };
    }
    model::Rule { peers: peers.into_iter().flatten().map(|from| peer(from, parts)).collect(), ports }
}

fn peer(from: Peer, parts: &mut usize) -> model::Peer {
    *parts += 1;
    let mut unread = from.unknown.why();
    let mut select = |from: Option<Selector>| from.map(|from| selector(from, &mut unread, parts));
    let (pods, namespaces) = (select(from.pods), select(from.namespaces));
    let block = from.block.map(|block| {
        unread = unread.take().or(block.unknown.why());
        let except = block.except.unwrap_or_default();
        *parts += except.len();
        model::IpBlock { cidr: block.cidr, except }
    });
    model::Peer { pods, namespaces, block, unread }
}

fn port(from: Port) -> model::Port {
    let port = from.port.map(|port| match port {
        PortValue::Number(number) => model::PortValue::Number(number),
        PortValue::Name(name) => model::PortValue::Name(name),
    });
    model::Port { protocol: from.protocol, port, end_port: from.end, unread: from.unknown.why() }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde_json::{Value, json};

    use super::super::MAX_PARTS;
    use super::*;

    fn told(spec: Value) -> model::NetworkPolicy {
        let object = json!({"metadata": {"name": "p", "namespace": "s"}, "spec": spec});
        match serde_json::from_value::<Policy>(object).unwrap().told("n1") {
            Ok(Told::Policy(policy)) => policy,
            other => panic!("{other:?}"),
        }
    }

    fn select(key: &str, value: &str) -> model::LabelSelector {
        let labels = [(key.to_owned(), value.to_owned())].into();
        model::LabelSelector { labels, ..model::LabelSelector::default() }
    }

    #[test]
    fn a_policy_with_everything() {
        let policy = told(json!({
            "podSelector": {"matchLabels": {"app": "db"}},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [{"from": [{"podSelector": {"matchLabels": {"a": "b"}}, "namespaceSelector": {}},
                {"ipBlock": {"cidr": "10.0.0.0/8", "except": ["10.1.0.0/16"]}}], "ports": [{"protocol": "TCP", "port": 80, "endPort": 90}]}],
            "egress": [{}, {"to": [{"namespaceSelector": {"matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]},
                {"key": "l", "operator": "Exists"}]}}], "ports": [{"port": "dns", "protocol": "UDP"}, {}]}],
        }));
        let expression = |key: &str, operator: &str, values: &[&str]| model::Expression {
            key: key.into(),
            operator: operator.into(),
            values: values.iter().map(|value| value.to_string()).collect(),
        };
        let of_k = model::LabelSelector {
            labels: BTreeMap::new(),
            expressions: vec![expression("k", "In", &["v"]), expression("l", "Exists", &[])],
        };
        let block = model::IpBlock { cidr: "10.0.0.0/8".into(), except: vec!["10.1.0.0/16".into()] };
        let none = model::Peer::default;
        let port = |protocol: Option<&str>, port, end_port| model::Port {
            protocol: protocol.map(str::to_owned),
            port,
            end_port,
            unread: None,
        };
        let expected = model::NetworkPolicy {
            namespace: "s".into(),
            name: "p".into(),
            pods: select("app", "db"),
            types: vec!["Ingress".into(), "Egress".into()],
            ingress: vec![model::Rule {
                peers: vec![
                    model::Peer {
                        pods: Some(select("a", "b")),
                        namespaces: Some(Default::default()),
                        ..none()
                    },
                    model::Peer { block: Some(block), ..none() },
                ],
                ports: vec![port(Some("TCP"), Some(model::PortValue::Number(80)), Some(90))],
            }],
            egress: vec![
                model::Rule::default(),
                model::Rule {
                    peers: vec![model::Peer { namespaces: Some(of_k), ..none() }],
                    ports: vec![
                        port(Some("UDP"), Some(model::PortValue::Name("dns".into())), None),
                        port(None, None, None),
                    ],
                },
            ],
            unread: None,
        };
        assert_eq!(policy, expected);
        let empty = model::NetworkPolicy { namespace: "s".into(), name: "p".into(), ..Default::default() };
        for spec in [
            json!({}),
            json!({"podSelector": {}, "ingress": null}),
            json!({"ingress": [], "policyTypes": []}),
        ] {
            assert_eq!(told(spec), empty);
        }
    }

    #[test]
    fn a_part_with_an_unknown_field_allows_nothing() {
        let why = Some("the field \"x\" is not known".to_owned());
        for spec in [
            json!({"podSelector": {"matchLabels": {"a": "b"}}, "x": 1}),
            json!({"podSelector": {"x": {}}}),
            json!({"podSelector": {"matchExpressions": [{"key": "k", "operator": "Exists", "x": []}]}}),
        ] {
            assert_eq!(told(spec.clone()).unread, why, "{spec}");
        }
        for rule in [
            json!({"x": null}),
            json!({"x": 1, "from": [{"podSelector": {}}]}),
            json!({"from": [{"x": {"y": []}}]}),
            json!({"from": [{"podSelector": {"x": 1}}]}),
            json!({"from": [{"namespaceSelector": {"x": 1}, "podSelector": {}}]}),
            json!({"from": [{"ipBlock": {"cidr": "10.0.0.0/8", "x": 1}}]}),
        ] {
            let policy = told(json!({"ingress": [rule.clone(), {}]}));
            assert_eq!(policy.unread, None, "{rule}");
            assert_eq!(
                (policy.ingress[0].peers.len(), &policy.ingress[0].peers[0].unread),
                (1, &why),
                "{rule}"
            );
            assert_eq!(policy.ingress[1], model::Rule::default());
        }
        let policy = told(json!({"egress": [{"ports": [{"port": 80, "x": 1}, {"port": 81}]}]}));
        let ports = policy.egress[0].ports.iter().map(|port| port.unread.clone());
        assert_eq!(ports.collect::<Vec<_>>(), [why, None]);
    }

    #[test]
    fn a_wrong_type_is_an_error() {
        for spec in [
            json!({"podSelector": []}),
            json!({"ingress": {}}),
            json!({"ingress": [{"from": [{"podSelector": {"matchLabels": {"a": 1}}}]}]}),
            json!({"ingress": [{"ports": [{"port": 3_000_000_000_u32}]}]}),
            json!({"ingress": [{"from": [{"ipBlock": {}}]}]}),
        ] {
            let object = json!({"metadata": {"name": "p", "namespace": "s"}, "spec": spec});
            assert!(serde_json::from_value::<Policy>(object).is_err(), "{spec}");
        }
    }

    #[test]
    fn parts_are_bounded() {
        let values: Vec<_> = (0..MAX_PARTS).map(|number| number.to_string()).collect();
        let expression = json!({"key": "k", "operator": "In", "values": values});
        let object = json!({"metadata": {}, "spec": {"podSelector": {"matchExpressions": [expression]}}});
        let error = serde_json::from_value::<Policy>(object).unwrap().told("n1").unwrap_err();
        assert_eq!(error, "it has 50001 parts, 50000 are the most");
    }
}
