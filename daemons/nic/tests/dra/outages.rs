//! The API server is away, slow, silent, or refuses; the kubelet and the daemon restart.

use std::fs;
use std::time::{Duration, Instant};

use ferrule_fake_kubelet::DraRelease;
use serde_json::json;

use crate::cluster::{Cluster, DRIVER};

#[test]
fn the_api_server_is_away_and_comes_back() {
    let cluster = Cluster::new();
    cluster.api.kill();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.claim("c1", &[("nic", "eth1")], None);
    assert!(cluster.prepare(&kubelet, &["c1"])[0].contains("the API server"), "{}", cluster.log());
    assert_eq!(cluster.record("c1"), None);
    cluster.says("the ResourceSlices: ");
    cluster.api.revive();
    cluster.published("eth1 eth2");
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    cluster.api.kill();
    // A pod ends without the API server.
    cluster.unprepare(&kubelet, &["c1"]);
    assert_eq!(cluster.record("c1"), None);
    cluster.sh("ip link del eth2");
    cluster.api.revive();
    cluster.published("eth1");
}

#[test]
fn a_slow_api_server_and_refusals() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.published("eth1 eth2");
    cluster.claim("c1", &[("nic", "eth1")], None);
    cluster.api.faults(|faults| faults.delay = Duration::from_secs(2));
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    cluster.api.faults(|faults| {
        faults.delay = Duration::ZERO;
        faults.code = Some(401);
    });
    assert!(cluster.prepare(&kubelet, &["c1"])[0].contains("(401)"));
    cluster.api.faults(|faults| faults.code = None);
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
}

#[test]
fn a_silent_api_server_does_not_hold_the_kubelet_up() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let _daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    // The driver asks for eight at once. The ninth has the remaining 15 seconds.
    let uids = ["c1", "c2", "c3", "c4", "c5", "c6", "c7", "c8", "c9"];
    uids.iter().for_each(|uid| cluster.claim(uid, &[("nic", "eth1")], None));
    cluster.api.faults(|faults| faults.hang = true);
    let began = Instant::now();
    let outcomes = cluster.prepare(&kubelet, &uids);
    assert!(began.elapsed() < Duration::from_secs(45), "the kubelet would have given up");
    for (uid, outcome) in uids.iter().zip(outcomes) {
        let why = if *uid == "c9" {
            "not prepared within 35 s"
        } else {
            "the API server has not answered for 20 s"
        };
        assert_eq!(outcome, why, "{uid}");
        assert_eq!(cluster.record(uid), None);
    }
}

#[test]
fn restarts_of_the_kubelet_and_of_the_daemon() {
    let cluster = Cluster::new();
    let mut kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    let mut daemon = cluster.daemon("");
    cluster.registered(&kubelet, 1);
    cluster.claim("c1", &[("nic", "eth1")], None);
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    // The kubelet deletes the slices at its start, and calls prepare again if it has not kept its answer.
    drop(kubelet);
    kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    cluster.wipe();
    cluster.registered(&kubelet, 1);
    cluster.published("eth1 eth2");
    assert_eq!(cluster.prepare(&kubelet, &["c1"]), ["nic=eth1"]);
    // A killed daemon leaves its sockets; the next one removes them.
    for signal in ["KILL", "TERM"] {
        let former = kubelet.plugins(DRIVER);
        daemon.end(signal);
        daemon = cluster.daemon("");
        cluster.until("replaced", || {
            let plugins = kubelet.plugins(DRIVER);
            plugins.len() == 1 && plugins != former
        });
        assert_eq!(fs::read_dir(cluster.path("kubelet/plugins_registry")).unwrap().count(), 1);
        assert!(cluster.record("c1").is_some(), "the record is lost");
    }
    // The sockets are deleted, then the folders.
    let instance = kubelet.plugins(DRIVER)[0].clone();
    fs::remove_file(&instance.endpoint).unwrap();
    cluster.until("made again", || instance.endpoint.exists());
    cluster.registered(&kubelet, 1);
    cluster.until("callable", || kubelet.prepare(DRIVER, &[("shop", "c1", "c1")]).is_ok());
    drop(kubelet);
    fs::remove_dir_all(cluster.path("kubelet/plugins")).unwrap();
    fs::remove_dir_all(cluster.path("kubelet/plugins_registry")).unwrap();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_37);
    cluster.registered(&kubelet, 1);
    cluster.unprepare(&kubelet, &["c1"]);
    assert_eq!(cluster.record("c1"), None);
    // Another configuration.
    cluster.configure("dra: {selectors: {ifNames: [eth2]}}");
    daemon.signal("HUP");
    cluster.published("eth2");
    cluster.registered(&kubelet, 1);
}

#[test]
fn a_write_that_is_killed_leaves_a_record_or_none() {
    let cluster = Cluster::new();
    let kubelet = cluster.dra_kubelet(DraRelease::V1_34);
    cluster.claim("c1", &[("nic", "eth1")], None);
    let calls = [("mkdir", 6), ("fsync", 3), ("rename", 2), ("unlink", 4), ("rmdir", 1)];
    for (call, most) in calls {
        let mut fired = 0;
        for nth in 1..=most {
            let kill = format!(
                "strace -D -f -qq -o /dev/null -e trace={call} -e inject={call}:signal=KILL:when={nth}"
            );
            let mut victim = cluster.node_daemon(&kill);
            cluster.until("registered or killed", || {
                !kubelet.plugins(DRIVER).is_empty() || !victim.is_running()
            });
            let prepared = kubelet.prepare(DRIVER, &[("shop", "c1", "c1")]);
            if let Some(record) = cluster.record("c1") {
                assert_eq!(record["devices"][0]["device"], json!("eth1"), "{call} {nth}");
            }
            let unprepared = kubelet.unprepare(DRIVER, &[("shop", "c1", "c1")]);
            fired += u32::from(prepared.is_err() || unprepared.is_err());
            victim.end("KILL");
            let mut next = cluster.daemon("");
            cluster.until("called", || kubelet.prepare(DRIVER, &[("shop", "c1", "c1")]).is_ok());
            assert!(cluster.record("c1").is_some(), "{call} {nth}");
            cluster.unprepare(&kubelet, &["c1"]);
            let left = fs::read_dir(cluster.path("data/dra")).unwrap().count();
            assert_eq!(left, 0, "{call} {nth}: something is left");
            next.end("TERM");
            cluster.registered(&kubelet, 0);
        }
        println!("{call}: {fired} kills of {most}");
        assert!(fired > 0, "{call}");
    }
}
