//! What becomes of the address of a Service: the rules of kube-proxy on this node.

use std::collections::BTreeSet;
use std::fs;
use std::net::{IpAddr, SocketAddr};

use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::ip::{IpFamily, from_octets, octets};
use ferrule_kernel::iptables::{Listing, NAT, Programs, kernel};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    Error, Expr, Family, Rule, Table, Value, Verdict, chains, elements, find_elements, rules,
};
use serde::Serialize;

/// The most backends that are looked at.
pub const MOST: usize = 256;
/// The most chains that lead to each other: from the service to its ends.
const DEPTH: usize = 6;
/// The length of the hash in the name of a chain of kube-proxy.
const HASH: usize = 8;

/// What has an address and port that leads to pods.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Kind {
    /// A Service of Kubernetes.
    #[default]
    Service,
    /// A host port of a pod.
    HostPort,
}

/// A Service that has an address and port, or a host port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Service {
    /// Which of both.
    pub kind: Kind,
    /// Its name, as the rules have it: NAMESPACE/NAME, perhaps with more; empty if they have none.
    pub name: String,
    /// Where the rules are.
    pub place: String,
    /// Where its packets go; none if it has no ready endpoint.
    pub backends: BTreeSet<SocketAddr>,
}

/// The Service with this address, protocol and port; `None` if no rule of kube-proxy is for it. `is_own`: the address is one of this node, so it
/// has node ports.
///
/// # Errors
/// The kernel refuses to list rules, or a program of iptables fails.
pub fn find(
    socket: &mut Socket,
    to: SocketAddr,
    protocol: u8,
    is_own: bool,
) -> Result<Option<Service>, CniError> {
    let step = || "read the rules of kube-proxy";
    if let Some(found) = by_nftables(socket, to, protocol, is_own).context(step)? {
        return Ok(Some(found));
    }
    let family = IpFamily::of(to.ip());
    let services = (kernel::table(family), "KUBE-SERVICES");
    let is_nft = chains(socket, &[services]).context(step)?.iter().any(Option::is_some);
    let programs = match Programs::legacy(family, NAT) {
        Some(legacy) => vec![legacy],
        None if is_nft => vec![Programs::of_node(family).context(step)?],
        None => Vec::new(),
    };
    for programs in programs {
        if let Some(found) = by_iptables(&programs.list().context(step)?, to, protocol, is_own) {
            return Ok(Some(found));
        }
    }
    Ok(by_ipvs(&fs::read_to_string("/proc/thread-self/net/ip_vs").unwrap_or_default(), to, protocol))
}

fn by_nftables(
    socket: &mut Socket,
    to: SocketAddr,
    protocol: u8,
    is_own: bool,
) -> Result<Option<Service>, Error> {
    let table = Table::new(Family::of(IpFamily::of(to.ip())), "kube-proxy");
    let port = to.port().to_be_bytes();
    let tail = [protocol, 0, 0, 0, port[0], port[1], 0, 0];
    let key = [&octets(to.ip())[..], &tail].concat();
    let maps: [(&str, &[u8]); 3] =
        [("service-ips", &key), ("no-endpoint-services", &key), ("service-nodeports", &tail)];
    let found = find_elements(socket, table, &maps)?;
    let by_address = found.iter().take(2).flatten();
    // A node port is one of any address of the node.
    let by_port = found.iter().skip(2).flatten().filter(|_| is_own);
    let mut element = None;
    for one in by_address.chain(by_port) {
        element = element.or(one.value.clone());
    }
    let Some(Value::Verdict(verdict)) = element else { return Ok(None) };
    let mut service = Service { place: format!("table {table}"), ..Service::default() };
    if let Verdict::Goto(chain) | Verdict::Jump(chain) = verdict {
        service.name = name_of(&chain);
        collect(socket, table, &chain, DEPTH, &mut service.backends)?;
    }
    Ok(Some(service))
}

/// `shop/web/tcp/http` of the chain `service-ABCDEFGH-shop/web/tcp/http`.
fn name_of(chain: &str) -> String {
    let name = chain.split_once('-').and_then(|(_, rest)| rest.get(HASH + 1..));
    name.unwrap_or_default().to_owned()
}

fn collect(
    socket: &mut Socket,
    table: Table<'_>,
    chain: &str,
    depth: usize,
    backends: &mut BTreeSet<SocketAddr>,
) -> Result<(), Error> {
    if depth == 0 || backends.len() >= MOST {
        return Ok(());
    }
    for rule in rules(socket, table, chain)? {
        if let Some(backend) = translation(&rule) {
            backends.insert(backend);
            continue;
        }
        let mut next: Vec<String> = rule.jump_target().into_iter().collect();
        for expr in rule.expressions.iter().filter(|expr| expr.name == "lookup") {
            let Some(Expr::Lookup { set, to: Some(_), .. }) = expr.decode() else { continue };
            next.extend(elements(socket, table, &set)?.into_iter().filter_map(
                |element| match element.value {
                    Some(Value::Verdict(Verdict::Goto(chain) | Verdict::Jump(chain))) => Some(chain),
                    _ => None,
                },
            ));
        }
        for chain in next {
            collect(socket, table, &chain, depth - 1, backends)?;
        }
    }
    Ok(())
}

/// The destination to which a rule translates.
fn translation(rule: &Rule) -> Option<SocketAddr> {
    let exprs: Vec<Expr> = rule.expressions.iter().filter_map(|expr| expr.decode()).collect();
    let (address, port) = exprs.iter().find_map(|expr| match expr {
        Expr::Dnat { address, port, .. } => Some((*address, *port)),
        _ => None,
    })?;
    let value = |register| {
        exprs.iter().find_map(|expr| match expr {
            Expr::Immediate { to, value } if *to == register => Some(value),
            _ => None,
        })
    };
    let port = value(port)?.get(..2)?.try_into().map(u16::from_be_bytes).ok()?;
    Some(SocketAddr::new(from_octets(value(address)?)?, port))
}

pub(crate) fn protocol_name(protocol: u8) -> &'static str {
    match protocol {
        6 => "tcp",
        17 => "udp",
        132 => "sctp",
        _ => "",
    }
}

fn by_iptables(nat: &Listing, to: SocketAddr, protocol: u8, is_own: bool) -> Option<Service> {
    let is_for = |address: Option<&str>| {
        let address = address.and_then(|text| text.split('/').next()?.parse::<IpAddr>().ok());
        address == Some(to.ip())
    };
    let port = to.port().to_string();
    let by_address = nat.rules_of("KUBE-SERVICES").filter(|rule| is_for(rule.argument("-d")));
    let by_port = nat.rules_of("KUBE-NODEPORTS").filter(|_| is_own);
    let mut entries = by_address.chain(by_port).filter(|rule| {
        rule.argument("-p") == Some(protocol_name(protocol)) && rule.argument("--dport") == Some(&port)
    });
    let entry = entries.find(|rule| rule.argument("-j").is_some_and(|target| target != "KUBE-MARK-MASQ"))?;
    // "shop/web:http cluster IP"
    let comment = entry.argument("--comment").unwrap_or_default();
    let name = comment.split(' ').next().unwrap_or_default().to_owned();
    let mut backends = BTreeSet::new();
    let mut chains = vec![(entry.argument("-j")?, DEPTH)];
    while let Some((chain, depth)) = chains.pop() {
        for rule in nat.rules_of(chain) {
            match rule.argument("-j") {
                Some("DNAT") => {
                    backends.extend(
                        rule.argument("--to-destination").and_then(|to| to.parse::<SocketAddr>().ok()),
                    );
                }
                Some(next) if depth > 0 && backends.len() < MOST => chains.push((next, depth - 1)),
                _ => {}
            }
        }
    }
    Some(Service { name, place: "the table nat of iptables".to_owned(), backends, ..Service::default() })
}

/// By the kernel's list: a line for each service, then a line for each of its ends.
fn by_ipvs(list: &str, to: SocketAddr, protocol: u8) -> Option<Service> {
    let service = Service { place: "IPVS".to_owned(), ..Service::default() };
    let mut found: Option<Service> = None;
    for line in list.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match &words[..] {
            ["->", end, ..] => {
                if let (Some(service), Some(end)) = (&mut found, hexadecimal(end)) {
                    service.backends.insert(end);
                }
            }
            [word, address, ..] => {
                if found.is_some() {
                    break;
                }
                let is_it =
                    word.eq_ignore_ascii_case(protocol_name(protocol)) && hexadecimal(address) == Some(to);
                found = is_it.then(|| service.clone());
            }
            _ => {}
        }
    }
    found
}

/// `0A600001:0050`, or `[FD00:0000:…]:0050`.
fn hexadecimal(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.rsplit_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    let v6 = address.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let address = match v6 {
        Some(v6) => IpAddr::V6(v6.parse().ok()?),
        None => IpAddr::from(u32::from_str_radix(address, 16).ok()?.to_be_bytes()),
    };
    Some(SocketAddr::new(address, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn backends(service: Option<Service>) -> (String, Vec<String>) {
        let service = service.unwrap();
        (service.name, service.backends.iter().map(ToString::to_string).collect())
    }

    #[test]
    fn iptables_leads_from_a_service_to_its_ends() {
        let nat = Listing::of(
            "nat",
            r#"*nat
:KUBE-SERVICES - [0:0]
-A KUBE-SERVICES -d 10.96.0.10/32 -p udp -m comment --comment "kube-system/kube-dns:dns cluster IP" -m udp --dport 53 -j KUBE-SVC-DNS
-A KUBE-SERVICES -d 10.96.0.20/32 -p tcp -m comment --comment "shop/web:http cluster IP" -m tcp --dport 80 -j KUBE-SVC-WEB
-A KUBE-SERVICES -m comment --comment "kubernetes service nodeports; NOTE: this must be the last rule in this chain" -m addrtype --dst-type LOCAL -j KUBE-NODEPORTS
-A KUBE-NODEPORTS -p tcp -m comment --comment "shop/web:http" -m tcp --dport 30080 -j KUBE-EXT-WEB
-A KUBE-EXT-WEB -m comment --comment "masquerade traffic for shop/web:http external destinations" -j KUBE-MARK-MASQ
-A KUBE-EXT-WEB -j KUBE-SVC-WEB
-A KUBE-SVC-WEB ! -s 10.1.0.0/16 -d 10.96.0.20/32 -p tcp -m tcp --dport 80 -j KUBE-MARK-MASQ
-A KUBE-SVC-WEB -m statistic --mode random --probability 0.5 -j KUBE-SEP-A
-A KUBE-SVC-WEB -j KUBE-SEP-B
-A KUBE-SEP-A -s 10.1.0.5/32 -j KUBE-MARK-MASQ
-A KUBE-SEP-A -p tcp -m tcp -j DNAT --to-destination 10.1.0.5:8080
-A KUBE-SEP-B -p tcp -m tcp -j DNAT --to-destination 10.1.1.7:8080
-A KUBE-MARK-MASQ -j MARK --set-xmark 0x4000/0x4000
COMMIT
"#,
        );
        let own = "192.0.2.1:30080".parse().unwrap();
        let find = |text: &str, protocol| {
            let to: SocketAddr = text.parse().unwrap();
            by_iptables(&nat, to, protocol, to == own)
        };
        for text in ["10.96.0.20:80", "192.0.2.1:30080"] {
            let ends = vec!["10.1.0.5:8080".to_owned(), "10.1.1.7:8080".to_owned()];
            assert_eq!(backends(find(text, 6)), ("shop/web:http".to_owned(), ends), "{text}");
        }
        assert_eq!(backends(find("10.96.0.10:53", 17)).1, [""; 0], "no ready endpoint");
        for (text, protocol) in
            [("10.96.0.20:81", 6), ("10.96.0.20:80", 17), ("10.96.0.21:80", 6), ("192.0.2.9:30080", 6)]
        {
            assert_eq!(find(text, protocol), None, "{text}");
        }
    }

    #[test]
    fn ipvs_lists_services_and_ends() {
        let list = "IP Virtual Server version 1.2.1 (size=4096)
Prot LocalAddress:Port Scheduler Flags
  -> RemoteAddress:Port Forward Weight ActiveConn InActConn
TCP  0A600001:01BB rr
  -> C0A80002:192B      Masq    1      0          0
TCP  0A600014:0050 rr
  -> 0A010005:1F90      Masq    1      0          0
  -> 0A010107:1F90      Masq    1      0          0
UDP  [FD00:0000:0000:0000:0000:0000:0000:000A]:0035 rr
  -> [FD00:0001:0000:0000:0000:0000:0000:0002]:0035      Masq    1      0          0
";
        let find = |text: &str, protocol| by_ipvs(list, text.parse().unwrap(), protocol);
        assert_eq!(backends(find("10.96.0.20:80", 6)).1, ["10.1.0.5:8080", "10.1.1.7:8080"]);
        assert_eq!(backends(find("[fd00::a]:53", 17)).1, ["[fd00:1::2]:53"]);
        assert_eq!((find("10.96.0.20:80", 17), find("10.96.0.2:80", 6)), (None, None));
    }

    #[test]
    fn the_chains_of_kube_proxy_have_the_services_name() {
        assert_eq!(name_of("service-ULMVA6XW-ns1/svc1/tcp/p80"), "ns1/svc1/tcp/p80");
        assert_eq!(name_of("external-42NFTM6N-ns2/svc2/tcp/"), "ns2/svc2/tcp/");
        assert_eq!(name_of("other"), "");
    }
}
