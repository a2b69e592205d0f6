//! Conditions in `nft`'s words, read here: there is no `nft` program to ask, and none to be led astray.
//!
//! ```text
//! conditions = { match }
//! match      = ( "ip" | "ip6" ) ( "saddr" | "daddr" ) [ "==" | "!=" ] addresses
//!            | [ "meta" ] ( "iifname" | "oifname" ) [ "==" | "!=" ] names
//! addresses  = address | "{" address { "," address } "}"       with or without a prefix length
//! names      = name | "{" name { "," name } "}"                 with or without quotes, `*` at the end for any end
//! ```

use cni_common::spec::addr::{parse_cidr, parse_ip};
use ferrule_kernel::nftables::matches::{End, address};
use ferrule_kernel::nftables::{CmpOp, Expr, MetaKey, Register};
use ipnetwork::IpNetwork;

/// How many rules the sets in one network's conditions may multiply to.
const MAX_RULES: usize = 64;

/// Alternatives, each the steps of a rule; a packet has to pass one of them.
///
/// A set of things to be equal to becomes several rules, one of things to differ from several steps of one. So no sets
/// have to be made for them, and a rule read from the kernel shows all.
pub type Matches = Vec<Vec<Expr>>;

/// Reads the conditions of one family.
///
/// # Errors
/// The word that cannot be used, and what can.
pub fn parse(conditions: &[String], v6: bool) -> Result<Matches, String> {
    let text = conditions.join(" ");
    let words = split(&text)?;
    let mut words = words.iter().map(String::as_str).peekable();
    let mut all: Matches = vec![Vec::new()];
    while let Some(word) = words.next() {
        let subject = Subject::parse(word, &mut words, v6)?;
        let op = match words.next_if(|word| matches!(*word, "==" | "!=" | "eq" | "ne")) {
            Some("!=" | "ne") => CmpOp::Neq,
            _ => CmpOp::Eq,
        };
        let values = values(&mut words)?;
        let steps: Result<Vec<Vec<Expr>>, String> =
            values.into_iter().map(|value| subject.matches(op, value, v6)).collect();
        let steps = steps?;
        all = match op {
            CmpOp::Neq => all.into_iter().map(|rule| [rule, steps.concat()].concat()).collect(),
            CmpOp::Eq => all
                .iter()
                .flat_map(|rule| steps.iter().map(move |step| [rule.as_slice(), step].concat()))
                .collect(),
        };
        if all.len() > MAX_RULES {
            return Err(format!("the sets in it make more than {MAX_RULES} combinations"));
        }
    }
    Ok(all)
}

/// What a match looks at.
#[derive(Clone, Copy)]
enum Subject {
    Address(End),
    Name(MetaKey),
}

impl Subject {
    fn parse<'w>(
        word: &str,
        words: &mut std::iter::Peekable<impl Iterator<Item = &'w str>>,
        v6: bool,
    ) -> Result<Self, String> {
        let family = if v6 { "ip6" } else { "ip" };
        let mut next = |after: &str| words.next().ok_or_else(|| format!("nothing stands behind {after:?}"));
        match word {
            "ip" | "ip6" if word == family => match next(word)? {
                "saddr" => Ok(Subject::Address(End::Source)),
                "daddr" => Ok(Subject::Address(End::Destination)),
                other => Err(unsupported(&format!("{word} {other}"))),
            },
            "ip" | "ip6" => Err(format!("{word:?} in the conditions of the other family")),
            "meta" => Subject::name(next(word)?),
            other => Subject::name(other),
        }
    }

    fn name(word: &str) -> Result<Self, String> {
        match word {
            "iifname" => Ok(Subject::Name(MetaKey::IifName)),
            "oifname" => Ok(Subject::Name(MetaKey::OifName)),
            other => Err(unsupported(other)),
        }
    }

    fn matches(self, op: CmpOp, value: &str, v6: bool) -> Result<Vec<Expr>, String> {
        match self {
            Subject::Address(end) => Ok(address(end, op, network(value, v6)?)),
            Subject::Name(key) => {
                let compare = Expr::Cmp { register: Register::R1, op, value: interface(value)? };
                Ok(vec![Expr::Meta { key, to: Register::R1 }, compare])
            }
        }
    }
}

fn unsupported(what: &str) -> String {
    format!(
        "{what:?} is not supported (supported are ip saddr, ip daddr, ip6 saddr, ip6 daddr, iifname and oifname)"
    )
}

fn network(text: &str, v6: bool) -> Result<IpNetwork, String> {
    let network = if text.contains('/') { parse_cidr(text) } else { parse_ip(text).map(IpNetwork::from) };
    let network = network.map_err(|_| format!("{text:?} is neither an address nor a network"))?;
    if network.is_ipv6() == v6 { Ok(network) } else { Err(format!("{text:?} is of the other family")) }
}

/// The 16 bytes of an interface's name, or as many as stand before a `*`.
fn interface(text: &str) -> Result<Vec<u8>, String> {
    let (name, open) = text.strip_suffix('*').map_or((text, false), |start| (start, true));
    let is_name = !name.is_empty() && name.len() < 16 && !name.contains(['*', '/', '\\', '"']);
    if !is_name {
        return Err(format!("{text:?} is no interface's name"));
    }
    let mut bytes = name.as_bytes().to_vec();
    if !open {
        bytes.resize(16, 0);
    }
    Ok(bytes)
}

/// A single value, or those of a set.
fn values<'w>(
    words: &mut std::iter::Peekable<impl Iterator<Item = &'w str>>,
) -> Result<Vec<&'w str>, String> {
    let end = || "the conditions end within a match".to_owned();
    let first = words.next().ok_or_else(end)?;
    if first != "{" {
        return if matches!(first, "}" | ",") {
            Err(format!("{first:?} at a wrong place"))
        } else {
            Ok(vec![first])
        };
    }
    let mut values = Vec::new();
    loop {
        let value = words.next().ok_or_else(end)?;
        // A comma behind the last one is fine.
        if value == "}" && !values.is_empty() {
            return Ok(values);
        }
        if matches!(value, "{" | "}" | ",") {
            return Err(format!("{value:?} at a wrong place"));
        }
        values.push(value);
        match words.next().ok_or_else(end)? {
            "," => {}
            "}" => return Ok(values),
            other => return Err(format!("{other:?} where a comma or a brace should be")),
        }
    }
}

/// The words; braces, commas and comparisons are words of their own, and quotes are gone.
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
            let close = rest[1..].find('"').ok_or("a quote is not closed")?;
            words.push(rest[1..=close].to_owned());
            rest = &rest[close + 2..];
            continue;
        } else {
            rest.find(|c: char| c.is_whitespace() || "{},=!\"".contains(c)).unwrap_or(rest.len())
        };
        if len == 0 {
            return Err(format!("{first:?} at a wrong place"));
        }
        words.push(rest[..len].to_owned());
        rest = &rest[len..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn v4(text: &str) -> Result<Matches, String> {
        parse(&[text.to_owned()], false)
    }

    fn steps(end: End, op: CmpOp, network: &str) -> Vec<Expr> {
        address(end, op, network.parse().unwrap())
    }

    #[test]
    fn addresses_with_and_without_negation_in_one_string_or_several() {
        let wanted = vec![steps(End::Source, CmpOp::Neq, "10.0.0.0/8")];
        assert_eq!(v4("ip saddr != 10.0.0.0/8"), Ok(wanted.clone()));
        let several = ["ip", "saddr", "!=", "10.0.0.0/8"].map(str::to_owned);
        assert_eq!(parse(&several, false), Ok(wanted));
        assert_eq!(v4("ip daddr 192.0.2.1"), Ok(vec![steps(End::Destination, CmpOp::Eq, "192.0.2.1/32")]));
        let v6 = parse(&["ip6 daddr == fd00::/64".to_owned()], true);
        assert_eq!(v6, Ok(vec![steps(End::Destination, CmpOp::Eq, "fd00::/64")]));
        assert_eq!(parse(&[], false), Ok(vec![Vec::new()]));
    }

    #[test]
    fn a_set_to_be_in_is_alternatives_and_one_to_stay_out_of_is_not() {
        let inside = v4("ip saddr {10.0.0.0/8,192.0.2.1}").unwrap();
        assert_eq!(inside.len(), 2);
        assert_eq!(inside[1], steps(End::Source, CmpOp::Eq, "192.0.2.1/32"));
        let outside = v4("ip saddr != { 10.0.0.0/8, 192.0.2.1 }").unwrap();
        let both =
            [steps(End::Source, CmpOp::Neq, "10.0.0.0/8"), steps(End::Source, CmpOp::Neq, "192.0.2.1/32")];
        assert_eq!(outside, [both.concat()]);
        assert_eq!(v4("ip saddr { 1.1.1.1, 2.2.2.2 } iifname {a, b}").unwrap().len(), 4);
    }

    #[test]
    fn interfaces_by_name_and_by_its_start() {
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
    fn the_rest_is_refused_by_name() {
        for (text, why) in [
            ("tcp dport 80", "\"tcp\" is not supported"),
            ("ip protocol tcp", "\"ip protocol\" is not supported"),
            ("ip6 saddr fd00::1", "\"ip6\" in the conditions of the other family"),
            ("ip saddr fd00::1", "is of the other family"),
            ("ip saddr 10.0.0.1-10.0.0.9", "is neither an address nor a network"),
            ("ip saddr @blocked", "is neither an address nor a network"),
            ("ip saddr", "the conditions end within a match"),
            ("ip", "nothing stands behind \"ip\""),
            ("ip saddr { 10.0.0.1", "the conditions end within a match"),
            ("ip saddr { }", "\"}\" at a wrong place"),
            ("ip saddr { 10.0.0.1 10.0.0.2 }", "where a comma or a brace should be"),
            ("iifname \"eth0", "a quote is not closed"),
            ("iifname a\"b", "a quote is not closed"),
            ("iifname *", "is no interface's name"),
            ("iifname 0123456789abcdef", "is no interface's name"),
            ("ip saddr = 10.0.0.1", "'=' at a wrong place"),
            ("ip saddr 10.0.0.1; flush ruleset", "is neither an address nor a network"),
        ] {
            let error = v4(text).unwrap_err();
            assert!(error.contains(why), "{text}: {error}");
        }
        let names: Vec<String> = (0..65).map(|n| format!("eth{n}")).collect();
        assert!(v4(&format!("iifname {{ {} }}", names.join(","))).unwrap_err().contains("combinations"));
    }
}
