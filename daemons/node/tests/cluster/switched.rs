//! NetworkPolicies are switched on and off under live pods: only denied flows end, and no pod stays behind a table without an owner.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use cni_lab::Pod;
use cni_lab::testing::{ask, silent, udp_socket};
use serde_json::json;

use crate::lab::{Cluster, PORT, wait};
use crate::policies::{Over, until};

const OFF: &str = "--main ptp";
const ON: &str = "--policy on --main ptp";
/// A packet without an answer after this time is lost.
const LOST: Duration = Duration::from_secs(10);

/// Asks in turns, one packet at a time. None may be lost.
fn talk(sockets: &[UdpSocket], [answers, lost]: &[AtomicUsize; 2], is_over: &AtomicBool) {
    sockets.iter().for_each(|socket| socket.set_read_timeout(Some(LOST)).unwrap());
    for socket in sockets.iter().cycle() {
        if is_over.load(Relaxed) {
            return;
        }
        let is_answered = socket.send(b"?").and_then(|_| socket.recv(&mut [0; 64])).is_ok();
        let count = if is_answered { answers } else { lost };
        count.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn policies_are_switched_on_and_off_under_live_pods() {
    let mut cluster = Cluster::new();
    cluster.namespace("shop", &json!({}));
    let from = json!([{"podSelector": {"matchLabels": {"app": "client"}}}]);
    cluster.policy(&json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": from}]}));
    cluster.a.start(OFF);
    cluster.a.until("a conflist", || cluster.a.conflist().is_some());
    // They are older than the plugin.
    let pods = ["web", "client", "other"].map(|name| {
        let running = cluster.start(&cluster.a, "shop", name);
        cluster.report("shop", name, &running);
        (running.pod, running.addresses)
    });
    let [(_, web), (client, of_client), (other, _)] = &pods;
    let sockets = |from: &Pod, to: &[IpAddr]| -> Vec<UdpSocket> {
        to.iter().map(|ip| udp_socket(from, (*ip, PORT).into())).collect()
    };
    let mut allowed = sockets(client, web);
    allowed.extend(sockets(other, of_client));
    let (counts, is_over) = ([const { AtomicUsize::new(0) }; 2], AtomicBool::new(false));
    let of = |ip: &IpAddr| SocketAddr::new(*ip, PORT);
    let is_open =
        || web.iter().all(|ip| ["tcp", "udp"].iter().all(|proto| ask(other, proto, of(ip)).is_ok()));
    let is_closed = || web.iter().all(|ip| ["tcp", "udp"].iter().all(|proto| silent(other, proto, of(ip))));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| talk(&allowed, &counts, &is_over));
        let goes_on = |what: &str| {
            let before = counts[0].load(Relaxed);
            wait(what, || counts[0].load(Relaxed), |now| *now > before + 10);
            assert_eq!(counts[1].load(Relaxed), 0, "{what}: packets are lost");
        };
        assert!(is_open());
        for round in 0..2 {
            cluster.a.end("TERM");
            cluster.a.start(ON);
            until(&cluster.a, 0, 2);
            assert!(is_closed(), "round {round}");
            goes_on("on");
            cluster.a.end("TERM");
            cluster.a.start(OFF);
            cluster.a.until("off", || !cluster.a.sh("nft list tables").contains("ferrule_po"));
            assert!(is_open(), "round {round}");
            goes_on("off");
        }
        cluster.a.end("KILL");
        cluster.a.start(ON);
        until(&cluster.a, 0, 2);
        assert!(is_closed());
        cluster.a.end("KILL");
        assert!(is_closed(), "the table of the ended daemon holds");
        // As under a release that does not know the table.
        let by_hand =
            include_str!("../../../../docs/operate.md").lines().find(|line| line.starts_with("nft 'add"));
        cluster.a.sh(by_hand.unwrap());
        assert!(is_open(), "by hand");
        cluster.a.start(ON);
        until(&cluster.a, 0, 2);
        assert!(is_closed());
        cluster.a.end("TERM");
        let said = cluster.a.run("cleanup");
        let said = String::from_utf8_lossy(&said.stdout).into_owned();
        assert!(said.contains("table inet ferrule_policy") && is_open(), "{said}");
        goes_on("cleaned up");
        assert!(!cluster.a.sh("nft list tables").contains("ferrule_po"));
    });
}
