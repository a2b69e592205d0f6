//! The thread that enforces NetworkPolicies, with the plugin `policy` and hand-made objects of the API.

mod denials;
mod forms;
mod hostile;
mod killed;
mod packets;
mod random;
mod rig;
mod tiers;
mod why;
mod wire;

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::{serve, udp_socket};
use cni_lab::{Place as _, TIMEOUT, eventually};
use ferrule_node::policy::objects::{Kind, Told};
use ferrule_node::policy::{Report, cleanup, stand_down};
use ferrule_node_policy::model::{Direction, NetworkPolicy, Peer, Port, PortValue, Rule};
use ferrule_node_policy::ruleset::Entry;
use ferrule_policy_kit::isolated::PATH;

use rig::{Rig, Talk, Try, block, from, key, known, number, object, pods, policy, port, try_all};

/// A change holds within this time.
const SOON: Duration = Duration::from_secs(1);

#[test]
fn policies_hold_from_the_announcement_on() {
    let rig = Rig::new();
    rig.start_daemon();
    rig.wait("not known yet", |report| report.unknown.is_some());
    // Without the API nothing is known, so every pod waits.
    let client = rig.add("shop", "client");
    assert!(
        eventually(TIMEOUT, || rig.elements("ferrule_policy") == 5),
        "{}",
        rig.world.nft_table("ferrule_policy")
    );
    let first = NetworkPolicy {
        ingress: vec![Rule {
            peers: vec![pods(&[("app", "client")])],
            ports: vec![
                number("TCP", 80),
                port("TCP", PortValue::Number(90), Some(91)),
                number("UDP", 81),
                number("UDP", 92),
            ],
        }],
        ..policy("shop", "web", "web")
    };
    rig.listed(&["shop", "tools"], std::slice::from_ref(&first), &[object("shop", "client")]);
    rig.wait_isolated("ferrule-policy 1\nshop ingress\nend\n");
    rig.wait("the client is released", |report| report.waiting == 0 && report.is_good());
    assert_eq!((rig.elements("ferrule_pods"), rig.elements("ferrule_policy")), (0, 0));

    // Before the API knows the pod it waits; then its address is known from the announcement.
    let web = rig.add("shop", "web");
    let other = rig.add("tools", "other");
    rig.wait("the pod waits", |report| report.undecided == ["web shop/web"]);
    let (node, outside) = (&rig.world.node, &rig.world.outside);
    let from_outside = |proto: &str, to: SocketAddr, passes: bool| {
        from(&outside[usize::from(to.is_ipv6())])(proto, to, passes)
    };
    let (client_end, other_end, node_end) = (from(&client.pod), from(&other.pod), from(node));
    let w = web.addresses;
    try_all("undecided", &[(&node_end, "tcp", w, 80, true), (&client_end, "tcp", w, 80, false)]);
    rig.tell([Told::Pod(object("shop", "web")), Told::Pod(object("tools", "other"))]);
    rig.wait("released", |report| report.waiting == 0 && report.isolated == 2);
    try_all(
        "decided",
        &[
            (&client_end, "tcp", w, 80, true),
            (&client_end, "udp", w, 81, true),
            (&client_end, "tcp", w, 81, false),
            (&client_end, "udp", w, 80, false),
            (&other_end, "tcp", w, 80, false),
            (&from_outside, "udp", w, 81, false),
            (&node_end, "tcp", w, 83, true),
            (&other_end, "tcp", client.addresses, 80, true),
            (&from(&web.pod), "tcp", client.addresses, 80, true),
        ],
    );

    // By a Service: the destination counts after its translation, the source before masquerade. A pod reaches itself.
    let [IpAddr::V4(w4), _] = w else { panic!("{w:?}") };
    let service = ["10.96.0.1".parse().unwrap(); 2];
    node.sh(&format!(
        "nft 'table ip service {{
            chain pre {{ type nat hook prerouting priority dstnat; ip daddr 10.96.0.1 dnat to {w4}; }};
            chain post {{ type nat hook postrouting priority srcnat; ip daddr {w4} masquerade; }}; }}'"
    ))
    .unwrap();
    let web_end = from(&web.pod);
    try_all(
        "by a Service",
        &[
            (&client_end, "tcp", service, 80, true),
            (&client_end, "tcp", service, 81, false),
            (&other_end, "tcp", service, 80, false),
            (&web_end, "tcp", service, 83, true),
        ],
    );
    node.sh("nft delete table ip service").unwrap();
    // No rule with ports matches ICMP.
    let pings = || w.iter().all(|ip| client.pod.sh(&format!("ping -c 1 -W 0.3 {ip}")).is_ok());
    assert!(!w.iter().any(|ip| client.pod.sh(&format!("ping -c 1 -W 0.3 {ip}")).is_ok()));

    // A change ends what it denies, TCP and UDP, and nothing else.
    let kept = [client.addresses, client.addresses];
    let (mut ended, mut others) = (Vec::new(), Vec::new());
    for family in [0, 1] {
        let to = |addresses: [IpAddr; 2], port| SocketAddr::new(addresses[family], port);
        ended.push(Talk::udp(&client.pod, to(w, 81)));
        ended.push(Talk::tcp(&client.pod, &web.pod, to(w, 80 + 10 + family as u16)));
        ended.push(Talk::both(&client.pod, &web.pod, to(w, 92)));
        others.push(Talk::udp(node, to(w, 81)));
        others.push(Talk::udp(&other.pod, to(kept[0], 80)));
    }
    assert!(ended.iter().chain(&others).all(Talk::goes), "before the change");
    let open = NetworkPolicy {
        ingress: vec![Rule { peers: vec![pods(&[("app", "client")])], ports: Vec::new() }],
        ..policy("shop", "web", "web")
    };
    let closed = policy("shop", "web", "web");
    for round in 0..2 {
        rig.tell([Told::Policy(closed.clone())]);
        let began = Instant::now();
        let are_ended = eventually(TIMEOUT, || ended.iter().all(|talk| !talk.goes()));
        assert!(are_ended && began.elapsed() < SOON + TIMEOUT / 8, "round {round}: {:?}", began.elapsed());
        assert!(others.iter().all(Talk::goes), "round {round}: others ended");
        // They stay ended while somebody sends.
        thread::sleep(Duration::from_millis(200));
        assert!(ended.iter().all(|talk| !talk.goes()), "round {round}: came back");
        rig.tell([Told::Policy(open.clone())]);
        let udp: Vec<_> = ended.iter().filter(|talk| talk.is_udp()).collect();
        assert!(eventually(TIMEOUT, || udp.iter().all(|talk| talk.goes())), "round {round}: allowed again");
        // The server may have begun the flow anew, which its policies allow.
        ended.retain(|talk| !matches!(talk, Talk::Both(..)));
        assert!(eventually(TIMEOUT, pings), "a rule without ports matches ICMP");
    }

    // A pod that is isolated comes before the health endpoint of its address.
    let entry = Entry { direction: Direction::Ingress, pod: client.addresses[0] };
    rig.endpoint.send_replace([entry].into());
    rig.wait("the endpoint is in the maps", |report| report.probed.contains(&entry));
    rig.tell([Told::Policy(policy("shop", "client", "client"))]);
    rig.wait("the pod is", |report| report.isolated == 4 && report.probed.is_empty() && report.is_good());
    rig.tell([Told::Gone(Kind::Policies, key("shop", "client"))]);
    rig.wait("the endpoint is again", |report| report.isolated == 2 && report.probed.contains(&entry));
}

/// A packet renews the element of an ended flow. The kernel adds a second one for each packet that comes while it adds or deletes the first.
#[test]
fn a_flow_that_is_allowed_again_passes_beside_a_flood_of_its_packets() {
    let rig = Rig::new();
    rig.start_daemon();
    let closed = policy("shop", "web", "web");
    let open = NetworkPolicy { ingress: vec![Rule::default()], ..closed.clone() };
    let objects = ["client", "web"].map(|app| object("shop", app));
    rig.listed(&["shop"], std::slice::from_ref(&open), &objects);
    rig.wait_isolated("ferrule-policy 1\nshop ingress\nend\n");
    let [client, web] = ["client", "web"].map(|app| rig.add("shop", app));
    rig.wait("released", |report| report.waiting == 0 && report.is_good() && report.isolated == 2);
    for address in web.addresses {
        let socket = udp_socket(&client.pod, (address, 81).into());
        socket.set_nonblocking(true).unwrap();
        let (is_over, answers) = (AtomicBool::new(false), AtomicUsize::new(0));
        let flood = || {
            while !is_over.load(Relaxed) {
                let _ = socket.send(b"x");
                answers.fetch_add(socket.recv(&mut [0; 64]).is_ok().into(), Relaxed);
            }
        };
        let goes = || {
            let before = answers.load(Relaxed);
            thread::sleep(Duration::from_millis(20));
            answers.load(Relaxed) > before
        };
        let round = |_| {
            rig.tell([Told::Policy(closed.clone())]);
            let is_ended = eventually(TIMEOUT, || !goes());
            rig.tell([Told::Policy(open.clone())]);
            is_ended && eventually(TIMEOUT, goes)
        };
        let failed = thread::scope(|scope| {
            scope.spawn(flood);
            let failed = (0..10).find(|number| !round(*number));
            is_over.store(true, Relaxed);
            failed
        });
        assert_eq!(failed, None, "{address}: {}", rig.world.nft_table("ferrule_policy"));
    }
}

#[test]
fn egress_the_end_of_pods_and_restarts() {
    ends_and_restarts();
}

/// Before Linux 6.9 a table has no owner.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn restarts_without_owned_tables() {
    ends_and_restarts();
}

fn ends_and_restarts() {
    let rig = Rig::new();
    rig.start_daemon();
    let outside = rig.world.outside.each_ref().map(|client| client.address());
    let except = outside.map(|address| match address {
        IpAddr::V4(_) => block("192.0.2.0/24", &[&format!("{address}/32")]),
        IpAddr::V6(_) => block("2001:db8::/64", &[&format!("{address}/128")]),
    });
    let egress = |peers: Vec<Peer>, ports: Vec<Port>| NetworkPolicy {
        types: vec!["Egress".into()],
        egress: vec![Rule { peers, ports }],
        ..policy("shop", "out", "web")
    };
    let first = egress(vec![pods(&[("app", "client")])], vec![number("TCP", 82)]);
    rig.listed(&["shop", "tools"], &[first], &[object("shop", "client"), object("shop", "web")]);
    rig.wait_isolated("ferrule-policy 1\nshop egress\nend\n");
    let (web, client) = (rig.add("shop", "web"), rig.add("shop", "client"));
    rig.wait("released", |report| report.waiting == 0 && report.is_good() && report.isolated == 2);
    let doubts: Vec<String> = rig.report().doubts.iter().map(ToString::to_string).collect();
    assert_eq!(
        doubts,
        ["NetworkPolicy shop/out: egress: no policy of these pods allows port 53, so they resolve no names"]
    );
    for place in &rig.world.outside {
        serve(place, "outside", 80);
    }
    serve(&rig.world.node, "node", 80);
    let gateways = ["10.1.0.1", "fd00:1::1"].map(|address| address.parse().unwrap());
    let (web_end, client_end, node_end) = (from(&web.pod), from(&client.pod), from(&rig.world.node));
    let (w, c) = (web.addresses, client.addresses);
    let rounds: [(&str, NetworkPolicy, Vec<Try<'_>>); 3] = [
        (
            "a named port of the peer",
            egress(vec![pods(&[("app", "client")])], vec![port("TCP", PortValue::Name("web".into()), None)]),
            vec![
                (&web_end, "tcp", c, 82, true),
                (&web_end, "tcp", c, 81, false),
                (&web_end, "udp", outside, 80, false),
                (&web_end, "tcp", gateways, 80, false),
                (&client_end, "tcp", gateways, 80, true),
                (&client_end, "tcp", w, 80, true),
                (&node_end, "udp", w, 80, true),
            ],
        ),
        (
            "a block",
            egress(vec![block("192.0.2.0/24", &[]), block("2001:db8::/64", &[])], vec![number("UDP", 80)]),
            vec![
                (&web_end, "udp", outside, 80, true),
                (&web_end, "tcp", outside, 80, false),
                (&web_end, "tcp", c, 82, false),
            ],
        ),
        (
            "a block with an exception",
            egress(except.to_vec(), Vec::new()),
            vec![(&web_end, "udp", outside, 80, false)],
        ),
    ];
    for (round, policy, tries) in rounds {
        rig.tell([Told::Policy(policy)]);
        rig.settle();
        try_all(round, &tries);
    }

    // Another program cannot take the table away; before Linux 6.9 it comes back. What an ended daemon leaves holds.
    // The noted flows are no part of what holds.
    let listing = || {
        let all = rig.world.nft_table("ferrule_policy");
        all.lines()
            .filter(|line| !line.contains(" counter timeout 1m"))
            .map(str::to_owned)
            .collect::<Vec<_>>()
    };
    let before = listing();
    rig.world.nft("flush ruleset");
    assert!(listing() == before || rig.report().is_plain && eventually(TIMEOUT, || listing() == before));
    let late = rig.add("shop", "late");
    assert!(eventually(TIMEOUT, || rig.undecided() == ["late shop/late"]));
    rig.world.nft("flush ruleset");
    rig.stop_daemon();
    let late_end = from(&late.pod);
    try_all("no daemon", &[(&web_end, "udp", outside, 80, false), (&late_end, "udp", outside, 80, false)]);
    rig.start_daemon();
    rig.wait("still unknown", |report| report.unknown.is_some() && report.waiting == 1);
    try_all("unknown", &[(&web_end, "udp", outside, 80, false), (&late_end, "udp", outside, 80, false)]);
    rig.world.nft("flush ruleset");
    let is_closed = || {
        let former = rig.world.node.sh("nft list set inet ferrule_policy former4 2>&1 || true").unwrap();
        former.contains(&w[0].to_string())
    };
    assert!(eventually(TIMEOUT, || !rig.report().is_plain || is_closed()));
    try_all(
        "flushed while unknown",
        &[(&web_end, "udp", outside, 80, false), (&web_end, "udp", c, 80, false)],
    );
    let all = egress(vec![pods(&[("app", "client")])], Vec::new());
    // Without an announcement the address comes from the API.
    let objects = [known("shop", &client), known("shop", &web), object("shop", "late")];
    rig.listed(&["shop", "tools"], std::slice::from_ref(&all), &objects);
    rig.wait("decided", |report| report.waiting == 0 && report.is_good() && report.isolated == 2);
    try_all(
        "restarted",
        &[
            (&web_end, "udp", outside, 80, false),
            (&web_end, "udp", c, 80, true),
            (&late_end, "udp", outside, 80, true),
        ],
    );

    // A pod whose object is gone is closed while it has a link; then its address is free.
    rig.tell([Told::Gone(Kind::Pods, key("shop", "web"))]);
    rig.wait("the pod is gone", |report| report.isolated == 0);
    try_all("gone", &[(&web_end, "udp", c, 80, false), (&client_end, "udp", w, 80, false)]);
    rig.del(&web);
    let former = || rig.world.node.sh("nft list set inet ferrule_policy former4").unwrap();
    let has_former = || former().contains(&w[0].to_string());
    assert!(eventually(TIMEOUT, || !has_former()), "{}", rig.world.nft_table("ferrule_policy"));

    // A disk that has become read-only keeps the file, and the report says what that means.
    let mount = |how| rig.world.node.sh(&format!("mount -o remount,{how} /var/lib")).unwrap();
    mount("ro");
    rig.tell([Told::Policy(policy("tools", "any", "any"))]);
    let is_read_only = |why: &String| why.ends_with("that it lacks is open until the API has its address");
    rig.wait("read-only", |report| report.reasons.iter().any(is_read_only));
    mount("rw");
    rig.tell([Told::Gone(Kind::Policies, key("tools", "any"))]);
    rig.wait("it can be written", Report::is_good);

    rig.stop_daemon();
    let stand_down =
        |is_listed| rig.world.node.run(|| stand_down(Path::new(PATH), is_listed)).unwrap().unwrap();
    let removed = stand_down(false);
    // No pod has been announced since the ruleset was flushed.
    assert_eq!(removed, ["table inet ferrule_policy"]);
    assert_eq!((rig.world.listing().as_str(), rig.isolated().as_str()), ("", "ferrule-policy 1\nend\n"));
    assert_eq!(stand_down(false), [""; 0]);
    assert_eq!(rig.world.node.run(cleanup).unwrap().unwrap(), [format!("file {PATH}")]);

    // Switching policies off releases a pod that was announced before a daemon has made its table, as after a reboot.
    let early = rig.add("shop", "early");
    assert_eq!((stand_down(false), rig.elements("ferrule_pods")), (vec![], 5));
    assert_eq!(stand_down(true), ["table inet ferrule_pods"]);
    rig.del(&early);
    assert_eq!(rig.world.node.run(cleanup).unwrap().unwrap(), [format!("file {PATH}")]);
    rig.add("shop", "again");
    rig.world
        .node
        .sh(&format!("mkdir {} && touch {PATH}", Path::new(PATH).parent().unwrap().display()))
        .unwrap();
    let removed = ["table inet ferrule_pods".to_owned(), format!("file {PATH}")];
    assert_eq!(rig.world.node.run(cleanup).unwrap().unwrap(), removed);
    assert_eq!(rig.world.listing(), "");
}
