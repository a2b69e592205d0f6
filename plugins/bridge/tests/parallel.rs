//! Many at a time: runtimes start pods in parallel, and containerd even the plugins of one pod.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeSet;
use std::sync::Barrier;
use std::thread;

use common::{Lab, addresses, after, config, flags, host_local, mac, overlay, ports, with_prev};
use conformance::fixture::{Place as _, Pod};
use conformance::runner::{Exec, Output};
use serde_json::{Value, json};

const PODS: usize = 16;

fn conf() -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}))
}

/// Makes all calls at the same moment, and gives back their outcomes in order.
fn together(lab: &Lab, calls: &[Exec]) -> Vec<Output> {
    let start = Barrier::new(calls.len());
    let call = |exec: &Exec| {
        lab.node
            .run(|| {
                start.wait();
                exec.run().unwrap()
            })
            .unwrap()
    };
    thread::scope(|scope| {
        let threads: Vec<_> = calls.iter().map(|exec| scope.spawn(|| call(exec))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

fn succeeded(outputs: &[Output]) {
    for output in outputs {
        assert!(output.success(), "{}{}", output.stdout_text(), output.stderr_text());
    }
}

fn rules(lab: &Lab) -> usize {
    lab.node
        .sh("nft list ruleset")
        .unwrap()
        .lines()
        .filter(|line| line.contains("masquerade comment"))
        .count()
}

#[test]
fn sixteen_pods_come_mix_and_go() {
    let lab = Lab::new();
    let conf = conf();
    let pods: Vec<Pod> = (0..PODS).map(|n| lab.pod(&format!("pod{n}"))).collect();
    let call = |verb: &str, pod: &Pod| lab.exec(verb, &pod.attachment("eth0"), &conf);
    // The table with its base chains stays; so it has to be there before.
    lab.add(
        &lab.pod("warm").attachment("eth0"),
        &overlay(
            &conf,
            &json!({"bridge": "br9", "name": "warm",
        "ipam": host_local(&["10.9.0.0/24"])}),
        ),
    );
    let before = lab.snapshot();

    let all_add: Vec<Exec> = pods.iter().map(|pod| call("ADD", pod)).collect();
    let added = together(&lab, &all_add);
    succeeded(&added);
    let results: Vec<Value> = added.iter().map(|output| output.document().unwrap()).collect();
    let distinct: BTreeSet<String> = pods.iter().flat_map(|pod| addresses(pod, "eth0")).collect();
    assert_eq!(distinct.len(), 2 * PODS, "an address was given out twice");
    assert_eq!((ports(&lab.node, "br0").len(), rules(&lab)), (PODS, 2 * PODS + 1));
    assert_eq!(addresses(&lab.node, "br0"), ["10.1.0.1/24", "fd00:1::1/64"]);
    // All have seen the same bridge, which has kept its address while ports came.
    let bridge = mac(&lab.node, "br0");
    for (pod, result) in pods.iter().zip(&results) {
        assert_eq!(result["interfaces"][0]["mac"], bridge);
        lab.check(&pod.attachment("eth0"), &with_prev(&conf, result));
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 fd00:1::1").unwrap();
    }

    for _ in 0..2 {
        let (leaving, staying) = pods.split_at(PODS / 2);
        let away: Vec<Exec> = leaving.iter().map(|pod| call("DEL", pod)).collect();
        succeeded(&together(&lab, &away));
        // Now the ones come while the others go.
        let coming = leaving.iter().map(|pod| call("ADD", pod));
        let mixed: Vec<Exec> =
            coming.zip(staying.iter().map(|pod| call("DEL", pod))).flat_map(|(a, b)| [a, b]).collect();
        succeeded(&together(&lab, &mixed));
        assert_eq!((ports(&lab.node, "br0").len(), rules(&lab)), (PODS / 2, PODS + 1));
        assert_eq!(lab.reservations().len(), PODS);
        let back: Vec<Exec> = staying.iter().map(|pod| call("ADD", pod)).collect();
        succeeded(&together(&lab, &back));
        let distinct: BTreeSet<String> = pods.iter().flat_map(|pod| addresses(pod, "eth0")).collect();
        assert_eq!(distinct.len(), 2 * PODS, "an address was given out twice");
    }

    let all_del: Vec<Exec> = pods.iter().map(|pod| call("DEL", pod)).collect();
    succeeded(&together(&lab, &all_del));
    assert!(lab.reservations().is_empty() && ports(&lab.node, "br0").is_empty());
    after(&lab, &before, "sixteen pods");
}

/// The moment that matters: nothing is there yet, neither bridge nor table.
#[test]
fn first_adds_at_the_same_time() {
    for _ in 0..5 {
        let lab = Lab::new();
        let pods: Vec<Pod> = (0..8).map(|n| lab.pod(&format!("pod{n}"))).collect();
        let calls: Vec<Exec> =
            pods.iter().map(|pod| lab.exec("ADD", &pod.attachment("eth0"), &conf())).collect();
        let outputs = together(&lab, &calls);
        succeeded(&outputs);
        assert_eq!((ports(&lab.node, "br0").len(), rules(&lab)), (8, 16));
        let bridge = mac(&lab.node, "br0");
        for (pod, output) in pods.iter().zip(&outputs) {
            assert_eq!(output.document().unwrap()["interfaces"][0]["mac"], bridge);
            pod.sh("ping -6 -c 1 -W 2 fd00:1::1").unwrap();
        }
        assert!(flags(&lab.node, "br0").contains(&"UP".to_owned()));
    }
}

/// On a bridge that is there but has no address yet all see that it is missing, and all add it.
#[test]
fn first_gateways_at_the_same_time() {
    let lab = Lab::new();
    let pods: Vec<Pod> = (0..PODS).map(|n| lab.pod(&format!("pod{n}"))).collect();
    let calls = |verb: &str| -> Vec<Exec> {
        pods.iter().map(|pod| lab.exec(verb, &pod.attachment("eth0"), &conf())).collect()
    };
    lab.node.sh("ip link add br0 type bridge && ip link set br0 up").unwrap();
    for _ in 0..5 {
        lab.node.sh("ip address flush dev br0 scope global").unwrap();
        succeeded(&together(&lab, &calls("ADD")));
        assert_eq!(addresses(&lab.node, "br0"), ["10.1.0.1/24", "fd00:1::1/64"]);
        succeeded(&together(&lab, &calls("DEL")));
    }
}

/// One DEL is enough, but a runtime that restarts sends more.
#[test]
fn dels_of_one_attachment_at_the_same_time() {
    let lab = Lab::new();
    let pod = lab.pod("pod1");
    lab.add(&lab.pod("other").attachment("eth0"), &conf());
    let before = lab.snapshot();
    for _ in 0..5 {
        lab.add(&pod.attachment("eth0"), &conf());
        let calls: Vec<Exec> = (0..6).map(|_| lab.exec("DEL", &pod.attachment("eth0"), &conf())).collect();
        succeeded(&together(&lab, &calls));
        after(&lab, &before, "several DELs");
    }
}

/// containerd starts loopback and the network of a pod together, in one namespace; this does eth0, eth1 and lo.
#[test]
fn the_interfaces_of_one_pod_at_the_same_time() {
    let lab = Lab::new();
    let second = overlay(
        &conf(),
        &json!({"name": "second", "bridge": "br1", "isDefaultGateway": false, "isGateway": true,
            "ipam": host_local(&["10.2.0.0/24", "fd00:2::/64"])}),
    );
    let loopback = json!({"cniVersion": "1.0.0", "name": "cni-loopback", "type": "loopback"});
    for round in 0..10 {
        let pod = lab.pod(&format!("pod{round}"));
        let calls = |verb: &str| {
            let mut lo = lab.exec(verb, &pod.attachment("lo"), &loopback);
            lo.binary = lab.bins.join("loopback");
            [
                lo,
                lab.exec(verb, &pod.attachment("eth0"), &conf()),
                lab.exec(verb, &pod.attachment("eth1"), &second),
            ]
        };
        let outputs = together(&lab, &calls("ADD"));
        succeeded(&outputs);
        assert!(flags(&pod, "lo").contains(&"UP".to_owned()));
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -c 1 -W 2 10.2.0.1 && ping -6 -c 1 -W 2 fd00:2::1").unwrap();
        let first = outputs[1].document().unwrap();
        lab.check(&pod.attachment("eth0"), &with_prev(&conf(), &first));
        succeeded(&together(&lab, &calls("DEL")));
        assert!(ports(&lab.node, "br0").is_empty() && ports(&lab.node, "br1").is_empty());
    }
    assert!(lab.reservations().is_empty() && rules(&lab) == 0);
}
