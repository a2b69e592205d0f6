//! A runtime that has lost patience kills the plugin with SIGKILL, at any moment. A DEL or a GC after that removes everything.
//! They need `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::{Lab, Stub, after, config, host_local, overlay, ports, try_link, unchanged};
use conformance::fixture::{Moment, PATIENCE, Place as _, Pod, Snapshot, eventually};
use conformance::runner::Attachment;
use serde_json::{Value, json};

fn conf() -> Value {
    let ipam = host_local(&["10.1.0.0/24", "fd00:1::/64"]);
    config("1.0.0", &json!({"isDefaultGateway": true, "ipMasq": true, "ipam": ipam}))
}

/// The moments of a call, which is made for that.
fn moments(lab: &Lab, verb: &str, pod: &Pod, conf: &Value) -> Vec<Moment> {
    let exec = lab.exec(verb, &pod.attachment("eth0"), conf);
    Moment::all(&lab.node, &exec).unwrap()
}

fn kill(lab: &Lab, verb: &str, pod: &Pod, conf: &Value, moment: &Moment) {
    let exec = lab.exec(verb, &pod.attachment("eth0"), conf);
    moment.kill(&lab.node, &exec).unwrap();
}

/// A node where everything shared is there already, so that nothing at all may be different afterwards.
fn lab() -> (Lab, Snapshot) {
    let lab = Lab::new();
    lab.add(&lab.pod("first").attachment("eth0"), &conf());
    let before = lab.snapshot();
    (lab, before)
}

#[test]
fn add_killed_at_any_moment() {
    let (lab, before) = lab();
    let measured = lab.pod("measured");
    let moments = moments(&lab, "ADD", &measured, &conf());
    lab.del(&measured.attachment("eth0"), &conf());
    for (moment, is_pod_gone) in moments.iter().flat_map(|moment| [(moment, false), (moment, true)]) {
        let pod = lab.pod("killed");
        kill(&lab, "ADD", &pod, &conf(), moment);
        let attachment = pod.attachment("eth0");
        if is_pod_gone {
            // The namespace goes with its pod, and what was in it.
            pod.delete().unwrap();
        }
        lab.del(&attachment, &conf());
        if !is_pod_gone {
            assert!(try_link(&pod, "eth0").is_none(), "killed {moment}");
            pod.delete().unwrap();
        }
        assert!(eventually(PATIENCE, || ports(&lab.node, "br0").len() == 1), "killed {moment}");
        assert_eq!(lab.reservations().len(), 2, "killed {moment}");
        let rules = lab.node.sh("nft list ruleset").unwrap();
        assert!(!rules.contains("killed"), "killed {moment}\n{rules}");
    }
    after(&lab, &before, "killed ADDs");
}

#[test]
fn a_killed_add_can_be_tried_again_after_del() {
    let (lab, _) = lab();
    let pod = lab.pod("again");
    let attachment = pod.attachment("eth0");
    let moments = moments(&lab, "ADD", &pod, &conf());
    lab.del(&attachment, &conf());
    for moment in moments {
        kill(&lab, "ADD", &pod, &conf(), &moment);
        lab.del(&attachment, &conf());
        lab.add(&attachment, &conf());
        pod.sh("ping -c 1 -W 2 10.1.0.1").unwrap();
        lab.del(&attachment, &conf());
    }
}

/// The first ADD of all, when the bridge is being made: whatever state it is left in, the next ADD goes on from there.
#[test]
fn the_first_add_killed_at_any_moment() {
    let measured = Lab::new();
    for moment in moments(&measured, "ADD", &measured.pod("first"), &conf()) {
        let lab = Lab::new();
        let pod = lab.pod("first");
        kill(&lab, "ADD", &pod, &conf(), &moment);
        lab.del(&pod.attachment("eth0"), &conf());
        let result = lab.add(&pod.attachment("eth0"), &conf());
        pod.sh("ping -c 1 -W 2 10.1.0.1 && ping -6 -c 1 -W 2 fd00:1::1").unwrap();
        lab.check(&pod.attachment("eth0"), &common::with_prev(&conf(), &result));
    }
}

#[test]
fn del_killed_at_any_moment() {
    let (lab, before) = lab();
    let measured = lab.pod("measured");
    lab.add(&measured.attachment("eth0"), &conf());
    for moment in moments(&lab, "DEL", &measured, &conf()) {
        let pod = lab.pod("killed");
        lab.add(&pod.attachment("eth0"), &conf());
        kill(&lab, "DEL", &pod, &conf(), &moment);
        lab.del(&pod.attachment("eth0"), &conf());
        assert!(try_link(&pod, "eth0").is_none(), "killed {moment}");
        assert_eq!((ports(&lab.node, "br0").len(), lab.reservations().len()), (1, 2), "killed {moment}");
        pod.delete().unwrap();
    }
    after(&lab, &before, "killed DELs");
}

/// The DEL never comes: the pod is gone, and GC finds what the killed call left.
#[test]
fn gc_after_an_add_or_del_killed_at_any_moment() {
    let (lab, before) = lab();
    let valid = json!({"cniVersion": "1.1.0",
        "cni.dev/valid-attachments": [{"containerID": "first", "ifname": "eth0"}]});
    let measured = lab.pod("measured");
    for (verb, moments) in ["ADD", "DEL"].map(|verb| (verb, moments(&lab, verb, &measured, &conf()))) {
        for moment in moments {
            let pod = lab.pod("lost");
            if verb == "DEL" {
                lab.add(&pod.attachment("eth0"), &conf());
            }
            kill(&lab, verb, &pod, &conf(), &moment);
            pod.delete().unwrap();
            lab.succeed("GC", &Attachment::default(), &overlay(&conf(), &valid));
            assert!(eventually(PATIENCE, || ports(&lab.node, "br0").len() == 1), "{verb} killed {moment}");
            assert_eq!(lab.reservations().len(), 2, "{verb} killed {moment}");
            let rules = lab.node.sh("nft list ruleset").unwrap();
            assert!(!rules.contains("lost"), "{verb} killed {moment}\n{rules}");
        }
    }
    after(&lab, &before, "GC after killed calls");
}

/// IPAM as a process of its own works on when bridge is killed: the order of the steps is such that the DEL finds what
/// there is.
#[test]
fn killed_while_ipam_works() {
    let stub = Stub::assigning("1.0.0", &["10.1.0.2/24"]);
    let lab = Lab::with_stub(&stub);
    let conf = config("1.0.0", &json!({"isGateway": true, "ipMasq": true, "ipam": {"type": "stub"}}));
    lab.add(&lab.pod("first").attachment("eth0"), &conf);
    let before = lab.snapshot();
    // Long enough to be at work when bridge is killed before it waits for the answer.
    stub.answer(
        "ADD",
        "sleep 0.1; echo '{\"cniVersion\": \"1.0.0\", \"ips\": [{\"address\": \"10.1.0.3/24\"}]}'",
    );
    let pod = lab.pod("slow");
    let moments = moments(&lab, "ADD", &pod, &conf);
    lab.del(&pod.attachment("eth0"), &conf);
    let mut orphans = 0;
    for moment in moments {
        stub.calls();
        kill(&lab, "ADD", &pod, &conf, &moment);
        orphans += usize::from(stub.calls() == ["ADD"]);
        lab.del(&pod.attachment("eth0"), &conf);
        assert_eq!(stub.calls(), ["DEL"], "killed {moment}");
        unchanged(&lab.node, &before, &format!("killed {moment}"));
    }
    assert!(orphans > 0, "the IPAM plugin has never been called");
}
