//! Our program and the reference's use one store alternately. Each step is compared with a model of the
//! reservations.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::collections::BTreeMap;

use cni_lab::testing::{Expect as _, Random};
use common::{Net, OURS, go};
use serde_json::json;

const STEPS: usize = 200;

#[test]
fn random_steps_of_both_programs() {
    let mut random = Random::seeded();
    // Small ranges, so that they are sometimes full.
    let net = Net::new(json!([[{ "subnet": "10.0.0.0/28" }], [{ "subnet": "fd00::/124" }]]));
    let mut model: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for step in 0..STEPS {
        let id = format!("c{}", random.below(16));
        let program = [OURS, go()][random.below(2)];
        let what = format!("step {step}: {program} {id}");
        match random.below(10) {
            0..5 => {
                let outcome = net.exec(program, "ADD", &id, "eth0").run().unwrap();
                // The reference's error objects have no cniVersion, so they are not valid ones.
                let refused = |text: &str| !outcome.success() && outcome.stdout_text().contains(text);
                if model.contains_key(&id) {
                    assert!(refused("duplicate allocation is not allowed"), "{what}");
                } else if model.len() == 13 {
                    assert!(refused("no IP addresses available in range set: "), "{what}");
                } else {
                    let ips = outcome.ips();
                    assert!(!model.values().flatten().any(|ip| ips.contains(ip)), "{what}: {ips:?}");
                    model.insert(id, ips);
                }
            }
            5..8 => {
                net.exec(program, "DEL", &id, "eth0").run().unwrap().ok();
                model.remove(&id);
            }
            _ => {
                let ips = model.get(&id).cloned();
                let outcome = net.check(program, &id, &ips.clone().unwrap_or_default());
                assert_eq!(outcome.success(), ips.is_some(), "{what}: {outcome:?}");
            }
        }
        let expected: BTreeMap<String, String> = model
            .iter()
            .flat_map(|(id, ips)| ips.iter().map(move |ip| (ip.clone(), format!("{id}\r\neth0"))))
            .collect();
        assert_eq!(net.reservations(), expected, "{what}");
    }
    for (i, id) in model.keys().enumerate() {
        net.exec([OURS, go()][i % 2], "DEL", id, "eth0").run().unwrap().ok();
    }
    assert!(net.reservations().is_empty());
}
