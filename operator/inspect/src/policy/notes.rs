//! What this node does not know of a flow, and what to ask on another node. Pure, but for [`source_to`].

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use ferrule_policy_kit::ask::{Flow, Pod, Question};

use super::places::{Place, Where};
use super::services::protocol_name;

/// A flow, and how it was asked for.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// The flow, after the translation of a Service's address.
    pub question: Question,
    /// The address of a Service was asked.
    pub is_service: bool,
    /// The address with which this node itself sends there.
    pub source: Option<IpAddr>,
    /// The address with which the node that has the source sends here, if it is another one.
    pub inner: Option<IpAddr>,
}

/// The address that the kernel chooses for packets of this node to an address. Sends nothing.
pub fn source_to(to: IpAddr) -> Option<IpAddr> {
    let any = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0)).ok()?;
    // Any port: nothing is sent.
    socket.connect(SocketAddr::new(to, 9)).ok()?;
    socket.local_addr().ok().map(|address| address.ip())
}

/// The notes of a flow.
pub fn notes(asked: &Asked, [from, to]: &[Place; 2], api: Option<&Flow>) -> Vec<String> {
    let Asked { question: Question { from: asked_source, .. }, is_service, source, inner } = asked;
    let mut notes = Vec::new();
    let has_pod = |of: &dyn Fn(&Flow) -> bool| api.is_some_and(of);
    let is_pod_elsewhere = match &to.of {
        Where::OtherNode(_) => true,
        Where::Outside => has_pod(&|flow| !flow.ingress.pods.is_empty()),
        _ => false,
    };
    let is_stranger = from.of == Where::Outside && !has_pod(&|flow| !flow.egress.pods.is_empty());
    let other = source.filter(|source| source != asked_source);
    match (&from.of, other) {
        (Where::ThisNode, Some(source)) if is_pod_elsewhere => notes.push(format!(
            "by this node's routes it leaves with the source {source}, which the other end sees and an ipBlock has to name. Ask there: {}",
            again(source, asked)
        )),
        (_, Some(source)) if is_stranger && is_pod_elsewhere && *is_service => notes.push(format!(
            "unless the Service has externalTrafficPolicy Local, it leaves this node with the source {source}, which the other end sees. Ask there: {}",
            again(source, asked)
        )),
        // Policies of this node are asked before the translation of the source.
        _ if is_stranger && !is_service && to.of != Where::Outside => notes.push("what comes through a node port or a load balancer may have a node's address as its source: ask for that one, too".to_owned()),
        _ => {}
    }
    if let (Where::Node(node), Some(inner), Where::Pod(_) | Where::Nobody) = (&from.of, inner, &to.of) {
        notes.push(format!(
            "node {node:?} sends to pods of this node with the source {inner}, not with this one. Ask for that: {}",
            again(*inner, asked)
        ));
    }
    if to.of == Where::Outside && !is_pod_elsewhere && from.of != Where::Outside {
        notes.push("if the other end is a Service's address: no rule of kube-proxy on this node has it with this port".to_owned());
    }
    notes
}

/// The question for the other node.
fn again(source: IpAddr, Asked { question: Question { to, protocol, port, .. }, .. }: &Asked) -> String {
    let port = match port {
        0 => String::new(),
        port => format!(" {port}/{}", protocol_name(*protocol)),
    };
    format!("ferrule policy why {source} {to}{port}")
}

/// Of a pod of this node that no policy is for. `is_in_host`: it has an address of the node.
pub fn no_part(name: &str, is_in_host: bool) -> String {
    match is_in_host {
        true => {
            format!("{name} uses the node's network: no policy is for it, and only an ipBlock matches it")
        }
        false => format!("{name} has ended: no policy is for it, and nothing passes it"),
    }
}

/// What the API has of a pod through which the kernel lets nothing pass any more; `None` if it runs.
pub fn ended(name: &str, known: Option<&Pod>) -> Option<String> {
    match known {
        None => {
            Some(format!("the API has no pod {name} any more, and something of it still runs on this node"))
        }
        Some(pod) if !pod.has_part => {
            Some(format!("{name} has ended (Succeeded or Failed), and its link is still on this node"))
        }
        Some(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_question_for_the_other_node_has_the_source_that_arrives() {
        let address = |text: &str| text.parse::<IpAddr>().unwrap();
        let place = |of| Place { of, link: None };
        let of = |from: Where, to: Where, is_service, source: &str| {
            let [from_address, to_address] = ["198.51.100.3", "10.244.1.6"].map(address);
            let question = Question { from: from_address, to: to_address, protocol: 6, port: 80 };
            let inner = (from == Where::Node("c".into())).then(|| address("10.244.3.0"));
            let asked = Asked { question, is_service, source: Some(address(source)), inner };
            notes(&asked, &[place(from), place(to)], None).join("\n")
        };
        let far = || Where::OtherNode("a".into());
        let ask = "Ask there: ferrule policy why 10.244.3.0 10.244.1.6 80/tcp";
        let agent = of(Where::ThisNode, far(), false, "10.244.3.0");
        assert!(agent.contains("leaves with the source 10.244.3.0") && agent.ends_with(ask), "{agent}");
        assert_eq!(of(Where::ThisNode, far(), false, "198.51.100.3"), "");
        assert_eq!(of(Where::ThisNode, Where::Pod("shop/web".into()), false, "10.244.3.0"), "");
        let port = of(Where::Outside, far(), true, "10.244.3.0");
        assert!(port.contains("externalTrafficPolicy Local") && port.ends_with(ask), "{port}");
        assert_eq!(of(Where::Outside, Where::Pod("shop/web".into()), true, "10.244.3.0"), "");
        let direct = of(Where::Outside, Where::Pod("shop/web".into()), false, "10.244.3.0");
        assert!(direct.contains("may have a node's address as its source"), "{direct}");
        assert_eq!(of(Where::Node("b".into()), Where::Pod("shop/web".into()), false, "10.244.3.0"), "");
        let of_node = of(Where::Node("c".into()), Where::Pod("shop/web".into()), false, "10.244.1.0");
        assert!(
            of_node.contains("node \"c\" sends to pods of this node with the source 10.244.3.0"),
            "{of_node}"
        );
        let away = of(Where::Pod("shop/web".into()), Where::Outside, false, "10.244.3.0");
        assert!(away.contains("if the other end is a Service's address"), "{away}");
    }

    #[test]
    fn an_ended_pod_is_told_from_one_in_the_nodes_network() {
        assert!(no_part("shop/agent", true).contains("uses the node's network"));
        assert!(no_part("shop/job", false).contains("has ended"));
        let pod = |has_part| Pod { has_part, ..Pod::default() };
        assert!(ended("shop/job", None).unwrap().contains("the API has no pod shop/job"));
        assert!(ended("shop/job", Some(&pod(false))).unwrap().contains("Succeeded or Failed"));
        assert_eq!(ended("shop/job", Some(&pod(true))), None);
    }

    #[test]
    fn the_kernel_chooses_the_source() {
        for ip in ["127.0.0.1", "::1"].map(|text| text.parse::<IpAddr>().unwrap()) {
            assert_eq!(source_to(ip), Some(ip));
        }
        assert_eq!(source_to(Ipv4Addr::BROADCAST.into()), None);
    }
}
