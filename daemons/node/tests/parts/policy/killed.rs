//! The thread that enforces is killed before each of its requests and changes of files.

use std::collections::{BTreeMap, BTreeSet};
use std::env;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use cni_lab::testing::{Random, ask};
use cni_lab::{Place, TIMEOUT, eventually};
use ferrule_kernel::ip::octets;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element};
use ferrule_node::policy::objects::channel;
use ferrule_node::policy::{How, spawn};
use ferrule_node_policy::model::{NetworkPolicy, Rule};
use ferrule_policy_kit::isolated::PATH;
use ferrule_policy_kit::table;
use tokio::sync::watch;

use super::rig::{Rig, Started, number, object, pods, policy, with_addresses};

/// Makes the process the daemon. Its value has the addresses that the API knows: of the client, and perhaps of the server.
const DAEMON: &str = "FERRULE_POLICY_DAEMON";
/// Set: kill at each point, not only at some.
const ALL: &str = "FERRULE_POLICY_ALL_KILLS";
const USUAL_STEP: usize = 10;
const TEST: &str = "policy::killed::a_thread_that_is_killed_at_any_point";
/// System calls whose effect others can see.
const VISIBLE: &str = "sendto,sendmsg,fsync,rename,renameat,renameat2";
const TICK: Duration = Duration::from_millis(1);
const PORT: u16 = 7000;

fn closed() -> NetworkPolicy {
    NetworkPolicy {
        types: vec!["Ingress".into(), "Egress".into()],
        ingress: vec![Rule { peers: vec![pods(&[("app", "client")])], ports: vec![number("TCP", 80)] }],
        ..policy("shop", "web", "web")
    }
}

/// Enforces until the pod is decided.
fn daemon(known: &str) {
    let addresses: Vec<IpAddr> = known.split(' ').map(|ip| ip.parse().unwrap()).collect();
    let mut pods = ["client", "web"].map(|name| object("shop", name));
    for (pod, addresses) in pods.iter_mut().zip(addresses.chunks(2)) {
        *pod = with_addresses(pod.clone(), addresses.try_into().unwrap());
    }
    let (sender, receiver) = channel();
    let how = How { path: PATH.into(), ..How::default() };
    let handle = spawn(how, receiver, watch::channel(BTreeSet::new()).1).unwrap();
    for told in Rig::lists(&["shop"], &[closed()], &pods) {
        sender.blocking_send(told).unwrap();
    }
    let is_done = || {
        let report = handle.report.borrow();
        report.is_good() && report.waiting == 0 && report.isolated == 2
    };
    assert!(eventually(TIMEOUT, is_done), "{:?}", handle.report.borrow());
    drop(sender);
    handle.join();
}

/// The daemon as a process of the node, below these words. The API knows the addresses of these pods. Returns whether it has done its work.
fn run(rig: &Rig, known: &[&Started], below: &[&str]) -> bool {
    let addresses =
        known.iter().flat_map(|pod| pod.addresses).map(|ip| ip.to_string()).collect::<Vec<_>>().join(" ");
    let own = env::current_exe().unwrap();
    let own = [own.to_str().unwrap(), "--exact", TEST, "--nocapture"];
    let words = [below, &own].concat();
    let output =
        rig.world.node.exec(Command::new(words[0]).args(&words[1..]).env(DAEMON, addresses)).unwrap();
    output.status.success()
}

/// What the plugin does at ADD.
fn announce(rig: &Rig, web: &Started) {
    let elements = |set: &str| {
        let own = web.addresses.iter().filter(move |ip| ip.is_ipv6() == set.ends_with('6'));
        let comment = Some("web shop/web".to_owned());
        own.map(|ip| Element { comment: comment.clone(), ..Element::new(octets(*ip)) }).collect::<Vec<_>>()
    };
    let add = || {
        let mut batch = Batch::new();
        table::establish(&mut batch);
        for set in ["ingress4", "ingress6", "egress4", "egress6"] {
            batch.put_elements(table::TABLE, set, &elements(set));
        }
        batch.commit(&mut Socket::netfilter().unwrap())
    };
    rig.world.node.run(add).unwrap().unwrap();
}

/// Ends the senders, also if an assertion fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

fn bound(place: &impl Place, address: SocketAddr) -> UdpSocket {
    let socket = place.run(|| UdpSocket::bind(address)).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    socket
}

/// The pod and outside send to each other all the time. Nothing may arrive.
#[test]
fn a_thread_that_is_killed_at_any_point() {
    if let Ok(client) = env::var(DAEMON) {
        return daemon(&client);
    }
    let rig = Rig::new();
    rig.start_daemon();
    rig.listed(&["shop"], &[closed()], &[object("shop", "client"), object("shop", "web")]);
    rig.wait_isolated("ferrule-policy 1\nshop both\nend\n");
    let (web, client) = (rig.add("shop", "web"), rig.add("shop", "client"));
    rig.wait("released", |report| report.waiting == 0 && report.is_good() && report.isolated == 2);
    rig.stop_daemon();
    let pairs: Vec<[UdpSocket; 2]> = { rig.world.outside.iter() }
        .zip(web.addresses)
        .map(|(outside, own)| {
            let pair =
                [bound(outside, (outside.address(), PORT).into()), bound(&web.pod, (own, PORT).into())];
            pair[0].connect((own, PORT)).unwrap();
            pair[1].connect((outside.address(), PORT)).unwrap();
            pair
        })
        .collect();
    let (is_over, arrived) = (AtomicBool::new(false), AtomicUsize::new(0));
    let trace = tempfile::NamedTempFile::new().unwrap();
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Relaxed) {
                for socket in pairs.as_flattened() {
                    let _ = socket.send(b"?");
                    while socket.recv(&mut [0; 8]).is_ok() {
                        arrived.fetch_add(1, Relaxed);
                    }
                }
                thread::sleep(TICK);
            }
        });
        let renew = |number: usize| {
            announce(&rig, &web);
            // Each other time it finds the table and the file of an earlier one.
            if number.is_multiple_of(2) {
                let script = format!("rm {PATH}; nft delete table inet ferrule_policy 2>/dev/null || :");
                rig.world.node.sh(&script).unwrap();
            }
        };
        renew(0);
        let path = trace.path().to_str().unwrap();
        assert!(run(
            &rig,
            &[&client],
            &["strace", "-f", "-qq", "-o", path, "-e", &format!("trace={VISIBLE}")]
        ));
        let mut counts = BTreeMap::<String, usize>::new();
        for line in std::fs::read_to_string(path).unwrap().lines() {
            if let Some((name, _)) =
                line.split_once(' ').and_then(|(_, call)| call.trim_start().split_once('('))
            {
                *counts.entry(name.to_owned()).or_default() += 1;
            }
        }
        let mut killed = 0;
        let step = if env::var(ALL).is_ok() { 1 } else { USUAL_STEP };
        let first = Random::seeded().below(step);
        let points = counts.iter().flat_map(|(name, count)| (1..=*count).map(move |nth| (name, nth)));
        let points = points.skip(first).step_by(step);
        for (number, (name, nth)) in points.enumerate() {
            renew(number);
            let (calls, inject) = (format!("trace={name}"), format!("inject={name}:signal=KILL:when={nth}"));
            let strace = ["strace", "-f", "-qq", "-o", "/dev/null", "-e", &calls, "-e", &inject];
            killed += usize::from(!run(&rig, &[&client], &strace));
            thread::sleep(5 * TICK);
            assert_eq!(arrived.load(Relaxed), 0, "killed before {name} {nth}");
            // The kill may have come after the release: then only the API tells the address.
            assert!(run(&rig, &[&client, &web], &[]), "after the kill before {name} {nth}");
            assert_eq!((arrived.load(Relaxed), rig.elements("ferrule_pods")), (0, 0), "{name} {nth}");
            for ip in web.addresses {
                ask(&client.pod, "tcp", (ip, 80).into()).unwrap();
            }
        }
        println!("{killed} kills: {counts:?}");
        assert!(killed > 5, "{counts:?}");
        // The control: the senders reach each other without tables.
        rig.world.nft("delete table inet ferrule_policy; delete table inet ferrule_pods");
        assert!(eventually(TIMEOUT, || arrived.load(Relaxed) > 0));
    });
}
