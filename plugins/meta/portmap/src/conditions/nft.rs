//! Parses conditions in nft syntax. No `nft` process is started, so no other command can be injected.
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

/// Parses the conditions of one family.
///
/// # Errors
/// The word that is not supported or not expected.
pub fn parse(conditions: &[String], family: IpFamily) -> Result<Matches, String> {
    let text = conditions.join(" ");
    let words = split(&text)?;
    let mut words = words.iter().map(String::as_str).peekable();
    let mut all: Matches = vec![Vec::new()];
    while let Some(word) = words.next() {
        let field = Field::parse(word, &mut words, family)?;
        let op = match words.next_if(|word| matches!(*word, "==" | "!=" | "eq" | "ne")) {
            Some("!=" | "ne") => CmpOp::Neq,
            _ => CmpOp::Eq,
        };
        let values = values(&mut words)?;
        let exprs: Result<Vec<Vec<Expr>>, String> =
            values.into_iter().map(|value| field.matches(op, value, family)).collect();
        let exprs = exprs?;
        all = match op {
            CmpOp::Neq => all.into_iter().map(|rule| [rule, exprs.concat()].concat()).collect(),
            CmpOp::Eq => all
                .iter()
                .flat_map(|rule| exprs.iter().map(move |step| [rule.as_slice(), step].concat()))
                .collect(),
        };
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
        word: &str,
        words: &mut std::iter::Peekable<impl Iterator<Item = &'w str>>,
        family: IpFamily,
    ) -> Result<Self, String> {
        let own = Family::of(family).to_string();
        let mut next = |after: &str| words.next().ok_or_else(|| format!("missing keyword after {after:?}"));
        match word {
            "ip" | "ip6" if word == own => match next(word)? {
                "saddr" => Ok(Field::Address(End::Source)),
                "daddr" => Ok(Field::Address(End::Destination)),
                other => Err(unsupported(&format!("{word} {other}"))),
            },
            "ip" | "ip6" => Err(format!("{word:?} is not allowed in conditions of {}", family)),
            "meta" => Field::name(next(word)?),
            other => Field::name(other),
        }
    }

    fn name(word: &str) -> Result<Self, String> {
        match word {
            "iifname" => Ok(Field::Name(MetaKey::IifName)),
            "oifname" => Ok(Field::Name(MetaKey::OifName)),
            other => Err(unsupported(other)),
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
    if IpFamily::of(network.ip()) == family {
        Ok(network)
    } else {
        Err(format!("{text:?} is not {}", family))
    }
}

/// Encodes an interface name as nf_tables compares it: 16 bytes, or only the bytes before a final `*`.
fn interface(text: &str) -> Result<Vec<u8>, String> {
    let (name, open) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
    let is_name = !name.is_empty() && name.len() < 16 && !name.contains(['*', '/', '\\', '"']);
    if !is_name {
        return Err(format!("{text:?} is not an interface name"));
    }
    let mut bytes = name.as_bytes().to_vec();
    if !open {
        bytes.resize(16, 0);
    }
    Ok(bytes)
}

/// Parses one value, or a set of values in braces.
fn values<'w>(
    words: &mut std::iter::Peekable<impl Iterator<Item = &'w str>>,
) -> Result<Vec<&'w str>, String> {
    let end = || "the last match is incomplete".to_owned();
    let first = words.next().ok_or_else(end)?;
    if first != "{" {
        return if matches!(first, "}" | ",") {
            Err(format!("unexpected {first:?}"))
        } else {
            Ok(vec![first])
        };
    }
    let mut values = Vec::new();
    loop {
        let value = words.next().ok_or_else(end)?;
        // A trailing comma is allowed.
        if value == "}" && !values.is_empty() {
            return Ok(values);
        }
        if matches!(value, "{" | "}" | ",") {
            return Err(format!("unexpected {value:?}"));
        }
        values.push(value);
        match words.next().ok_or_else(end)? {
            "," => {}
            "}" => return Ok(values),
            other => return Err(format!("expected a comma or closing brace instead of {other:?}")),
        }
    }
}

/// Splits the text into words. Braces, commas and comparison operators are separate words. Removes quotes.
fn split(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut rest = text;
    loop {
        rest = rest.trim_start();
        let Some(first) = rest.chars().next() else { return Ok(words) };
        let len = if let Some(special) = ["==", "!=", "{", "}", ","].into_iter().find(|s| rest.starts_with(s))
        {
            special.len()
        } else if first == '"' {
            let close = rest[1..].find('"').ok_or("unterminated quote")?;
            words.push(rest[1..=close].to_owned());
            rest = &rest[close + 2..];
            continue;
        } else {
            rest.find(|c: char| c.is_whitespace() || "{},=!\"".contains(c)).unwrap_or(rest.len())
        };
        if len == 0 {
            return Err(format!("unexpected {first:?}"));
        }
        words.push(rest[..len].to_owned());
        rest = &rest[len..];
    }
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
            ("ip saddr { }", "unexpected \"}\""),
            ("ip saddr { 10.0.0.1 10.0.0.2 }", "expected a comma or closing brace instead of \"10.0.0.2\""),
            ("iifname \"eth0", "unterminated quote"),
            ("iifname a\"b", "unterminated quote"),
            ("iifname *", "is not an interface name"),
            ("iifname 0123456789abcdef", "is not an interface name"),
            ("ip saddr = 10.0.0.1", "unexpected '='"),
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
