//! Alternative names of links: each plugin that takes a link's name, with each verb and each kind of name.

use serde_json::{Value, json};

use super::Report;
use super::Step::{Call, Network, Node, Ours, Pod, Reference, Refused, Says, Status};
use super::Verb::{Add, Check, Del};

/// The link's own name, an alternative one, and one that is longer than a link's own name can be.
const NAMES: [&str; 3] = ["up0", "short0", "a-name-of-more-than-15-bytes"];
const ALT_NAMES: &str = "ip link property add dev up0 altname short0 altname a-name-of-more-than-15-bytes";

/// The commands that make the link `up0`.
const PAIR: &str = "ip link add up0 type veth peer name up1 && ip link set up0 up && ip link set up1 up";
const BRIDGE: &str = "ip link add up0 type bridge";

fn network(plugin: &Value, name: &str) -> Value {
    let plugin: Value = serde_json::from_str(&plugin.to_string().replace("NAME", name)).unwrap();
    json!({"name": "pods", "cniVersion": "1.1.0", "plugins": [plugin]})
}

/// All verbs with each name. `taken` is the error of a second ADD, if the first one takes the link away.
fn product(
    make: &'static str,
    plugin: &Value,
    taken: Option<&'static str>,
    after: &'static str,
) -> Vec<Report> {
    let report = |name: &&'static str| Report {
        source: "plugins#1169, cilium#17066",
        sentence: "a link may be named by an alternative name, in each verb",
        steps: [
            vec![
                Node(make),
                Node(ALT_NAMES),
                Network(network(plugin, name)),
                Status(""),
                Call(Add, "c1"),
                Call(Check, "c1"),
                Status(""),
            ],
            taken.map(|text| Refused(Add, "c2", text)).into_iter().collect(),
            vec![
                Call(Check, "c1"),
                Pod("c1", "ip address show dev eth0 | grep -F 10.1.0.2/24"),
                Node(after),
                Call(Del, "c1"),
                Node("ip link show up0 && ip link show short0 && ip link show a-name-of-more-than-15-bytes"),
                Call(Add, "c3"),
                Call(Del, "c3"),
            ],
        ]
        .into_iter()
        .flatten()
        .collect(),
    };
    NAMES.iter().map(report).collect()
}

fn ipam() -> Value {
    json!({"type": "static", "addresses": [{"address": "10.1.0.2/24", "gateway": "10.1.0.1"}]})
}

fn child(kind: &str) -> Value {
    json!({"type": kind, "master": "NAME", "ipam": ipam()})
}

pub(crate) fn reports() -> Vec<Report> {
    let host_device = json!({"type": "host-device", "device": "NAME", "ipam": ipam()});
    let bridge = json!({"type": "bridge", "bridge": "NAME", "isGateway": true, "ipam": ipam()});
    let no_routers = "test $(cat /proc/sys/net/ipv6/conf/up0/accept_ra) = 0";
    let mut reports = [
        product(PAIR, &host_device, Some("is in container c1"), "true"),
        product(PAIR, &child("macvlan"), None, "true"),
        product(BRIDGE, &bridge, None, no_routers),
    ]
    .into_iter()
    .flatten()
    .collect::<Vec<_>>();
    // Debian's plugins know no newer version.
    let mut former = network(&host_device, "short0");
    former["cniVersion"] = json!("1.0.0");
    reports.push(Report {
        source: "plugins#1169 with the reference's ADD",
        sentence: "DEL gives back a device that the reference has taken by an alternative name",
        steps: vec![
            Node(PAIR),
            Node(ALT_NAMES),
            Network(former),
            Reference,
            Call(Add, "c1"),
            Ours,
            Call(Del, "c1"),
            Node("ip link show up0 && ip link show short0"),
        ],
    });
    reports.push(Report {
        source: "plugins#1169, a bridge that is not there",
        sentence: "a name that no link has, and that none can have, is an error that says so",
        steps: vec![
            Network(network(&bridge, NAMES[2])),
            Status("bridge: interface name is too long"),
            Refused(Add, "c1", "bridge: interface name is too long"),
            Network(network(&child("macvlan"), NAMES[2])),
            Status("Link not found"),
            Refused(Add, "c1", "Link not found"),
        ],
    });
    reports.push(Report {
        source: "doctor with a bridge by its alternative name",
        sentence: "the network of the own bridge is no clash",
        steps: vec![
            Node(BRIDGE),
            Node(ALT_NAMES),
            Node("ip address add 10.1.0.1/24 dev up0"),
            Node(
                r#"printf '{"name":"x","cniVersion":"1.0.0","plugins":[{"type":"bridge","bridge":"short0","ipam":{"type":"host-local","subnet":"10.1.0.0/24"}}]}' >/run/x.conflist"#,
            ),
            Says("ferrule doctor --conf-dir /run", "10.1.0.0/24, without overlaps"),
        ],
    });
    reports
}

/// The kinds of links that only a stock kernel has, and a VLAN on a NIC whose own name leaves no space for the ID.
pub(crate) fn of_a_stock_kernel() -> Vec<Report> {
    let mut reports = product(PAIR, &child("ipvlan"), None, "true");
    let vlan = |kind: &str, key: &str| {
        let mut plugin = child(kind);
        plugin[key] = json!(100);
        plugin
    };
    reports.extend(product(PAIR, &vlan("vlan", "vlanId"), None, "true"));
    reports.extend(product(PAIR, &vlan("macvlan", "vlan"), None, "ip -d link show up0.100"));
    let on = |name: &str| Network(network(&vlan("macvlan", "vlan"), name));
    reports.push(Report {
        source: "cilium#17066",
        sentence: "a NIC with a long name has VLANs by its alternative name, and both names mean the same VLAN",
        steps: vec![
            Node(
                "ip link add enp129s0f0np0 type veth peer name up1 && ip link set enp129s0f0np0 up && ip link set up1 up",
            ),
            Node("ip link property add dev enp129s0f0np0 altname short0"),
            on("enp129s0f0np0"),
            Refused(Add, "c1", "vlan device: interface name is too long"),
            on("short0"),
            Call(Add, "c2"),
            Call(Check, "c2"),
            on("enp129s0f0np0"),
            Call(Add, "c3"),
            Call(Check, "c3"),
            Call(Del, "c2"),
            Call(Check, "c3"),
            Call(Del, "c3"),
            Node("! ip link show short0.100"),
        ],
    });
    reports
}
