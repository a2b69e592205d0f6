//! ADDs on all nodes at once, while daemons and API server come and go.

use std::thread::{scope, sleep};
use std::time::Duration;

use cni_lab::testing::Random;
use serde_json::{Value, json};

use crate::lab::{Lan, Member, assert_unique, network};

const PODS: usize = 16;

/// As many addresses as pods. Each creation and deletion that is a third one loses its answer.
#[test]
fn no_address_is_given_twice_and_none_is_lost() {
    let lan = Lan::new();
    let members = ["a", "b", "c"].map(|name| lan.member(name));
    let net = network(
        "net",
        json!([[{"subnet": "10.20.0.0/24", "rangeStart": "10.20.0.8", "rangeEnd": "10.20.0.55"}]]),
        4,
    );
    lan.server.faults(|faults| faults.lost = Some(("create", 3)));
    let ips = while_all_restart(&lan, &members, || {
        let pods = members.iter().flat_map(|member| (0..PODS).map(move |pod| (member, format!("pod{pod}"))));
        add_at_once(&net, pods)
    });
    assert_eq!(ips.len(), 3 * PODS);
    assert_unique(&ips);

    // All pods end. Then one node gets every address.
    lan.server.faults(|faults| faults.lost = Some(("delete", 3)));
    for member in &members {
        (0..PODS).for_each(|pod| member.del(&net, &format!("pod{pod}")));
    }
    let again = add_at_once(&net, (0..3 * PODS).map(|pod| (&members[0], format!("again{pod}"))));
    assert_unique(&again);
    assert_eq!(lan.blocks_of("a").len(), 3 * PODS / 4);
}

/// The addresses of all pods.
fn add_at_once<'m>(net: &Value, pods: impl Iterator<Item = (&'m Member, String)>) -> Vec<String> {
    scope(|scope| {
        let adds: Vec<_> =
            pods.map(|(member, pod)| scope.spawn(move || member.add_until(net, &pod))).collect();
        adds.into_iter().flat_map(|add| add.join().unwrap()).collect()
    })
}

/// Kills daemons, and now and then the API server, at random points of the work.
fn while_all_restart<T: Send>(lan: &Lan, members: &[Member; 3], work: impl FnOnce() -> T + Send) -> T {
    let mut random = Random::seeded();
    let mut pause = || sleep(Duration::from_millis(random.below(400) as u64));
    scope(|scope| {
        let work = scope.spawn(work);
        for round in 0.. {
            pause();
            if work.is_finished() {
                break;
            }
            match members.get(round % 4) {
                Some(member) => {
                    member.kill();
                    member.start();
                }
                None => {
                    lan.server.kill();
                    pause();
                    lan.server.revive();
                }
            }
        }
        work.join().unwrap()
    })
}
