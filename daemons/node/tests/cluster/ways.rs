//! How packets get to other nodes, and out of the cluster.

use std::net::SocketAddr;

use cni_lab::Place as _;
use cni_lab::testing::ask;
use serde_json::Value;

use crate::lab::{Cluster, HUB, PORT, wait};
use crate::member::Running;

fn all_pairs(pods: &[Running<'_>]) {
    for from in pods {
        pods.iter().filter(|to| to.pod.name() != from.pod.name()).for_each(|to| from.reaches(to));
    }
}

/// The pod's address as the hub sees it, in each family.
fn seen_by_hub(pod: &Running<'_>) -> [String; 2] {
    HUB[0].map(|address| {
        let to = SocketAddr::new(address.parse().unwrap(), PORT);
        let seen = wait("an answer of the hub", || ask(&pod.pod, "tcp", to), Result::is_ok).unwrap();
        seen.strip_prefix("hub ").unwrap().to_owned()
    })
}

#[test]
fn routes_on_one_link_and_vxlan_through_a_router() {
    let cluster = Cluster::started("");
    let pods = [cluster.a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three"), cluster.a.pod("four")];
    all_pairs(&pods);
    // The nodes' own processes reach pods of all nodes.
    for (member, pod) in [(&cluster.a, &pods[1]), (&cluster.a, &pods[2]), (&cluster.c, &pods[0])] {
        for address in &pod.addresses {
            let to = SocketAddr::new(*address, PORT);
            wait("an answer", || ask(&member.node, "tcp", to), Result::is_ok).unwrap();
        }
    }
    // The pods' MTU is that of the way: the largest packet arrives without fragments.
    for address in &pods[2].addresses {
        let mtu = cluster.a.sh("ip -j link show ferrule.vxlan");
        let mtu = serde_json::from_str::<Value>(&mtu).unwrap()[0]["mtu"].as_u64().unwrap();
        let size = mtu - if address.is_ipv4() { 28 } else { 48 };
        pods[0].pod.sh(&format!("ping -c 1 -W 30 -M do -s {size} {address}")).unwrap();
    }
    // Outside of the cluster the pods have the node's address.
    assert_eq!(seen_by_hub(&pods[0]), cluster.a.addresses());
    assert_eq!(seen_by_hub(&pods[2]), cluster.c.addresses());
    pods.into_iter().for_each(Running::end);
}

#[test]
fn vxlan_to_all_and_no_masquerade_where_it_is_excluded() {
    let mut cluster = Cluster::new();
    for member in cluster.members_mut() {
        member.start(
            "--mode vxlan --main ptp --masquerade ipv6 --masquerade-exclude 198.51.100.0/24,2001:db8::/64",
        );
    }
    let cluster = cluster;
    for member in cluster.members() {
        let inner =
            |cidr: &String| format!("{cidr} via {} dev ferrule.vxlan", cidr.split('/').next().unwrap());
        let others = cluster.members().into_iter().filter(|other| other.name != member.name);
        let expected: Vec<String> =
            others.flat_map(|other| other.pod_cidrs().each_ref().map(inner)).collect();
        member.has_routes(&expected);
        member.until("a conflist", || member.conflist().is_some());
    }
    let pods = [cluster.a.pod("one"), cluster.b.pod("two"), cluster.c.pod("three")];
    all_pairs(&pods);
    // The hub needs ways back to the pods that it sees.
    for (cidr, via) in cluster.a.pod_cidrs().iter().zip(cluster.a.addresses()) {
        cluster.hub.sh(&format!("ip route add {cidr} via {via}")).unwrap();
    }
    let own = pods[0].addresses.iter().map(ToString::to_string).collect::<Vec<_>>();
    assert_eq!(seen_by_hub(&pods[0]).to_vec(), own, "one family is off, the other one excluded");
    // The other network of the hub is not excluded in IPv6.
    let to = SocketAddr::new(HUB[1][1].parse().unwrap(), PORT);
    let [_, address] = cluster.a.addresses();
    assert_eq!(ask(&pods[0].pod, "tcp", to), Ok(format!("hub {address}")));
}

#[test]
fn routes_only() {
    let mut cluster = Cluster::new();
    cluster.a.start("--mode routes");
    cluster.b.start("--mode routes");
    let Cluster { a, b, .. } = &cluster;
    a.has_routes(&a.ways_to(b));
    // The node that no route reaches is refused; the others get their conflist nevertheless.
    a.until("a conflist", || a.conflist().is_some());
    b.until("a conflist", || b.conflist().is_some());
    wait("an Event about c", || cluster.warnings("c"), |events| !events.is_empty());
    assert!(!a.lines("c").is_empty(), "{}", a.log());
    let (one, two) = (a.pod("one"), b.pod("two"));
    one.reaches(&two);
}
