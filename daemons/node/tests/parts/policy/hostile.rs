//! A hostile pod that writes its packets itself, against the tables of policies and of sources.

use std::io::ErrorKind;
use std::net::IpAddr;

use cni_lab::testing::{serve, udp_ask, udp_socket};
use cni_lab::{Place as _, TIMEOUT, eventually};
use ferrule_node::guard::Part;
use ferrule_node::plan::Guard;
use ferrule_node::policy::objects::{Kind, Told};
use ferrule_node_policy::model::{NetworkPolicy, Peer, Pod, PortValue, Rule};

use super::forms::Class::{OddUdp, Open, Udp};
use super::forms::{Class, FORMS, Others, PORT, error};
use super::packets::{Ends, ICMPV6, SCTP, TCP, UDP};
use super::rig::{
    MOMENT, Rig, Started, Talk, block, from, key, known, labels, number, object, pods, policy, port, selects,
    try_all,
};
use super::wire::{Ear, Gun, marked};

/// Allowed ports without a server: outside, and at the ally.
const CLOSED: [u16; 2] = [54, 84];

/// The tables of sources, as `--policy on` has them.
fn guard(rig: &Rig) -> tokio::runtime::Runtime {
    let uplinks = rig.world.outside.iter().map(|client| client.node_device().to_owned()).collect();
    let runtime = crate::lab::runtime();
    let wanted = Guard { sources: true, uplinks, ..Guard::default() };
    let make = || runtime.block_on(async { Part::open(Vec::new())?.sync(Some(&wanted)) });
    rig.world.node.run(make).unwrap().unwrap();
    runtime
}

/// Writes the packets of a shot with this data.
type Draw<'a> = dyn Fn(&Ends, &[u8]) -> Vec<Vec<u8>> + 'a;

/// What a pod sends, and what must become of it.
struct Shot {
    name: String,
    by: usize,
    to: usize,
    towards: IpAddr,
    packets: Vec<Vec<u8>>,
    passes: bool,
    may_pass: bool,
    is_open: bool,
}

/// Those who send and get packets, by their place in all lists.
const HOSTILE: usize = 0;
const OPEN: usize = 1;
const ALLY: usize = 2;
const VICTIM: usize = 3;
const OUT4: usize = 4;
const OUT6: usize = 5;
const NODE: usize = 6;
/// The node, by link-local addresses.
const NEAR: usize = 7;
const NAMES: [&str; 8] = ["hostile", "open", "ally", "victim", "outside", "outside", "node", "node's link"];
const GATEWAYS: [&str; 2] = ["10.1.0.1", "fd00:1::1"];

struct Scene {
    rig: Rig,
    pods: [Started; 4],
    guns: [Gun; 4],
    ears: Vec<Ear>,
    /// The link-local addresses of the hostile pod and of the node's end of its link.
    near: [IpAddr; 2],
    /// The next mark, and the next port.
    next: u32,
    _runtime: tokio::runtime::Runtime,
}

impl Scene {
    fn new() -> Scene {
        let rig = Rig::new();
        let _runtime = guard(&rig);
        rig.start_daemon();
        let (out, closed) = (policy("shop", "out", "hostile"), policy("vault", "closed", "victim"));
        let more = port("UDP", PortValue::Number(90), Some(91));
        let ports = vec![number("UDP", PORT.into()), number("UDP", 84), more];
        let to_ally = Rule { peers: vec![pods(&[("app", "ally")])], ports };
        let out = NetworkPolicy { types: vec!["Egress".into()], egress: vec![to_ally], ..out };
        let of_shop = selects(&[("kubernetes.io/metadata.name", "shop")]);
        let ally = Peer { namespaces: Some(of_shop), ..pods(&[("app", "ally")]) };
        let outside = vec![block("192.0.2.0/24", &[]), block("2001:db8::/64", &[])];
        let closed = NetworkPolicy {
            types: vec!["Ingress".into(), "Egress".into()],
            ingress: vec![Rule { peers: vec![ally], ports: vec![number("UDP", PORT.into())] }],
            egress: vec![Rule { peers: outside, ports: vec![number("UDP", 53), number("UDP", 54)] }],
            ..closed
        };
        let all = [("shop", "hostile"), ("tools", "open"), ("shop", "ally"), ("vault", "victim")];
        let objects = all.map(|(namespace, app)| object(namespace, app));
        rig.listed(&["shop", "tools", "vault"], &[out, closed], &objects);
        rig.wait_isolated("ferrule-policy 1\nshop egress\nvault both\nend\n");
        let pods = all.map(|(namespace, app)| rig.add(namespace, app));
        rig.wait("released", |report| report.waiting == 0 && report.is_good() && report.isolated == 4);
        // The plugin does not announce a pod of a namespace without policies.
        rig.tell([Told::Pod(known("tools", &pods[OPEN]))]);
        rig.settle();
        let mut ears: Vec<Ear> = pods.iter().map(|one| Ear::on_links(&one.pod)).collect();
        ears.extend(rig.world.outside.iter().map(Ear::on_links));
        let protocols = [1, TCP, UDP, ICMPV6, SCTP, 47, 136, 253];
        ears.extend([(); 2].map(|()| Ear::of_processes(&rig.world.node, &protocols)));
        for gateway in GATEWAYS {
            pods.iter().for_each(|one| drop(one.pod.sh(&format!("ping -c 1 -W 1 {gateway}"))));
        }
        let guns = pods.each_ref().map(|one| Gun::of(&one.pod));
        let local = |place: &dyn Fn(&str) -> String, link: &str| -> IpAddr {
            let text = place(&format!("ip -6 -o address show dev {link} scope link"));
            text.split_whitespace().nth(3).unwrap().split('/').next().unwrap().parse().unwrap()
        };
        let hostile = &pods[HOSTILE];
        let on_node = |script: &str| rig.world.node.sh(script).unwrap();
        let route = on_node(&format!("ip -o route get {}", hostile.addresses[0]));
        let link = route.split_whitespace().skip_while(|word| *word != "dev").nth(1).unwrap();
        let near = [local(&|script| hostile.pod.sh(script).unwrap(), "eth0"), local(&on_node, link)];
        Scene { rig, pods, guns, ears, near, next: 0, _runtime }
    }

    fn address(&self, of: usize, v6: bool) -> IpAddr {
        match of {
            NODE => GATEWAYS[usize::from(v6)].parse().unwrap(),
            NEAR => self.near[1],
            OUT4 | OUT6 => self.rig.world.outside[usize::from(v6)].address(),
            pod => self.pods[pod].addresses[usize::from(v6)],
        }
    }

    fn others(&self, v6: bool) -> Others {
        let foreign = if v6 { "fd99::9" } else { "10.9.9.9" };
        Others {
            ally: self.address(ALLY, v6),
            node: self.address(NODE, v6),
            outside: self.address(OUT4, v6),
            foreign: foreign.parse().unwrap(),
        }
    }

    fn shot(
        &mut self,
        (by, to): (usize, usize),
        name: &str,
        v6: bool,
        class: Class,
        write: &Draw<'_>,
    ) -> (u32, Shot) {
        self.next += 1;
        let number = self.next;
        let ports = [10_000 + u16::try_from(number).unwrap(), PORT];
        let source = if to == NEAR { self.near[0] } else { self.address(by, v6) };
        let ends = Ends { source, destination: self.address(to, v6), ports };
        let shot = Shot {
            name: format!("{} to {}: {name}, IPv{}", NAMES[by], NAMES[to], if v6 { 6 } else { 4 }),
            by,
            to,
            towards: ends.destination,
            packets: write(&ends, &marked(number)),
            passes: to == ALLY && class == Udp,
            may_pass: to == ALLY && matches!(class, Udp | OddUdp),
            is_open: class == Udp || class == Open && to == VICTIM,
        };
        (number, shot)
    }

    /// Sends all of them, and returns the names of those that have arrived.
    fn fire(&mut self, shots: &[(u32, Shot)], must: impl Fn(&Shot) -> bool) -> Vec<String> {
        for (_, shot) in shots {
            shot.packets.iter().for_each(|packet| self.guns[shot.by].send(packet, shot.towards));
        }
        let mut lost = Vec::new();
        let arrive = eventually(TIMEOUT, || {
            let is_lost =
                |(number, shot): &&(u32, Shot)| must(shot) && !self.ears[shot.to].heard().contains(number);
            lost = shots.iter().filter(is_lost).map(|(_, shot)| shot.name.clone()).collect();
            lost.is_empty()
        });
        assert!(arrive, "do not arrive: {lost:#?}");
        let has = |(number, shot): &&(u32, Shot)| self.ears[shot.to].heard().contains(number);
        shots.iter().filter(has).map(|(_, shot)| shot.name.clone()).collect()
    }

    /// Each form once, to everybody who could get it.
    fn volley(&mut self, flows: &[Ends; 2]) -> Vec<(u32, Shot)> {
        let mut shots = Vec::new();
        for v6 in [false, true] {
            let others = self.others(v6);
            let outside = if v6 { OUT6 } else { OUT4 };
            let paths = [
                (HOSTILE, VICTIM),
                (HOSTILE, outside),
                (HOSTILE, NODE),
                (HOSTILE, ALLY),
                (OPEN, VICTIM),
                (HOSTILE, NEAR),
            ];
            for path in paths.into_iter().filter(|path| v6 || path.1 != NEAR) {
                for (name, families, class, write) in FORMS {
                    // The node itself needs it.
                    let is_for_node = path.1 >= NODE && name.starts_with("neighbour");
                    if families.contains(&v6) && !is_for_node {
                        let write = |ends: &Ends, data: &[u8]| write(ends, &others, data);
                        shots.push(self.shot(path, name, v6, *class, &write));
                    }
                }
            }
            let about = flows[usize::from(v6)];
            for by in [HOSTILE, OPEN] {
                for (name, about) in
                    [("an error about its flow", about), ("an error about its flow's answers", about.back())]
                {
                    shots.push(
                        self.shot((by, VICTIM), name, v6, Open, &|ends, data| error(ends, &about, data)),
                    );
                }
            }
        }
        shots
    }
}

#[test]
fn a_hostile_pod_passes_nothing_that_is_denied() {
    let mut scene = Scene::new();
    for client in &scene.rig.world.outside {
        serve(client, "outside", 53);
    }
    // A flow of the victim, about which errors may be.
    let talks =
        [false, true].map(|v6| Talk::udp(&scene.pods[VICTIM].pod, (scene.address(OUT4, v6), 53).into()));
    let flows = talks.each_ref().map(|talk| {
        let Talk::Udp(socket) = talk else { unreachable!() };
        let (own, to) = (socket.local_addr().unwrap(), socket.peer_addr().unwrap());
        Ends { source: own.ip(), destination: to.ip(), ports: [own.port(), to.port()] }
    });
    let to_victim =
        scene.pods[VICTIM].addresses.map(|ip| Talk::udp(&scene.pods[ALLY].pod, (ip, PORT).into()));
    let talks: Vec<Talk> = talks.into_iter().chain(to_victim).collect();
    assert!(talks.iter().all(Talk::goes));
    let shots = scene.volley(&flows);
    let arrived = scene.fire(&shots, |shot| shot.passes);
    let may_pass: Vec<&String> =
        shots.iter().filter(|(_, shot)| shot.may_pass).map(|(_, shot)| &shot.name).collect();
    let leaks: Vec<&String> = arrived.iter().filter(|name| !may_pass.contains(name)).collect();
    println!("{} shots, {} of them pass", shots.len(), arrived.len());
    assert!(leaks.is_empty(), "leaks: {leaks:#?}");

    // The other pods are not closed: their flows go on, new ones begin, and they get the errors about their flows.
    let Scene { rig, pods, .. } = &scene;
    assert!(talks.iter().all(Talk::goes));
    let refused = |from: usize, to: [IpAddr; 2]| {
        to.iter().all(|ip| {
            let socket = udp_socket(&pods[from].pod, (*ip, CLOSED[usize::from(from == HOSTILE)]).into());
            eventually(TIMEOUT, || {
                udp_ask(&socket, MOMENT).is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused)
            })
        })
    };
    let outside = rig.world.outside.each_ref().map(|client| client.address());
    assert!(refused(VICTIM, outside), "errors of outside about the victim's flows");
    assert!(refused(HOSTILE, pods[ALLY].addresses), "errors of the ally about the hostile pod's flows");
    try_all("after all", &[(&from(&pods[ALLY].pod), "udp", pods[VICTIM].addresses, PORT, true)]);

    // The control: without the tables most forms arrive.
    scene.rig.stop_daemon();
    scene.rig.world.nft(
        "delete table inet ferrule_policy; delete table inet ferrule_pods; delete table inet ferrule_guard",
    );
    let shots = scene.volley(&flows);
    scene.fire(&shots, |shot| shot.is_open);
}

/// How many packets of other flows. The kernel's table usually has room for 262,144.
const FLOOD: &str = "FERRULE_POLICY_FLOOD";
const USUAL_FLOOD: u32 = 3000;

/// Many packets, denied or allowed, change nothing for the flows of other pods. Later another pod gets the address.
#[test]
fn a_flood_and_flows_of_an_earlier_pod_open_nothing() {
    let mut scene = Scene::new();
    let to_victim =
        scene.pods[VICTIM].addresses.map(|ip| Talk::udp(&scene.pods[ALLY].pod, (ip, PORT).into()));
    assert!(to_victim.iter().all(Talk::goes));
    let count = |scene: &Scene| -> u32 {
        scene
            .rig
            .world
            .node
            .sh("cat /proc/sys/net/netfilter/nf_conntrack_count")
            .unwrap()
            .trim()
            .parse()
            .unwrap()
    };
    let number = std::env::var(FLOOD).map_or(USUAL_FLOOD, |number| number.parse().unwrap());
    let before = count(&scene);
    for to in [VICTIM, ALLY] {
        for one in 0..number {
            let port = [PORT, 84, 90, 91][one as usize / 100_000 % 4];
            let v6 = one / 50_000 % 2 == 1;
            let own = 1024 + u16::try_from(one % 50_000).unwrap();
            let (source, destination) = (scene.address(HOSTILE, v6), scene.address(to, v6));
            let ends = Ends { source, destination, ports: [own, port] };
            scene.guns[HOSTILE].send(&ends.packet(UDP, &ends.udp(b"flood")), destination);
        }
        let now = count(&scene);
        println!("{number} packets to {}: {before} flows before, {now} now", NAMES[to]);
        // A denied packet leaves no flow, so it cannot fill the kernel's table.
        assert_eq!(now < before + 100, to == VICTIM, "{before}, {now}");
    }
    assert!(to_victim.iter().all(Talk::goes), "the flow of another pod");
    let (number, shot) = scene
        .shot((HOSTILE, VICTIM), "UDP", false, Udp, &|ends, data| vec![ends.packet(UDP, &ends.udp(data))]);
    assert_eq!(scene.fire(&[(number, shot)], |_| false), [""; 0]);
    drop(to_victim);

    // The hostile pod speaks with outside as long as nothing isolates it; then it ends, and an isolated pod gets its address.
    let Scene { rig, pods, .. } = &scene;
    rig.tell([Told::Gone(Kind::Policies, key("shop", "out"))]);
    rig.settle();
    let outside = &rig.world.outside;
    let talks: Vec<Talk> = outside
        .iter()
        .zip(pods[HOSTILE].addresses)
        .map(|(client, own)| Talk::udp(client, (own, 80).into()))
        .collect();
    assert!(eventually(TIMEOUT, || talks.iter().all(Talk::goes)));
    rig.tell([Told::Gone(Kind::Pods, key("shop", "hostile"))]);
    rig.del(&pods[HOSTILE]);
    rig.world.node.sh("rm /var/lib/cni/networks/pods/last_reserved_ip.*").unwrap();
    let heir = Pod { labels: labels(&[("app", "victim")]), ..object("vault", "heir") };
    rig.tell([Told::Pod(heir)]);
    let heir = rig.add("vault", "heir");
    assert_eq!(heir.addresses, pods[HOSTILE].addresses);
    let is_released = || {
        let report = rig.report();
        report.waiting == 0 && report.is_good() && report.isolated == 4
    };
    // Its release ends all flows of the flood.
    assert!(eventually(10 * TIMEOUT, is_released), "{:?}", rig.report());
    assert!(!talks.iter().any(Talk::goes), "a flow of the earlier pod");
    try_all("the heir", &[(&from(&pods[ALLY].pod), "udp", heir.addresses, PORT, true)]);
}
