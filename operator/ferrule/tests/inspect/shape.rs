//! `ferrule shape`: the kernel has the new limits, CHECK and `ferrule check` agree, and DEL leaves nothing.

use cni_lab::Place as _;
use cni_lab::testing::Origin;
use cni_runner::Network;
use serde_json::{Value, json};

use crate::fixture::{Fixture, network};

/// The rates of the root qdiscs in bit/s: those of the veths and those of the IFBs.
fn rates(f: &Fixture) -> (Vec<u64>, Vec<u64>) {
    let of = |kind: &str| -> Vec<u64> {
        let script = format!("ip -o link show type {kind} | sed 's/^[0-9]*: //; s/[@:].*//'");
        let links = f.node.sh(&script).unwrap();
        let rate = |link: &str| {
            let list: Value =
                serde_json::from_str(&f.node.sh(&format!("tc -j qdisc show dev {link} root")).unwrap())
                    .unwrap();
            // tc counts bytes.
            Some(list[0]["options"]["rate"].as_u64()? * 8)
        };
        links.lines().filter_map(rate).collect()
    };
    (of("veth"), of("ifb"))
}

fn alias(f: &Fixture) -> String {
    f.node.sh("cat /sys/class/net/veth*/ifalias").unwrap().trim().to_owned()
}

#[test]
fn a_running_container_gets_other_limits() {
    let f = Fixture::new();
    let name = "inspect-shaped-with-a-long-name";
    for origin in [Origin::Ours, Origin::Reference] {
        let before = f.node.sh("ip -o link show type ifb").unwrap();
        let container = f.add(origin, name, 18390);
        let network = network(origin);
        let check = |is_sound: bool| {
            let checked = f.runtime(Origin::Ours).check(&network, &container.attachment);
            assert_eq!(checked.is_ok(), is_sound, "{origin:?}: {checked:?}");
        };
        assert_eq!(rates(&f), (vec![80_000_000], vec![40_000_000]));
        let said = f.says(&format!("shape shop/pod-{name} --ingress 10M --egress 20Mi"));
        assert!(said.contains("ingress 10Mbit/s, egress 20971520bit/s"), "{said}");
        assert_eq!(rates(&f), (vec![10_000_000], vec![20_971_520]));
        assert_eq!(alias(&f), "bandwidth ingress=10000000 egress=20971520");
        check(true);
        container.pod.sh("ping -c 1 -W 5 $(ip route show default | awk '{print $3}')").unwrap();
        // The other direction stays.
        f.says(&format!("shape {} --egress 3M", &name[..14]));
        assert_eq!(rates(&f), (vec![10_000_000], vec![3_000_000]));
        check(true);
        // Another program sets the configured rate again.
        f.node.sh("tc qdisc change dev $(basename $(ls -d /sys/class/net/veth*)) root handle 1: tbf rate 80mbit burst 1mb limit 1250000").unwrap();
        check(false);
        f.says(&format!("shape {name} --ingress 10M"));
        check(true);
        f.says(&format!("shape {name} --ingress none --egress none"));
        assert_eq!((rates(&f), alias(&f).as_str()), ((vec![80_000_000], vec![40_000_000]), ""));
        check(true);
        f.says(&format!("shape {name} --egress 5M"));
        // The runtime's DEL, with the plugins that have made the container, knows only the configuration.
        f.runtime(origin).del(&network, &container.attachment).unwrap();
        assert_eq!(f.node.sh("ip -o link show type ifb; ip -o link show type veth").unwrap(), before);
        let gone = f.run(&format!("shape {name} --egress 5M"));
        assert!(
            !gone.status.success() && String::from_utf8_lossy(&gone.stderr).contains("no running container")
        );
        container.pod.delete().unwrap();
    }
}

/// The configuration has no limit, so the result has no IFB.
#[test]
fn a_container_without_limits_gets_some() {
    let f = Fixture::new();
    let network = |keys: Value| {
        let mut bandwidth = json!({"type": "bandwidth", "ingressLatency": 10});
        bandwidth.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        let bridge = json!({"type": "bridge", "bridge": "br-shape", "isGateway": true,
            "ipam": {"type": "host-local", "subnet": "10.213.7.0/24"}});
        Network::from_value(&json!({"name": "shape", "cniVersion": "1.1.0", "plugins": [bridge, bandwidth]}))
            .unwrap()
    };
    let container =
        f.add_to(Origin::Ours, &network(json!({})), "inspect-unshaped", |pod| pod.attachment("eth0"));
    let check = || f.runtime(Origin::Ours).check(&network(json!({})), &container.attachment);
    let free = f.node.sh("ip -o link show type ifb").unwrap();
    f.says("shape inspect-unshaped --ingress 8M --egress 4M");
    assert_eq!(rates(&f), (vec![8_000_000], vec![4_000_000]));
    let qdisc = f.node.sh("tc qdisc show | grep 'tbf 1: .*rate 8Mbit'").unwrap();
    assert!(qdisc.contains("lat 10ms"), "{qdisc}");
    check().unwrap();
    f.node
        .sh("ip link del $(ip -o link show type ifb | sed 's/^[0-9]*: //; s/[@:].*//' | grep ^bwp)")
        .unwrap();
    check().unwrap_err();
    f.says("shape inspect-unshaped --egress 4M");
    check().unwrap();
    f.says("shape inspect-unshaped --egress none");
    assert_eq!(rates(&f), (vec![8_000_000], vec![]));
    assert!(!f.node.sh("tc qdisc show").unwrap().contains("ingress ffff:"));
    check().unwrap();
    // An alias of another program stays.
    f.says("shape inspect-unshaped --ingress none");
    f.node.sh("ip link set $(basename $(ls -d /sys/class/net/veth*)) alias uplink").unwrap();
    let refused = f.run("shape inspect-unshaped --ingress 8M");
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("has the alias of another program: \"uplink\"")
    );
    assert_eq!((rates(&f).0, alias(&f).as_str()), (vec![], "uplink"));
    f.node.sh("ip link set $(basename $(ls -d /sys/class/net/veth*)) alias ''").unwrap();
    f.says("shape inspect-unshaped --ingress 8M --egress 4M");
    f.runtime(Origin::Ours).del(&network(json!({})), &container.attachment).unwrap();
    assert_eq!(f.node.sh("ip -o link show type ifb").unwrap(), free);
}
