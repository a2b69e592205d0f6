//! Each chain of two to five of our chained plugins in each order, with each key that changes a link, behind a bridge or ptp. No plugin's CHECK may depend on what a
//! later one has changed, and frames of the final MTU pass.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use cni_lab::testing::Random;
use cni_lab::{Node, Place as _, bin_dir};
use cni_runner::Network;
use serde_json::{Value, json};

/// The chains of a run, of some 1900. `FERRULE_CHAINS` sets another number.
const SAMPLE: usize = 60;
const SAMPLE_WITH_VRF: usize = 15;
/// The plugins that run on any kernel.
const PLUGINS: [&str; 5] = ["tuning", "bandwidth", "portmap", "firewall", "sbr"];
/// The MTU of a veth.
const MTU: u64 = 1500;

/// The keys of tuning, one chain for each.
fn tunings() -> Vec<Value> {
    vec![
        json!({"mtu": 1400}),
        json!({"mtu": 9000}),
        json!({"mac": "c2:00:00:00:00:07"}),
        json!({"txQLen": 5}),
        json!({"promisc": true, "allmulti": true}),
        json!({"sysctl": {"net.ipv4.conf.IFNAME.arp_filter": "1", "net.ipv4.ip_local_reserved_ports": "8082,8081"}}),
        json!({"mtu": 1280, "mac": "c2:00:00:00:00:08", "txQLen": 0, "sysctl": {"net.core.somaxconn": "0x200"}}),
    ]
}

/// The limits of bandwidth: without a configured burst, and sound ones.
fn limits() -> [Value; 2] {
    let both = |rate: u64, burst: u64| json!({"ingressRate": rate, "ingressBurst": burst, "egressRate": rate, "egressBurst": burst});
    [both(1_000_000, 4_294_967_295), both(100_000_000, 8_000_000)]
}

/// All orders of two to five of the plugins.
fn orders<'p>(plugins: &[&'p str]) -> Vec<Vec<&'p str>> {
    let mut orders: Vec<Vec<&str>> = vec![Vec::new()];
    let mut all = Vec::new();
    for _ in 0..5 {
        let longer = |order: &Vec<&'p str>| {
            let rest: Vec<_> = plugins.iter().filter(|plugin| !order.contains(plugin)).collect();
            rest.into_iter().map(|plugin| [order.as_slice(), &[plugin]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
        all.extend(orders.iter().filter(|order| order.len() > 1).cloned());
    }
    all
}

/// Both want the interface's routes in a table of their own.
fn has_sbr_and_vrf(order: &[&str]) -> bool {
    order.contains(&"sbr") && order.contains(&"vrf")
}

/// The chains with each set of keys.
fn chains(plugins: &[&str]) -> Vec<Vec<Value>> {
    let [slow, fast] = limits();
    let mut all = Vec::new();
    let orders = orders(plugins).into_iter().filter(|order| !has_sbr_and_vrf(order));
    for (number, order) in orders.enumerate() {
        let tunings = if order.contains(&"tuning") { tunings() } else { vec![json!({})] };
        for tuning in tunings {
            let conf = |name: &&str| {
                let mut conf = match *name {
                    "tuning" => tuning.clone(),
                    "bandwidth" => if number % 2 == 0 { &slow } else { &fast }.clone(),
                    "portmap" => json!({"capabilities": {"portMappings": true}}),
                    "vrf" => json!({"vrfname": "blue"}),
                    _ => json!({}),
                };
                conf["type"] = json!(name);
                conf
            };
            all.push(order.iter().map(conf).collect());
        }
    }
    all
}

/// Plays one chain. An error says what does not hold.
fn play(node: &Node, name: &str, main: &str, chain: &[Value]) -> Result<(), String> {
    let mtu = chain.iter().find_map(|conf| conf["mtu"].as_u64()).unwrap_or(MTU);
    let first = json!({"type": main, "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipam": {
        "type": "host-local", "ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}});
    let plugins = [&[first], chain].concat();
    let network = json!({"name": "pods", "cniVersion": "1.1.0", "plugins": plugins});
    let network = Network::from_value(&network).unwrap();
    let runtime = node.runtime([bin_dir().unwrap()]);
    let pod = node.pod(name).unwrap();
    let mapping = json!([{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]);
    let attachment = pod.attachment("eth0").with_capability("portMappings", mapping);
    let played = (|| {
        let added = runtime.add(&network, &attachment).map_err(|error| error.to_string())?;
        let check = |when: &str| {
            runtime.check(&network, &attachment).map_err(|error| format!("CHECK {when}: {error}"))
        };
        check("after ADD")?;
        // The longest frame, there and back.
        let ping = format!("ping -M do -c 1 -W 5 -s {} -I eth0 10.1.0.1", mtu - 28);
        pod.sh(&ping).map_err(|error| format!("{error:#}"))?;
        // An operator gives the host's end another MTU.
        let interfaces = added["interfaces"].as_array().unwrap();
        let is_host_end = |one: &&Value| one.get("sandbox").is_none() && one["name"] != "cni0";
        let host_end = interfaces.iter().find(is_host_end).unwrap()["name"].as_str().unwrap();
        node.sh(&format!("ip link set {host_end} mtu 4000")).unwrap();
        check("after another MTU of the host's end")
    })();
    let deleted = runtime.del(&network, &attachment).map_err(|error| format!("DEL: {error}"));
    pod.delete().unwrap();
    played.and(deleted)
}

fn sample(plugins: &[&str], default: usize) {
    let mut random = Random::seeded();
    let number = std::env::var("FERRULE_CHAINS").ok().and_then(|number| number.parse().ok());
    let mut all = chains(plugins);
    let node = Node::new().unwrap();
    let mut failed = Vec::new();
    for number in 0..number.unwrap_or(default).min(all.len()) {
        let chain = all.swap_remove(random.below(all.len()));
        let main = ["bridge", "ptp"][random.below(2)];
        if let Err(error) = play(&node, &format!("pod{number}"), main, &chain) {
            failed.push(format!("{main}, {}\n    {error}", Value::from(chain)));
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

#[test]
fn each_order_and_each_key() {
    let [all, with_tuning] = [orders(&PLUGINS).len(), chains(&PLUGINS).len()];
    assert_eq!((all, with_tuning), (320, 60 + 260 * tunings().len()));
    sample(&PLUGINS, SAMPLE);
}

#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn each_order_with_vrf() {
    cni_lab::kernel_module("vrf");
    let mut plugins = PLUGINS.to_vec();
    plugins.push("vrf");
    sample(&plugins, SAMPLE_WITH_VRF);
}
