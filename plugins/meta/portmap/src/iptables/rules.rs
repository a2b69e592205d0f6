//! Computes the chains and rules of iptables. Names, comments and order are the reference's, byte for byte.
//! Nothing here sends requests to the kernel or starts a program.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{Listing, Rule};
use ferrule_kernel::sorted;
use ipnetwork::IpNetwork;

use crate::config::Conf;
use crate::mapping::Mapping;
use crate::mark;
use cni_common::plugin::Attachment;
use ferrule_kit::hash::sha512_hex;

/// The chain with the jumps to the containers' chains. `PREROUTING` and `OUTPUT` jump to it.
pub const DNAT: &str = "CNI-HOSTPORT-DNAT";
/// The chain that sets the mark.
pub const SETMARK: &str = "CNI-HOSTPORT-SETMARK";
/// The chain that masquerades marked packets. `POSTROUTING` jumps to it.
pub const MASQ: &str = "CNI-HOSTPORT-MASQ";
/// A chain of the old layout, which the reference used before 2019 in addition to [`DNAT`].
pub const OLD_SNAT: &str = "CNI-HOSTPORT-SNAT";

/// The mark bit of the reference.
const BIT: u8 = 13;
/// Maximum number of ports in a `multiport` match.
const PORTS: usize = 15;
/// Maximum length of an iptables comment in bytes, without the terminating zero.
const COMMENT: usize = 255;

/// The name of the chain with a container's mappings.
pub fn chain_of(network: &str, container_id: &str) -> String {
    format!("CNI-DN-{}", sha512_hex(&format!("{network}{container_id}"), 21))
}

/// The name of a container's second chain in the old layout, used before 2019.
fn old_chain_of(network: &str, container_id: &str) -> String {
    format!("CNI-SN-{}", sha512_hex(&format!("{network}{container_id}"), 21))
}

/// The chains of a container in the current and in the old layout, each with the chain that jumps to it.
pub fn chains_of(owner: &Attachment<'_>) -> [(&'static str, String); 2] {
    let (network, container_id) = (owner.network, owner.container_id);
    [(DNAT, chain_of(network, container_id)), (OLD_SNAT, old_chain_of(network, container_id))]
}

/// The comment of the rules that jump to a container's chain.
fn comment(owner: &Attachment<'_>) -> String {
    // Neither name can contain a character that must be quoted.
    let mut comment = format!("dnat name: \"{}\" id: \"{}\"", owner.network, owner.container_id);
    if comment.len() > COMMENT {
        comment.truncate(COMMENT - 2);
        comment += "...";
    }
    comment
}

/// Network and container ID in such a comment of the current or of the old layout, if `target` is a chain of that container:
/// comment and target must agree, to spare the chains of other programs.
pub fn owner_in<'c>(comment: &'c str, target: &str) -> Option<(&'c str, &'c str)> {
    let names = comment.strip_prefix("dnat name: \"").or_else(|| comment.strip_prefix("snat name: \""))?;
    let (network, container) = names.strip_suffix('"')?.split_once("\" id: \"")?;
    let is_its = target == chain_of(network, container) || target == old_chain_of(network, container);
    is_its.then_some((network, container))
}

/// For a rule with this comment and target: the target, if it is the chain of a container of the network
/// without valid attachment.
pub fn dead_chain(comment: &str, target: &str, network: &str, valid: &BTreeSet<String>) -> Option<String> {
    let (of, container) = owner_in(comment, target)?;
    (of == network && !valid.contains(container)).then(|| target.to_owned())
}

/// A rule that all containers share, and the command that adds it: `-I` if it must come before all other rules of its chain, else
/// `-A`.
pub type Shared = (&'static str, Rule);

/// The chains and rules for one container in one family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rules {
    /// The family.
    pub family: IpFamily,
    /// The name of the container's chain.
    pub chain: String,
    /// The names of the shared chains.
    pub shared_chains: Vec<&'static str>,
    /// The shared rules.
    pub shared: Vec<Shared>,
    /// The rules of the container's chain.
    pub body: Vec<Rule>,
    /// The rules that jump to the container's chain.
    pub jumps: Vec<Rule>,
}

impl Rules {
    /// Adds the rule that gives a NodePort precedence over a host port with the same number. In IPVS mode,
    /// kube-proxy only sets Kubernetes' mark on packets to a NodePort. In other modes, it has already
    /// translated them.
    pub fn leave_node_ports(mut self) -> Self {
        let mark = 1_u32 << mark::DEFAULT_BIT;
        let matches = format!("-m mark --mark {mark:#x}/{mark:#x}");
        let comment = "a NodePort of kube-proxy in IPVS mode";
        self.shared.push(("-I", Rule::commented(DNAT, &matches, comment, "-j RETURN")));
        self
    }
}

/// The options of a rule that a comparison considers, in a fixed order. A network's conditions are not among
/// them: `iptables` prints them in another form than the configuration has.
pub fn compared_options(rule: &Rule) -> [Option<&str>; 11] {
    const OPTIONS: [&str; 11] = [
        "-s",
        "-d",
        "-p",
        "--dport",
        "--dports",
        "--comment",
        "--dst-type",
        "--mark",
        "--set-xmark",
        "--to-destination",
        "-j",
    ];
    // In the rules that jump to a container's chain, -s and -d can only be conditions.
    let skip = |option: &str| rule.argument("--dports").is_some() && matches!(option, "-s" | "-d");
    OPTIONS.map(|option| if skip(option) { None } else { rule.argument(option) })
}

/// Whether the chain of the wanted rule has an equivalent rule.
pub fn is_in(listing: &Listing, wanted: &Rule) -> bool {
    listing.rules_of(&wanted.chain).any(|rule| compared_options(rule) == compared_options(wanted))
}

/// The bit of the mark that [`SETMARK`] sets.
pub fn mark_bit(conf: &Conf) -> u8 {
    conf.masq_bit.unwrap_or(BIT)
}

/// Computes the chains and rules. `external` is the chain of `externalSetMarkChain`, if it exists.
pub fn rules(conf: &Conf, owner: &Attachment<'_>, address: IpNetwork, external: Option<&str>) -> Rules {
    let family = IpFamily::of(address.ip());
    let chain = chain_of(owner.network, owner.container_id);
    let mut shared: Vec<Shared> = Vec::new();
    let mut shared_chains = Vec::new();
    if conf.snat && external.is_none() {
        let value = 1_u32 << mark_bit(conf);
        let mark = format!("{value:#x}/{value:#x}");
        let set = format!("-j MARK --set-xmark {mark}");
        let why = "CNI portfwd requiring masquerade";
        shared_chains.extend([SETMARK, MASQ]);
        shared.extend([
            ("-A", Rule::commented(SETMARK, "", "CNI portfwd masquerade mark", &set)),
            ("-A", Rule::new(MASQ, &format!("-m mark --mark {mark} -j MASQUERADE"))),
            ("-I", Rule::commented("POSTROUTING", "", why, &format!("-j {MASQ}"))),
        ]);
    }
    shared_chains.push(DNAT);
    let local = format!("-m addrtype --dst-type LOCAL -j {DNAT}");
    shared.extend(["PREROUTING", "OUTPUT"].map(|hook| ("-A", Rule::new(hook, &local))));
    let body = conf
        .mappings
        .iter()
        .flat_map(|mapping| body(conf, mapping, address, &chain, external.unwrap_or(SETMARK)));
    let body = body.collect();
    Rules { family, shared_chains, shared, body, jumps: jumps(conf, owner, family, &chain), chain }
}

/// The rules that jump to the container's chain. They list the ports of all mappings, even those of the other
/// family.
fn jumps(conf: &Conf, owner: &Attachment<'_>, family: IpFamily, chain: &str) -> Vec<Rule> {
    let mut jumps = Vec::new();
    for proto in sorted(conf.mappings.iter().map(|mapping| mapping.proto.name())) {
        let of_proto = conf.mappings.iter().filter(|mapping| mapping.proto.name() == proto);
        let ports: Vec<String> = of_proto.map(|mapping| mapping.host_port.to_string()).collect();
        for ports in ports.chunks(PORTS) {
            let ports = format!("-m multiport --dports {}", ports.join(","));
            let mut rule = Rule::commented(DNAT, &format!("-p {proto}"), &comment(owner), &ports);
            rule.args.extend(conf.conditions[family as usize].iter().cloned());
            rule.args.extend(["-j".to_owned(), chain.to_owned()]);
            jumps.push(rule);
        }
    }
    jumps
}

fn body(conf: &Conf, mapping: &Mapping, address: IpNetwork, chain: &str, mark: &str) -> Vec<Rule> {
    let family = IpFamily::of(address.ip());
    let Some(host_ip) = mapping.host_ip_in(family) else { return Vec::new() };
    let to_host = host_ip.map_or(String::new(), |ip| format!("-d {ip}/{} ", family.bits()));
    let proto = mapping.proto;
    let what = format!("{to_host}-p {proto} -m {proto} --dport {}", mapping.host_port);
    let from = |source: String| Rule::new(chain, &format!("-s {source} {what} -j {mark}"));
    let mut rules = Vec::new();
    if conf.snat && conf.masq_all {
        rules.push(Rule::new(chain, &format!("{what} -j {mark}")));
    } else if conf.snat {
        rules.push(from(format!("{}/{}", address.network(), address.prefix())));
        if family == IpFamily::V4 {
            rules.push(from("127.0.0.1/32".to_owned()));
        }
    }
    let target = match address.ip() {
        IpAddr::V4(ip) => format!("{ip}:{}", mapping.container_port),
        IpAddr::V6(ip) => format!("[{ip}]:{}", mapping.container_port),
    };
    rules.push(Rule::new(chain, &format!("{what} -j DNAT --to-destination {target}")));
    rules
}

#[cfg(test)]
mod tests {
    use cni_common::spec::NetConf;

    use super::*;

    const OWNER: Attachment<'_> = Attachment { network: "pmnet", ifname: "eth0", container_id: "cid-1" };

    fn conf(keys: &str) -> Conf {
        let text = format!(
            r#"{{"cniVersion":"1.0.0","name":"pmnet","type":"portmap","backend":"iptables"{keys},"runtimeConfig":{{"portMappings":[
                {{"hostPort":8080,"containerPort":80,"protocol":"tcp"}},
                {{"hostPort":8081,"containerPort":81,"protocol":"UDP"}},
                {{"hostPort":8083,"containerPort":83,"protocol":"tcp","hostIP":"192.0.2.1"}}]}}}}"#
        );
        Conf::read(&NetConf::parse(text.into_bytes()).unwrap()).unwrap()
    }

    fn lines(rules: &[Rule]) -> Vec<String> {
        rules.iter().map(|rule| rule.line("-A")).collect()
    }

    #[test]
    fn names_are_those_of_the_reference() {
        assert_eq!(chain_of("pmnet", "cid-1"), "CNI-DN-23bca406094dc040d4f86");
        let id = "x".repeat(300);
        let long = comment(&Attachment { container_id: &id, ..OWNER });
        assert!(long.len() == 256 && long.ends_with("xxx..."));
        let (chain, none) = (chain_of("net", "one"), BTreeSet::new());
        let dead = |comment: &str, network| dead_chain(comment, &chain, network, &none);
        for (comment, network, is_dead) in [
            ("dnat name: \"net\" id: \"one\"", "net", true),
            ("snat name: \"net\" id: \"one\"", "net", true),
            ("dnat name: \"net\" id: \"one\"", "net2", false),
            ("dnat name: \"net2\" id: \"one\"", "net2", false),
        ] {
            assert_eq!(dead(comment, network), is_dead.then(|| chain.clone()), "{comment}");
        }
        let valid = BTreeSet::from(["one".to_owned()]);
        assert_eq!(dead_chain("dnat name: \"net\" id: \"one\"", &chain, "net", &valid), None);
    }

    #[test]
    fn rules_are_those_of_the_reference() {
        let rules = rules(&conf(""), &OWNER, "10.77.0.3/24".parse().unwrap(), None);
        let shared: Vec<String> = rules.shared.iter().map(|(_, rule)| rule.line("-A")).collect();
        assert_eq!(
            shared,
            [
                "-A CNI-HOSTPORT-SETMARK -m comment --comment \"CNI portfwd masquerade mark\" -j MARK --set-xmark 0x2000/0x2000",
                "-A CNI-HOSTPORT-MASQ -m mark --mark 0x2000/0x2000 -j MASQUERADE",
                "-A POSTROUTING -m comment --comment \"CNI portfwd requiring masquerade\" -j CNI-HOSTPORT-MASQ",
                "-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
                "-A OUTPUT -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT",
            ]
        );
        let chain = "CNI-DN-23bca406094dc040d4f86";
        assert_eq!(
            lines(&rules.jumps),
            [
                format!(
                    "-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"pmnet\\\" id: \\\"cid-1\\\"\" -m multiport --dports 8080,8083 -j {chain}"
                ),
                format!(
                    "-A CNI-HOSTPORT-DNAT -p udp -m comment --comment \"dnat name: \\\"pmnet\\\" id: \\\"cid-1\\\"\" -m multiport --dports 8081 -j {chain}"
                ),
            ]
        );
        let body = lines(&rules.body);
        assert_eq!(body.len(), 9);
        assert_eq!(
            body[..3],
            [
                format!("-A {chain} -s 10.77.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"),
                format!("-A {chain} -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"),
                format!("-A {chain} -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.77.0.3:80"),
            ]
        );
        assert_eq!(
            body[6],
            format!(
                "-A {chain} -s 10.77.0.0/24 -d 192.0.2.1/32 -p tcp -m tcp --dport 8083 -j CNI-HOSTPORT-SETMARK"
            )
        );
    }

    #[test]
    fn external_chain_snat_masq_all_and_conditions() {
        let address = "fd00::3/64".parse().unwrap();
        let six = rules(&conf(""), &OWNER, address, Some("KUBE-MARK-MASQ"));
        assert_eq!(six.shared_chains, [DNAT]);
        assert!(lines(&six.body)[1].ends_with("--dport 8080 -j DNAT --to-destination [fd00::3]:80"));
        assert!(lines(&six.body)[0].ends_with("-s fd00::/64 -p tcp -m tcp --dport 8080 -j KUBE-MARK-MASQ"));
        let no_snat = rules(&conf(r#","snat":false"#), &OWNER, address, None);
        assert!(no_snat.shared_chains == [DNAT] && no_snat.body.len() == 2);
        let all = rules(&conf(r#","masqAll":true,"markMasqBit":3"#), &OWNER, address, None);
        assert_eq!(all.body.len(), 4);
        assert!(lines(&all.body)[0].contains("-p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK"));
        assert!(all.shared[1].1.line("-A").contains("--mark 0x8/0x8"));
        let conditions = rules(&conf(r#","conditionsV6":["!","-s","fd00::/8"]"#), &OWNER, address, None);
        assert!(lines(&conditions.jumps)[0].contains("--dports 8080,8083 ! -s fd00::/8 -j CNI-DN-"));
    }

    #[test]
    fn node_port_rule_comes_first_in_the_dnat_chain() {
        let rules = rules(&conf(""), &OWNER, "10.0.0.3/24".parse().unwrap(), None).leave_node_ports();
        let (command, rule) = rules.shared.last().unwrap();
        assert_eq!(
            rule.line(command),
            "-I CNI-HOSTPORT-DNAT -m mark --mark 0x4000/0x4000 -m comment \
             --comment \"a NodePort of kube-proxy in IPVS mode\" -j RETURN"
        );
    }

    #[test]
    fn at_most_fifteen_ports_in_a_rule() {
        let mut conf = conf("");
        conf.mappings = (1..=31).map(|port| Mapping { host_port: port, ..conf.mappings[0] }).collect();
        let rules = rules(&conf, &OWNER, "10.0.0.3/24".parse().unwrap(), None);
        assert_eq!(rules.jumps.len(), 3);
        assert!(rules.jumps[2].line("-A").contains("--dports 31 "));
    }

    #[test]
    fn comparison_ignores_conditions_only() {
        let listing =
            Listing::parse("*nat\n-A C ! -s 10.0.0.0/8 -p tcp -m multiport --dports 80,81 -j CNI-DN-x\n");
        assert!(is_in(&listing, &Rule::new("C", "-p tcp -m multiport --dports 80,81 -j CNI-DN-x")));
        for other in
            ["-p tcp -m multiport --dports 80 -j CNI-DN-x", "-p udp -m multiport --dports 80,81 -j CNI-DN-x"]
        {
            assert!(!is_in(&listing, &Rule::new("C", other)), "{other}");
        }
    }
}
