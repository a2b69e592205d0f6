//! `ferrule policy why` and `inspect policies`: from the kernel's rules alone, and beside a daemon, whose answers are planted.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::thread;

use cni_lab::Place as _;
use cni_lab::testing::Origin;
use serde_json::{Value, json};

use crate::fixture::Fixture;
use crate::schema::deviation_of;

/// A table as `ferrule-node` makes it, for the pod with the address POD: TCP 80 from 10.9.0.1 and from 10.9.1.0/24.
const RULES: &str = "table inet ferrule_policy {
    map to4 { type ipv4_addr : verdict; elements = { POD : jump c0123456789abcdef0123 } }
    set peers { type ipv4_addr; elements = { 10.9.0.1 } }
    set blocks { type ipv4_addr; flags interval; elements = { 10.9.1.0/24 } }
    set former4 { type ipv4_addr; elements = { 10.9.0.66 } }
    chain c0123456789abcdef0123 {
        ip saddr @peers tcp dport 80 counter return
        ip saddr @blocks return
        counter drop
    }
    chain forward4 {
        ip saddr @former4 drop
        ct state established,related accept
        ip daddr vmap @to4
    }
    chain forward { type filter hook forward priority -15; meta nfproto ipv4 goto forward4; }
    chain input { type filter hook input priority -15; }
}";

/// What kube-proxy would have for a Service with two ends, and one without.
const SERVICES: &str = "table ip kube-proxy {
    map service-ips { type ipv4_addr . inet_proto . inet_service : verdict;
        elements = { 10.96.0.1 . tcp . 8080 : goto service-ABCDEFGH-shop/web/tcp/http } }
    map no-endpoint-services { type ipv4_addr . inet_proto . inet_service : verdict;
        elements = { 10.96.0.2 . tcp . 8080 : drop } }
    chain mark-for-masquerade { meta mark set mark or 0x4000; }
    chain endpoint-IJKLMNOP-shop/web/tcp/http__POD/80 {
        ip saddr POD jump mark-for-masquerade
        meta l4proto tcp dnat to POD:80
    }
    chain endpoint-QRSTUVWX-shop/web/tcp/http__10.8.0.9/80 { meta l4proto tcp dnat to 10.8.0.9:80; }
    chain service-ABCDEFGH-shop/web/tcp/http {
        ip daddr 10.96.0.1 tcp dport 8080 ip saddr != 10.212.0.0/16 jump mark-for-masquerade
        numgen random mod 2 vmap { 0 : goto endpoint-IJKLMNOP-shop/web/tcp/http__POD/80,
            1 : goto endpoint-QRSTUVWX-shop/web/tcp/http__10.8.0.9/80 }
    }
    chain services { type nat hook prerouting priority dstnat; ip daddr . meta l4proto . th dport vmap @service-ips; }
}";

/// Runs a command, and returns its status and what it says, on one line.
#[track_caller]
fn says(f: &Fixture, words: &str) -> (Option<i32>, String) {
    let output = f.run(words);
    let text = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    (output.status.code(), text)
}

#[track_caller]
fn has(found: &(Option<i32>, String), status: i32, parts: &[&str]) {
    let missing: Vec<_> = parts.iter().filter(|part| !found.1.contains(**part)).collect();
    assert!(found.0 == Some(status) && missing.is_empty(), "{status} {missing:?}: {found:?}");
}

#[track_caller]
fn document(f: &Fixture, words: &str) -> Value {
    let output = f.run(&format!("{words} --json"));
    let document = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(deviation_of(&document), None, "{document}");
    document
}

/// A daemon that gives these answers, one to each question.
fn daemon(f: &Fixture, answers: Vec<Value>) {
    f.node.sh("mkdir -p /run/ferrule/node; rm -f /run/ferrule/node/policy.sock").unwrap();
    let listener = f.node.run(|| UnixListener::bind("/run/ferrule/node/policy.sock")).unwrap().unwrap();
    thread::spawn(move || {
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut question = String::new();
            BufReader::new(&stream).read_line(&mut question).unwrap();
            assert!(question.starts_with(r#"{"ferrulePolicy":1,"ask":"#), "{question}");
            stream.write_all(format!("{answer}\n").as_bytes()).unwrap();
        }
    });
}

#[test]
fn a_connection_is_explained_with_and_without_the_daemon() {
    let f = Fixture::new();
    let pod = f.add(Origin::Ours, "policy-why", 18951);
    let load = |text: &str| f.node.tool("nft", &[&text.replace("POD", &pod.address)]).unwrap();
    let web = "shop/pod-policy-why";
    // Nothing is enforced yet; nobody knows the other pod.
    let open = says(&f, &format!("policy why 10.9.0.9 {web} 80"));
    has(
        &open,
        0,
        &["TCP port 80 from 10.9.0.9 to shop/pod-policy-why (", "): allowed", "no policies are enforced"],
    );
    has(
        &says(&f, "policy why shop/none 10.9.0.9 80"),
        1,
        &["pod \"shop/none\" is not known", "ferrule-node does not answer"],
    );
    load(RULES);
    let denied = says(&f, &format!("policy why 10.9.0.9 {web} 80"));
    let from_chain = "the last rule of chain c0123456789abcdef0123 of table inet ferrule_policy drops it";
    has(
        &denied,
        3,
        &[
            ": denied",
            "ingress: denied: a policy isolates it",
            from_chain,
            "it allows 10.9.0.1 TCP port 80",
            "may have a node's address as its source",
            "only the kernel's rules are known",
        ],
    );
    let allowed = says(&f, &format!("policy why 10.9.0.1 {web} 80/tcp"));
    has(
        &allowed,
        0,
        &[
            ": allowed",
            "rule 1 of 3 in chain c0123456789abcdef0123",
            "egress: no pod that is known has this address",
        ],
    );
    has(&says(&f, &format!("policy why 10.9.1.77 {web} 53/udp")), 0, &["UDP port 53", "rule 2 of 3"]);
    has(&says(&f, &format!("policy why 10.9.0.1 {web}")), 3, &["ICMP echo request", "no port was given"]);
    has(&says(&f, &format!("policy why 10.9.0.66 {web} 80")), 3, &["has ended"]);
    has(
        &says(&f, &format!("policy why {web} 10.9.0.9 80")),
        0,
        &["egress: allowed: no policy isolates it", "it may leave with an address of this node"],
    );
    load(
        "table inet ferrule_node { chain postrouting { type nat hook postrouting priority 110;
        ip saddr 10.212.0.0/16 ip daddr != 10.8.0.0/16 masquerade; }; }",
    );
    let leaves = "it leaves with an address of this node (table inet ferrule_node)";
    has(&says(&f, &format!("policy why {web} 10.9.0.9 80")), 0, &[leaves]);
    let stays = says(&f, &format!("policy why {web} 10.8.0.9 80"));
    assert!(!stays.1.contains(leaves), "{stays:?}");
    // The bridge's address is the node's own.
    has(
        &says(&f, &format!("policy why {web} 10.212.0.1 80")),
        0,
        &["an address of this node", "to this node"],
    );
    has(&says(&f, &format!("policy why 10.212.0.1 {web} 80")), 0, &["the node itself sends"]);
    let table = says(&f, "inspect policies");
    has(&table, 1, &[web, "ingress", "c0123456789abcdef0123", "3 rules, 2 sets, 2 elements"]);
    assert_eq!(document(&f, "inspect policies")["chains"][0]["rules"], 3);
    let json = document(&f, &format!("policy why 10.9.0.9 {web} 80"));
    assert_eq!(
        (&json["flows"][0]["verdict"], &json["flows"][0]["kernel"]["cause"]),
        (&json!("denied"), &json!("policy"))
    );

    // A host port, after no Service has the address.
    let host_port = says(&f, "policy why 10.9.0.9 10.212.0.1 18951");
    has(&host_port, 3, &["a host port, in table inet cni_portmap: 10.212.", ": denied"]);
    document(&f, "policy why 10.9.0.1 10.212.0.1 18951");
    has(&says(&f, "policy why 10.9.0.9 10.212.0.1 18952"), 0, &["an address of this node"]);

    // A Service: each of its ends is judged.
    load(SERVICES);
    let service = says(&f, "policy why 10.9.0.1 10.96.0.1 8080");
    has(&service, 0, &["a Service shop/web/tcp/http, in table ip kube-proxy: 10.8.0.9:80, 10.212."]);
    assert_eq!(service.1.matches("TCP port 80 from 10.9.0.1 to ").count(), 2, "{service:?}");
    has(&says(&f, "policy why 10.9.0.9 10.96.0.1 8080"), 3, &[": denied"]);
    has(&says(&f, "policy why 10.9.0.1 10.96.0.2 8080"), 4, &["no ready endpoint"]);
    document(&f, "policy why 10.9.0.9 10.96.0.1 8080");

    // The daemon names the policy. Then it says something else than the kernel's rules.
    let side = |reason: &str, by: Value| json!({"pods": [], "reason": reason, "by": by});
    let by = json!([{"policy": "NetworkPolicy shop/web", "entry": "ingress[0]", "misses": "the port matches, no peer does"}]);
    let answer = |ingress: Value| json!({"ferrulePolicy": 1, "flows": [{"egress": side("notHere", json!([])), "ingress": ingress}]});
    let (denies, allows) = (answer(side("nothingAllows", by.clone())), answer(side("noPolicy", json!([]))));
    let mut dry = denies.clone();
    let ingress = dry["flows"][0]["ingress"].as_object_mut().unwrap();
    ingress.extend([("isDry".into(), json!(true)), ("unreached".into(), by.clone()), ("passed".into(), by)]);
    daemon(&f, vec![denies.clone(), allows, denies, dry]);
    let named = says(&f, &format!("policy why 10.9.0.9 {web} 80"));
    has(&named, 3, &["NetworkPolicy shop/web: ingress[0]: the port matches, no peer does"]);
    assert!(!named.1.contains("warning"), "{named:?}");
    let differs = says(&f, &format!("policy why 10.9.0.9 {web} 80"));
    has(&differs, 3, &["warning: the kernel's rules deny it (ingress), the objects of the API do not"]);
    document(&f, &format!("policy why 10.9.0.9 {web} 80"));
    let allowed = document(&f, &format!("policy why 10.9.0.1 {web} 80"));
    assert!(allowed["flows"][0]["kernel"]["passed"][0]["rule"] == 1, "{allowed}");
    // A pod that the cache does not have: the daemon knows it, and that it has no address of its own.
    let agent =
        json!({"ferrulePolicy": 1, "pod": {"addresses": ["10.9.0.9"], "isHere": true, "hasPart": false}});
    daemon(&f, vec![agent, answer(side("notHere", json!([])))]);
    has(&says(&f, "policy why shop/agent 10.9.0.1 80"), 0, &["shop/agent has ended: no policy is for it"]);
    let applied = json!({"ferrulePolicy": 1, "pods": [{"pod": "shop/web", "addresses": ["10.1.0.2"], "policies": [
        {"policy": "NetworkPolicy shop/web", "direction": "ingress", "does": "allows", "everybody": false, "blocks": [], "peers": ["shop/a"], "addresses": 1}]}]});
    // Another version, and no JSON at all.
    daemon(&f, vec![applied.clone(), applied, json!({"ferrulePolicy": 2}), json!("x")]);
    has(
        &says(&f, "inspect policies"),
        0,
        &["shop/web", "NetworkPolicy shop/web", "1 addresses of pods: shop/a"],
    );
    document(&f, "inspect policies");
    has(&says(&f, "inspect policies"), 1, &["speaks version 2 of the protocol"]);
    has(&says(&f, "inspect policies"), 1, &["ferrule-node does not answer"]);
}
