//! `conditionsV4` and `conditionsV6`: matches that a packet must pass to use a network's host ports. This parses them in nft
//! syntax; those in the words of iptables need no decoding. No `nft` process is started, so no other command can be injected.
//!
//! ```text
//! conditions = { match }
//! match      = ( "ip" | "ip6" ) ( "saddr" | "daddr" ) [ "==" | "!=" ] addresses
//!            | [ "meta" ] ( "iifname" | "oifname" ) [ "==" | "!=" ] names
//! addresses  = address | "{" address { "," address } "}"       with or without a prefix length
//! names      = name | "{" name { "," name } "}"                 with or without quotes; `*`: any suffix
//! ```

use cni_common::spec::addr::{parse_cidr, parse_ip};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::matches::{End, address};
use ferrule_kernel::nftables::{CmpOp, Expr, Family, MetaKey, Register};
use ipnetwork::IpNetwork;

/// Maximum number of rules for the conditions of one network and family.
const MAX_RULES: usize = 64;

/// Alternatives: a packet must match all expressions of at least one.
///
/// `==` with a set becomes several alternatives, `!=` with a set becomes several expressions of one. This
/// needs no named sets, and CHECK can compare the conditions by reading only the rules.
pub type Matches = Vec<Vec<Expr>>;

/// Words that need no space around them.
const SPECIAL: [&str; 5] = ["==", "!=", "{", "}", ","];

/// Parses the conditions of one family.
///
/// # Errors
/// The word that is not supported or not expected.
pub fn parse(conditions: &[String], family: IpFamily) -> Result<Matches, String> {
    let text = SPECIAL
        .iter()
        .fold(conditions.join(" "), |text, special| text.replace(special, &format!(" {special} ")));
    let mut words = text.split_whitespace().peekable();
    let mut all: Matches = vec![Vec::new()];
    while let Some(word) = words.next() {
        let field = Field::parse(word, &mut words, family)?;
        let op = match words.next_if(|word| matches!(*word, "==" | "!=" | "eq" | "ne")) {
            Some("!=" | "ne") => CmpOp::Neq,
            _ => CmpOp::Eq,
        };
        let values = values(&mut words)?.into_iter();
        let exprs: Result<Vec<Vec<Expr>>, String> =
            values.map(|value| field.matches(op, value, family)).collect();
        let exprs = if op == CmpOp::Neq { vec![exprs?.concat()] } else { exprs? };
        let each = |rule: &Vec<Expr>| exprs.iter().map(|step| [&rule[..], step].concat()).collect::<Vec<_>>();
        all = all.iter().flat_map(each).collect();
        if all.len() > MAX_RULES {
            return Err(format!("the sets expand to more than {MAX_RULES} rules"));
        }
    }
    Ok(all)
}

/// The packet field that a match tests.
#[derive(Clone, Copy)]
enum Field {
    Address(End),
    Name(MetaKey),
}

impl Field {
    fn parse<'w>(
        word: &'w str,
        words: &mut impl Iterator<Item = &'w str>,
        family: IpFamily,
    ) -> Result<Self, String> {
        let keyword = match word {
            "ip" | "ip6" | "meta" => words.next().ok_or_else(|| format!("missing keyword after {word:?}"))?,
            other => other,
        };
        match (word, keyword) {
            ("ip" | "ip6", _) if word != Family::of(family).to_string() => {
                Err(format!("{word:?} is not allowed in conditions of {family}"))
            }
            ("ip" | "ip6", "saddr") => Ok(Field::Address(End::Source)),
            ("ip" | "ip6", "daddr") => Ok(Field::Address(End::Destination)),
            ("ip" | "ip6", _) => Err(unsupported(&format!("{word} {keyword}"))),
            (_, "iifname") => Ok(Field::Name(MetaKey::IifName)),
            (_, "oifname") => Ok(Field::Name(MetaKey::OifName)),
            _ => Err(unsupported(keyword)),
        }
    }

    fn matches(self, op: CmpOp, value: &str, family: IpFamily) -> Result<Vec<Expr>, String> {
        match self {
            Field::Address(end) => Ok(address(end, op, network(value, family)?)),
            Field::Name(key) => {
                let compare = Expr::Cmp { register: Register::R1, op, value: interface(value)? };
                Ok(vec![Expr::Meta { key, to: Register::R1 }, compare])
            }
        }
    }
}

fn unsupported(what: &str) -> String {
    format!(
        "{what:?} is not supported (supported: ip saddr, ip daddr, ip6 saddr, ip6 daddr, iifname, oifname)"
    )
}

fn network(text: &str, family: IpFamily) -> Result<IpNetwork, String> {
    let network = if text.contains('/') { parse_cidr(text) } else { parse_ip(text).map(IpNetwork::from) };
    let network = network.map_err(|_| format!("{text:?} is not an address or network"))?;
    if IpFamily::of(network.ip()) == family { Ok(network) } else { Err(format!("{text:?} is not {family}")) }
}

/// Parses one value, or a set of values in braces. A comma may follow the last one.
fn values<'w>(words: &mut impl Iterator<Item = &'w str>) -> Result<Vec<&'w str>, String> {
    let mut next = || words.next().ok_or_else(|| "the last match is incomplete".to_owned());
    let first = next()?;
    if first != "{" {
        return Ok(vec![first]);
    }
    let mut values = Vec::new();
    loop {
        match next()? {
            "}" if !values.is_empty() => return Ok(values),
            value => values.push(value),
        }
        match next()? {
            "," => {}
            "}" => return Ok(values),
            other => return Err(format!("expected a comma or closing brace instead of {other:?}")),
        }
    }
}

/// Encodes an interface name as nf_tables compares it: 16 bytes, or only the bytes before a final `*`.
fn interface(text: &str) -> Result<Vec<u8>, String> {
    let plain = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or(text);
    let (name, is_open) = plain.strip_suffix('*').map_or((plain, false), |start| (start, true));
    if name.is_empty() || name.len() >= 16 || name.contains(['*', '/', '\\', '"', '{', '}', ',', '=', '!']) {
        return Err(format!("{text:?} is not an interface name"));
    }
    let mut bytes = name.as_bytes().to_vec();
    if !is_open {
        bytes.resize(16, 0);
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Result<Matches, String> {
        parse(&[text.to_owned()], IpFamily::V4)
    }

    fn exprs(end: End, op: CmpOp, network: &str) -> Vec<Expr> {
        address(end, op, network.parse().unwrap())
    }

    #[test]
    fn address_conditions_in_one_string_or_several() {
        let wanted = vec![exprs(End::Source, CmpOp::Neq, "10.0.0.0/8")];
        assert_eq!(v4("ip saddr != 10.0.0.0/8"), Ok(wanted.clone()));
        let several = ["ip", "saddr", "!=", "10.0.0.0/8"].map(str::to_owned);
        assert_eq!(parse(&several, IpFamily::V4), Ok(wanted));
        assert_eq!(v4("ip daddr 192.0.2.1"), Ok(vec![exprs(End::Destination, CmpOp::Eq, "192.0.2.1/32")]));
        let alternatives = parse(&["ip6 daddr == fd00::/64".to_owned()], IpFamily::V6);
        assert_eq!(alternatives, Ok(vec![exprs(End::Destination, CmpOp::Eq, "fd00::/64")]));
        assert_eq!(parse(&[], IpFamily::V4), Ok(vec![Vec::new()]));
    }

    #[test]
    fn set_with_eq_makes_alternatives_and_with_ne_expressions() {
        let inside = v4("ip saddr {10.0.0.0/8,192.0.2.1}").unwrap();
        assert_eq!(inside.len(), 2);
        assert_eq!(inside[1], exprs(End::Source, CmpOp::Eq, "192.0.2.1/32"));
        let outside = v4("ip saddr != { 10.0.0.0/8, 192.0.2.1 }").unwrap();
        let both =
            [exprs(End::Source, CmpOp::Neq, "10.0.0.0/8"), exprs(End::Source, CmpOp::Neq, "192.0.2.1/32")];
        assert_eq!(outside, [both.concat()]);
        assert_eq!(v4("ip saddr { 1.1.1.1, 2.2.2.2 } iifname {a, b}").unwrap().len(), 4);
    }

    #[test]
    fn interface_names_and_prefixes() {
        let compare = |rules: Matches| match &rules[0][1] {
            Expr::Cmp { value, op, .. } => (*op, value.clone()),
            other => panic!("{other:?}"),
        };
        assert_eq!(compare(v4("iifname != \"eth*\"").unwrap()), (CmpOp::Neq, b"eth".to_vec()));
        assert_eq!(
            compare(v4("meta oifname eth0").unwrap()),
            (CmpOp::Eq, b"eth0\0\0\0\0\0\0\0\0\0\0\0\0".to_vec())
        );
    }

    #[test]
    fn errors_name_the_word() {
        for (text, why) in [
            ("tcp dport 80", "\"tcp\" is not supported"),
            ("ip protocol tcp", "\"ip protocol\" is not supported"),
            ("ip6 saddr fd00::1", "\"ip6\" is not allowed in conditions of IPv4"),
            ("ip saddr fd00::1", "is not IPv4"),
            ("ip saddr 10.0.0.1-10.0.0.9", "is not an address or network"),
            ("ip saddr @blocked", "is not an address or network"),
            ("ip saddr", "the last match is incomplete"),
            ("ip", "missing keyword after \"ip\""),
            ("ip saddr { 10.0.0.1", "the last match is incomplete"),
            ("ip saddr { }", "the last match is incomplete"),
            ("ip saddr { 10.0.0.1 10.0.0.2 }", "expected a comma or closing brace instead of \"10.0.0.2\""),
            ("iifname \"eth0", "is not an interface name"),
            ("iifname a\"b", "is not an interface name"),
            ("iifname { , }", "\",\" is not an interface name"),
            ("iifname *", "is not an interface name"),
            ("iifname 0123456789abcdef", "is not an interface name"),
            ("ip saddr = 10.0.0.1", "\"=\" is not an address or network"),
            ("ip saddr 10.0.0.1; flush ruleset", "is not an address or network"),
        ] {
            let error = v4(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let names: Vec<String> = (0..65).map(|n| format!("eth{n}")).collect();
        assert!(
            v4(&format!("iifname {{ {} }}", names.join(","))).unwrap_err().contains("more than 64 rules")
        );
    }
}
