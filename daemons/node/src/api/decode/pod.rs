//! Pods.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ferrule_node_policy::model::{self, Addresses, NamedPort, Protocol};
use serde::Deserialize;

use super::{Metadata, Read, labels};
use crate::policy::objects::{Kind, Told};

/// The most ports with a name of one pod. Those beyond are no ports.
const MAX_PORTS: usize = 256;

#[derive(Debug, Deserialize)]
pub(in super::super) struct Pod {
    metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: Status,
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Spec {
    #[serde(default)]
    node_name: String,
    #[serde(default)]
    host_network: bool,
    containers: Option<Vec<Container>>,
    init_containers: Option<Vec<Container>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Container {
    restart_policy: Option<String>,
    ports: Option<Vec<Port>>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Port {
    name: Option<String>,
    protocol: Option<String>,
    #[serde(default)]
    container_port: u32,
}

#[derive(Debug, Default, Deserialize)]
struct Status {
    #[serde(default)]
    phase: String,
    #[serde(rename = "podIP")]
    ip: Option<String>,
    #[serde(rename = "podIPs")]
    ips: Option<Vec<PodIp>>,
}

#[derive(Debug, Deserialize)]
struct PodIp {
    ip: Option<String>,
}

impl Read for Pod {
    const KIND: Kind = Kind::Pods;
    const PATH: &'static str = "/api/v1/pods";
    const COST: u32 = 10;

    fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    fn told(self, node: &str) -> Result<Told, String> {
        let Pod { metadata, spec, status } = self;
        // An init container runs beside the others only if it restarts always.
        let lasting = |container: &Container| container.restart_policy.as_deref() == Some("Always");
        let init = spec.init_containers.into_iter().flatten().filter(lasting);
        let containers = spec.containers.into_iter().flatten().chain(init);
        let ports = containers.flat_map(|container| container.ports.into_iter().flatten());
        // With too many it stays a pod with an address, so that rules that deny its namespace hold.
        let (labels, unread) = match labels(metadata.labels) {
            Ok(labels) => (labels, None),
            Err(why) => (BTreeMap::new(), Some(why)),
        };
        Ok(Told::Pod(model::Pod {
            labels,
            unread,
            ports: ports.filter_map(named).take(MAX_PORTS).collect(),
            addresses: addresses(&status),
            ended: matches!(status.phase.as_str(), "Succeeded" | "Failed"),
            local: spec.node_name == node,
            host_network: spec.host_network,
            mirror_of: metadata.annotations.and_then(|annotations| annotations.mirror_of),
            namespace: metadata.namespace,
            name: metadata.name,
            uid: metadata.uid,
        }))
    }
}

fn named(port: Port) -> Option<NamedPort> {
    let protocol = Protocol::named(port.protocol.as_deref().unwrap_or("TCP"))?;
    let number = u16::try_from(port.container_port).ok().filter(|number| *number > 0)?;
    Some(NamedPort { name: port.name.filter(|name| !name.is_empty())?, protocol, port: number })
}

/// The first one of each family.
fn addresses(status: &Status) -> Addresses {
    let all = status.ips.iter().flatten().filter_map(|ip| ip.ip.as_deref()).chain(status.ip.as_deref());
    let mut found = Addresses::default();
    for address in all.filter_map(|text| text.parse::<IpAddr>().ok()) {
        match address {
            IpAddr::V4(address) => drop(found.v4.get_or_insert(address)),
            IpAddr::V6(address) => drop(found.v6.get_or_insert(address)),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(json: &str) -> Result<model::Pod, String> {
        match serde_json::from_str::<Pod>(json).unwrap().told("n1")? {
            Told::Pod(pod) => Ok(pod),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_pod_as_kubernetes_writes_it() {
        let pod = told(
            r#"{"metadata":{"name":"web","namespace":"shop","uid":"u1","labels":{"app":"web"},
            "annotations":{"kubernetes.io/config.mirror":"m1","other":"x"},"managedFields":[{"x":1}]},
            "spec":{"nodeName":"n1","containers":[{"name":"c","image":"i","ports":[{"containerPort":8080,"name":"http","protocol":"TCP"},
            {"containerPort":9},{"containerPort":70000,"name":"x"},{"containerPort":53,"name":"dns","protocol":"UDP"}]},{"name":"d"}],
            "initContainers":[{"ports":[{"containerPort":1,"name":"once"}]},
            {"restartPolicy":"Always","ports":[{"containerPort":2,"name":"always"}]}]},
            "status":{"phase":"Running","podIP":"10.0.0.7","podIPs":[{"ip":"10.0.0.7"},{"ip":"fd00::7"},{"ip":"10.0.0.9"}]}}"#,
        )
        .unwrap();
        let port = |name: &str, protocol, port| NamedPort { name: name.into(), protocol, port };
        assert_eq!(
            pod,
            model::Pod {
                namespace: "shop".into(),
                name: "web".into(),
                uid: "u1".into(),
                mirror_of: Some("m1".into()),
                labels: [("app".to_owned(), "web".to_owned())].into(),
                addresses: Addresses { v4: "10.0.0.7".parse().ok(), v6: "fd00::7".parse().ok() },
                ports: vec![
                    port("http", Protocol::Tcp, 8080),
                    port("dns", Protocol::Udp, 53),
                    port("always", Protocol::Tcp, 2)
                ],
                local: true,
                ..model::Pod::default()
            }
        );
    }

    #[test]
    fn pods_that_have_no_part() {
        let pod = told(r#"{"metadata":{"name":"a","namespace":"b","labels":null},"spec":{"nodeName":"n2","hostNetwork":true},
            "status":{"phase":"Failed","podIP":"x"}}"#).unwrap();
        assert!(!pod.local && pod.host_network && pod.ended && pod.addresses == Addresses::default());
        // Not scheduled yet.
        let pod = told(r#"{"metadata":{"name":"a","namespace":"b"},"spec":{},"status":{"phase":"Pending"}}"#)
            .unwrap();
        assert!(!pod.local && !pod.host_network && !pod.ended);
    }

    #[test]
    fn too_many_labels_and_ports() {
        let labels: Vec<_> = (0..500).map(|number| format!("\"{number:040}\":\"{number:040}\"")).collect();
        let text = format!(r#"{{"metadata":{{"name":"a","labels":{{{}}}}}}}"#, labels.join(","));
        let unread = Some("its labels have 40000 bytes".to_owned());
        let closed = model::Pod { name: "a".into(), unread, ..model::Pod::default() };
        assert_eq!(told(&text), Ok(closed));
        let ports: Vec<_> =
            (1..=500).map(|number| format!(r#"{{"name":"p{number}","containerPort":{number}}}"#)).collect();
        let text = format!(
            r#"{{"metadata":{{"name":"a"}},"spec":{{"containers":[{{"ports":[{}]}}]}}}}"#,
            ports.join(",")
        );
        assert_eq!(told(&text).unwrap().ports.len(), MAX_PORTS);
    }
}
