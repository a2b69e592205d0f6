//! kube-proxy in IPVS mode, as far as host ports are concerned: its link, addresses and rules in the nat
//! table of iptables.

use std::net::IpAddr;

use cni_lab::Place as _;

use super::World;

/// A Service: 443/tcp and 53/udp at these addresses.
pub(crate) const CLUSTER_IPS: [&str; 2] = ["10.96.0.1", "fd00:96::1"];
/// The Service's port at every address of the node, tcp and udp.
pub(crate) const NODE_PORT: u16 = 30080;
/// The subnets of pods, which kube-proxy calls the cluster CIDRs.
const CLUSTERS: [&str; 2] = ["10.1.0.0/16", "fd00:0::/30"];

pub(crate) fn cluster_ip(v6: bool) -> IpAddr {
    CLUSTER_IPS[usize::from(v6)].parse().unwrap()
}

/// What serves the Service.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Balancer {
    /// Virtual servers of `ip_vs` that lead to a pod, and rules that look into ipsets, as kube-proxy has them.
    Ipvs {
        /// The pod's IPv4 and IPv6 addresses.
        pod: [IpAddr; 2],
    },
    /// Listeners of the test on the node, and rules with addresses instead of sets, for kernels without `ip_vs`.
    Listeners,
}

/// kube-proxy, by one variant of iptables.
pub(crate) struct KubeProxy<'w> {
    pub(crate) world: &'w World,
    pub(crate) variant: &'static str,
    pub(crate) balancer: Balancer,
}

impl KubeProxy<'_> {
    /// Starts it in kube-proxy's order: chains, the link with the addresses, virtual servers, rules.
    pub(crate) fn start(&self) {
        let kind = if self.balancer == Balancer::Listeners { "ifb" } else { "dummy" };
        let [v4, v6] = CLUSTER_IPS;
        self.jumps();
        self.sh(&format!(
            "set -e
            ip link add kube-ipvs0 type {kind}
            ip address add {v4}/32 dev kube-ipvs0
            ip address add {v6}/128 dev kube-ipvs0 nodad
            ip link set kube-ipvs0 up"
        ));
        if let Balancer::Ipvs { pod } = self.balancer {
            self.sh(&virtual_servers(self.world, pod));
            self.sh(&sets());
        } else {
            self.sh("ip link set kube-ipvs0 up");
        }
        self.sync();
    }

    /// Writes all rules again, as kube-proxy does when a Service changes.
    pub(crate) fn sync(&self) {
        for v6 in [false, true] {
            self.restore(v6, &self.rules(v6));
        }
    }

    /// Removes all its objects, as `kube-proxy --cleanup` does.
    pub(crate) fn clean_up(&self) {
        let changes = |verb: &str| CHAINS.map(|chain| format!("{verb} {chain}\n")).concat();
        for v6 in [false, true] {
            self.restore(
                v6,
                &(JUMPS.map(|jump| format!("-D {jump}\n")).concat() + &changes("-F") + &changes("-X")),
            );
        }
        self.sh("ip link del kube-ipvs0");
        if self.balancer != Balancer::Listeners {
            self.sh("ipvsadm -C; ipset destroy");
        }
    }

    /// Makes its chains, and inserts its jumps before all other rules.
    fn jumps(&self) {
        let chains = CHAINS.map(|chain| format!("-N {chain}\n")).concat();
        for v6 in [false, true] {
            self.restore(v6, &(chains.clone() + &JUMPS.map(|jump| format!("-I {jump}\n")).concat()));
        }
    }

    /// Changes the nat table by one process: the commands of iptables would each start one.
    fn restore(&self, v6: bool, lines: &str) {
        let program = format!("{}-{}", if v6 { "ip6tables" } else { "iptables" }, self.variant);
        self.sh(&format!("{program}-restore --noflush <<'END'\n*nat\n{lines}COMMIT\nEND\n"));
    }

    fn rules(&self, v6: bool) -> String {
        let mut text = CHAINS.map(|chain| format!(":{chain} - [0:0]\n")).concat();
        let ip = CLUSTER_IPS[usize::from(v6)];
        let cluster = CLUSTERS[usize::from(v6)];
        let prefix = set_prefix(v6);
        let listeners = self.balancer == Balancer::Listeners;
        let services = match listeners {
            true => vec![format!("-d {ip} -p tcp --dport 443"), format!("-d {ip} -p udp --dport 53")],
            false => vec![format!("-m set --match-set {prefix}CLUSTER-IP dst,dst")],
        };
        let node_ports = ["tcp", "udp"].map(|proto| match listeners {
            true => format!("-p {proto} --dport {NODE_PORT}"),
            false => format!("-p {proto} -m set --match-set {prefix}NODE-PORT-{} dst", proto.to_uppercase()),
        });
        let mut rule = |line: String| text += &format!("-A {line}\n");
        rule("KUBE-MARK-MASQ -j MARK --or-mark 0x4000".to_owned());
        rule("KUBE-POSTROUTING -m mark ! --mark 0x4000/0x4000 -j RETURN".to_owned());
        rule("KUBE-POSTROUTING -j MARK --xor-mark 0x4000".to_owned());
        rule("KUBE-POSTROUTING -j MASQUERADE".to_owned());
        for service in &services {
            rule(format!("KUBE-SERVICES ! -s {cluster} {service} -j KUBE-MARK-MASQ"));
        }
        rule("KUBE-SERVICES -m addrtype --dst-type LOCAL -j KUBE-NODE-PORT".to_owned());
        for service in &services {
            rule(format!("KUBE-SERVICES {service} -j ACCEPT"));
        }
        for node_port in node_ports {
            rule(format!("KUBE-NODE-PORT {node_port} -j KUBE-MARK-MASQ"));
        }
        text
    }

    fn sh(&self, script: &str) {
        self.world.node.sh(script).unwrap();
    }
}

const CHAINS: [&str; 4] = ["KUBE-SERVICES", "KUBE-NODE-PORT", "KUBE-MARK-MASQ", "KUBE-POSTROUTING"];
/// The jumps into them.
const JUMPS: [&str; 3] = [
    "PREROUTING -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
    "OUTPUT -m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES",
    "POSTROUTING -m comment --comment \"kubernetes postrouting rules\" -j KUBE-POSTROUTING",
];

fn set_prefix(v6: bool) -> &'static str {
    if v6 { "KUBE-6-" } else { "KUBE-" }
}

fn sets() -> String {
    let mut script = String::from("set -e\n");
    for v6 in [false, true] {
        let (prefix, ip) = (set_prefix(v6), CLUSTER_IPS[usize::from(v6)]);
        let family = if v6 { "inet6" } else { "inet" };
        script += &format!(
            "ipset create {prefix}CLUSTER-IP hash:ip,port family {family}
            ipset add {prefix}CLUSTER-IP {ip},tcp:443; ipset add {prefix}CLUSTER-IP {ip},udp:53\n"
        );
        for proto in ["TCP", "UDP"] {
            script += &format!(
                "ipset create {prefix}NODE-PORT-{proto} bitmap:port range 0-65535
                ipset add {prefix}NODE-PORT-{proto} {NODE_PORT}\n"
            );
        }
    }
    script
}

/// Virtual servers at the Service's addresses and at those of the node.
fn virtual_servers(world: &World, pod: [IpAddr; 2]) -> String {
    let mut script = String::from("set -e; echo 1 > /proc/sys/net/ipv4/vs/conntrack\n");
    for v6 in [false, true] {
        let quoted = |ip: IpAddr| if v6 { format!("[{ip}]") } else { ip.to_string() };
        let [service, pod, node] = [cluster_ip(v6), pod[usize::from(v6)], world.address(v6)].map(quoted);
        for (option, at) in [
            ("-t", format!("{service}:443")),
            ("-u", format!("{service}:53")),
            ("-t", format!("{node}:{NODE_PORT}")),
            ("-u", format!("{node}:{NODE_PORT}")),
        ] {
            script += &format!("ipvsadm -A {option} {at} -s rr; ipvsadm -a {option} {at} -r {pod}:80 -m\n");
        }
    }
    script
}
