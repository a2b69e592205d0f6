//! Denied connections, and what `ferrule policy why` says of each: docs/denied.md has the answers.

use std::net::SocketAddr;

use cni_lab::testing::{ask, silent};
use cni_lab::{Place, bin_dir, eventually};
use serde_json::{Value, json};

use super::{POLICY, until, wait};
use crate::lab::{Cluster, HUB, LIMIT};

/// The address of a Service, and its rules in kube-proxy's mode nftables.
const SERVICE: &str = "10.96.0.20";
const RULES: &str = "table ip kube-proxy {
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict;
        elements = { 10.96.0.20 . tcp . 8000 : goto service-XQ3KZ2C7-shop/web/tcp/http } }
    chain endpoint-5OVB5Q7E-shop/web/tcp/http__WEB/80 { meta l4proto tcp dnat to WEB:80; }
    chain service-XQ3KZ2C7-shop/web/tcp/http { numgen random mod 1 vmap { 0 : goto endpoint-5OVB5Q7E-shop/web/tcp/http__WEB/80 }; }
    chain services { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
}";

/// The same for IPv6.
const SERVICE6: &str = "fd00:96::20";
const RULES6: &str = "table ip6 kube-proxy {
    map service-ips { type ipv6_addr . inet_proto . inet_service : verdict;
        elements = { fd00:96::20 . tcp . 8000 : goto service-XQ3KZ2C7-shop/web/tcp/http } }
    chain endpoint-5OVB5Q7E-shop/web/tcp/http__web6/80 { meta l4proto tcp dnat to [WEB]:80; }
    chain service-XQ3KZ2C7-shop/web/tcp/http { numgen random mod 1 vmap { 0 : goto endpoint-5OVB5Q7E-shop/web/tcp/http__web6/80 }; }
    chain services { type nat hook prerouting priority dstnat; ip6 daddr . meta l4proto . th dport vmap @service-ips; }
}";

/// A case: what an operator hears, the policy, the question, and what the answer must have.
struct Case<'c> {
    title: &'static str,
    spec: Value,
    from: &'c str,
    to: String,
    port: &'static str,
    has: &'static [&'static str],
}

fn pods(app: &str) -> Value {
    json!([{"podSelector": {"matchLabels": {"app": app}}}])
}

fn for_web(ingress: &Value) -> Value {
    json!({"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"], "ingress": ingress})
}

#[test]
#[ignore = "a transcript: give --nocapture"]
fn ten_denied_connections() {
    let mut cluster = Cluster::new();
    ["shop", "tools"].iter().for_each(|name| cluster.namespace(name, &json!({"name": name})));
    for member in cluster.members_mut() {
        member.start("--policy on --main ptp");
    }
    cluster.settled();
    let Cluster { a, b, hub, .. } = &cluster;
    let (web, client) = (cluster.start(a, "shop", "web"), cluster.start(a, "shop", "client"));
    let (tool, far) = (cluster.start(a, "tools", "tool"), cluster.start(b, "shop", "far"));
    for (namespace, name, running) in
        [("shop", "web", &web), ("shop", "client", &client), ("tools", "tool", &tool), ("shop", "far", &far)]
    {
        cluster.report(namespace, name, running);
    }
    until(a, 0, 0);
    let web4 = web.addresses[0].to_string();
    a.node.sh(&format!("nft '{}'", RULES.replace("WEB", &web4))).unwrap();
    let program = bin_dir().unwrap().join("ferrule").display().to_string();
    let why = |words: &str| a.node.sh(&format!("{program} policy why {words} 2>&1 || true")).unwrap();
    let to_web = || "shop/web".to_owned();
    let cases = [
        Case {
            title: "The label is another one",
            spec: for_web(&json!([{"from": pods("frontend"), "ports": [{"port": 80}]}])),
            from: "shop/client",
            to: to_web(),
            port: "80",
            has: &["ingress: denied", "NetworkPolicy shop/web: ingress[0]: the port matches, no peer does"],
        },
        Case {
            title: "The port is another one",
            spec: for_web(&json!([{"from": pods("client"), "ports": [{"port": 8080}]}])),
            from: "shop/client",
            to: to_web(),
            port: "80",
            has: &["NetworkPolicy shop/web: ingress[0]: a peer matches, no port does"],
        },
        Case {
            title: "UDP is not TCP",
            spec: for_web(&json!([{"ports": [{"port": 80}]}])),
            from: "shop/client",
            to: to_web(),
            port: "80/udp",
            has: &["UDP port 80", "a peer matches, no port does"],
        },
        Case {
            title: "No container calls its port so",
            spec: for_web(&json!([{"from": pods("client"), "ports": [{"port": "htpp"}]}])),
            from: "shop/client",
            to: to_web(),
            port: "80",
            has: &["has a port with the name \"htpp\""],
        },
        Case {
            title: "Everything is denied, and nothing allowed",
            spec: json!({"podSelector": {}, "policyTypes": ["Ingress"]}),
            from: "shop/client",
            to: to_web(),
            port: "80",
            has: &["it has no entry in ingress: it allows nothing"],
        },
        Case {
            title: "A podSelector is for the policy's own namespace",
            spec: for_web(&json!([{"from": pods("tool")}])),
            from: "tools/tool",
            to: to_web(),
            port: "80",
            has: &["from tools/tool", "and tools/tool is of another one"],
        },
        Case {
            title: "The client's own egress policy",
            spec: json!({"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"],
                "egress": [{"to": pods("db"), "ports": [{"port": 5432}]}]}),
            from: "shop/client",
            to: to_web(),
            port: "80",
            has: &[
                "egress: denied",
                "egress[0]: neither a peer nor a port matches",
                "ingress: allowed: no policy isolates it",
            ],
        },
        Case {
            title: "The port of the Service is not that of the pod",
            spec: for_web(&json!([{"from": pods("client"), "ports": [{"port": 8000}]}])),
            from: "shop/client",
            to: SERVICE.to_owned(),
            port: "8000",
            has: &[
                "a Service shop/web/tcp/http",
                "TCP port 80 from shop/client",
                "a peer matches, no port does",
            ],
        },
        Case {
            title: "The block is another one",
            spec: for_web(&json!([{"from": [{"ipBlock": {"cidr": "198.51.100.0/24"}}]}])),
            from: "192.0.2.254",
            to: to_web(),
            port: "80",
            has: &["from 192.0.2.254", "the port matches, no peer does", "a node's address as its source"],
        },
    ];
    for (number, case) in cases.iter().enumerate() {
        cluster.explains(number + 1, case, &why);
        let place: &dyn Fn(&str, SocketAddr) -> bool = match case.from {
            "shop/client" => &|proto, to| silent(&client.pod, proto, to),
            "tools/tool" => &|proto, to| silent(&tool.pod, proto, to),
            _ => &|proto, to| silent(hub, proto, to),
        };
        let ip = if case.to == SERVICE { SERVICE.parse().unwrap() } else { web.addresses[0] };
        let (port, proto) = case.port.split_once('/').unwrap_or((case.port, "tcp"));
        assert!(place(proto, SocketAddr::new(ip, port.parse().unwrap())), "{}: it passes", case.title);
    }
    // A pod of another node: its own node decides. And one that nobody has told the API of.
    let elsewhere = why("shop/client shop/far 80");
    assert!(
        elsewhere.contains("allowed on this node") && elsewhere.contains("ask there, too"),
        "{elsewhere}"
    );
    println!("```\n$ ferrule policy why shop/client shop/far 80\n{elsewhere}```\n");
    let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=ghost;K8S_POD_UID=ghost";
    let (_ghost, addresses) = a.try_pod_with("ghost", args).unwrap();
    until(a, 1, 2);
    assert!(silent(&client.pod, "tcp", SocketAddr::new(addresses[0], 80)));
    let undecided = why("shop/client shop/ghost 80");
    assert!(undecided.contains("nothing passes a pod that is not decided yet"), "{undecided}");
    println!(
        "## 10. A pod that has just started\n\n```\n$ ferrule policy why shop/client shop/ghost 80\n{undecided}```\n"
    );
    let policies = a.node.sh(&format!("{program} inspect policies 2>&1")).unwrap();
    println!("```\n$ ferrule inspect policies\n{policies}```");
    // Without the daemon.
    let (client, web) = (client.pod, web.addresses[0]);
    cluster.a.end("TERM");
    let words = format!("192.0.2.254 {web4} 80");
    let alone = cluster.a.node.sh(&format!("{program} policy why {words} 2>&1 || true")).unwrap();
    assert!(alone.contains("denied") && alone.contains("only the kernel's rules are known"), "{alone}");
    println!("```\n$ ferrule policy why {words}\n{alone}```");
    cluster.a.start("--policy on --main ptp");
    cluster.store.delete(POLICY);
    wait("all may", || ask(&client, "tcp", (web, 80).into()), Result::is_ok).unwrap();
}

/// The same by IPv6, where neighbours have to find each other.
#[test]
#[ignore = "a transcript: give --nocapture"]
fn eight_denied_connections_by_ipv6() {
    let mut cluster = Cluster::new();
    cluster.namespace("shop", &json!({"name": "shop"}));
    for member in cluster.members_mut() {
        member.start("--policy on --main ptp");
    }
    cluster.settled();
    let Cluster { a, c, hub, .. } = &cluster;
    let ports = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let web =
        cluster.start_with(a, "shop", "web", |attachment| attachment.with_capability("portMappings", ports));
    let client = cluster.start(a, "shop", "client");
    cluster.report("shop", "web", &web);
    cluster.report("shop", "client", &client);
    let http = json!([{"name": "http", "containerPort": 80, "protocol": "TCP"}]);
    let spec = json!({"spec": {"containers": [{"name": "web", "ports": http}]}});
    cluster.store.patch("/api/v1/namespaces/shop/pods/web", &spec);
    let web6 = web.addresses[1].to_string();
    a.node.sh(&format!("nft '{}'", RULES6.replace("WEB", &web6))).unwrap();
    let program = bin_dir().unwrap().join("ferrule").display().to_string();
    let why = |words: &str| a.node.sh(&format!("{program} policy why {words} 2>&1 || true")).unwrap();
    let from_client = |ports: Value| for_web(&json!([{"from": pods("client"), "ports": ports}]));
    let from_block = |block: Value| for_web(&json!([{"from": [{"ipBlock": block}]}]));
    let to_v4 = json!({"podSelector": {"matchLabels": {"app": "client"}}, "policyTypes": ["Egress"],
        "egress": [{"to": [{"ipBlock": {"cidr": "0.0.0.0/0"}}]}]});
    let (outside, c6) = (HUB[0][1], c.addresses()[1].clone());
    let case =
        |title, spec, from, to: &str, port, has| Case { title, spec, from, to: to.to_owned(), port, has };
    let cases = [
        case(
            "ICMP has no port",
            from_client(json!([{"port": 80}])),
            "shop/client",
            &web6,
            "",
            &["ICMP echo request", "a peer matches, no port does", "only entries without ports match ICMP"],
        ),
        case(
            "The port has the name, and another protocol",
            from_client(json!([{"port": "http", "protocol": "UDP"}])),
            "shop/client",
            &web6,
            "80/udp",
            &["its ports: http/UDP; the port \"http\" of the pod at", "is 80/TCP"],
        ),
        case(
            "The block is one of IPv4",
            from_block(json!({"cidr": "0.0.0.0/0"})),
            "shop/client",
            "shop/web",
            "80",
            &["shop/web (10.244.1.2): allowed", "is IPv6, and 0.0.0.0/0 is IPv4"],
        ),
        case(
            "The block has an exception",
            from_block(json!({"cidr": "2001:db8::/32", "except": ["2001:db8::/64"]})),
            outside,
            &web6,
            "80",
            &["is in its except 2001:db8::/64"],
        ),
        case(
            "The port of the Service is not that of the pod",
            from_client(json!([{"port": 8000}])),
            "shop/client",
            SERVICE6,
            "8000",
            &["a Service shop/web/tcp/http, in table ip6 kube-proxy", "its ports: 8000/TCP"],
        ),
        case(
            "A host port",
            from_client(json!([])),
            outside,
            &a.addresses()[1],
            "8080",
            &[
                "a host port, in table inet cni_portmap",
                "TCP port 80 from 2001:db8::fe to shop/web",
                "only an ipBlock matches it",
            ],
        ),
        case(
            "Only IPv4 may leave",
            to_v4,
            "shop/client",
            outside,
            "80",
            &["egress: denied", "is IPv6, and 0.0.0.0/0 is IPv4", "it leaves with an address of this node"],
        ),
        case(
            "A node behind a VXLAN has another address",
            from_block(json!({"cidr": format!("{c6}/128")})),
            &c6,
            &web6,
            "80",
            &[
                "an address of node \"c\" itself",
                "with the source fd00:244:3::, not with this one. Ask for that",
            ],
        ),
    ];
    for (number, case) in cases.iter().enumerate() {
        cluster.explains(number + 1, case, &why);
        let to = if case.to == "shop/web" { &web6 } else { &case.to }.parse().unwrap();
        let (port, proto) = case.port.split_once('/').unwrap_or((case.port, "tcp"));
        let to = SocketAddr::new(to, port.parse().unwrap_or_default());
        let is_silent = match case.from {
            _ if case.port.is_empty() => client.pod.sh(&format!("ping -c 1 -W 0.5 {}", to.ip())).is_err(),
            "shop/client" => silent(&client.pod, proto, to),
            from if from == c6 => silent(&c.node, proto, to),
            _ => silent(hub, proto, to),
        };
        assert!(is_silent, "{}: it passes", case.title);
    }
    let there = why(&format!("fd00:244:3:: {web6} 80"));
    assert!(there.contains("denied") && there.contains("fd00:244:3:: is not in"), "{there}");
}

impl Cluster {
    /// Makes the policy, and waits for the answer.
    fn explains(&self, number: usize, case: &Case<'_>, why: &dyn Fn(&str) -> String) {
        let Case { title, spec, from, to, port, has } = case;
        self.policy(spec);
        let words = format!("{from} {to} {port}");
        let mut said = String::new();
        let is_said = eventually(LIMIT, || {
            said = why(&words);
            has.iter().all(|part| said.contains(part)) && !said.contains("warning")
        });
        assert!(is_said, "{title}: {said}");
        println!("## {number}. {title}\n\n{spec}\n\n```\n$ ferrule policy why {words}\n{said}```\n");
    }
}
