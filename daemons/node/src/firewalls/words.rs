//! Rules of iptables-legacy, as [`super::walk`] sees them.

use ferrule_kernel::iptables::{Listing, Rule};
use ipnetwork::IpNetwork;

use super::walk::{Chains, Step, Then, When};
use super::{Pods, is_link};

/// The chains of a table for packets of these pods.
pub(super) fn chains(listing: &Listing, pods: &Pods<'_>) -> Chains {
    let mut chains: Chains = listing.chains.iter().map(|name| (name.clone(), Vec::new())).collect();
    for rule in &listing.rules {
        let step = step(rule, listing, pods);
        chains.entry(rule.chain.clone()).or_default().push(step);
    }
    chains
}

fn step(rule: &Rule, listing: &Listing, pods: &Pods<'_>) -> Step {
    let (mut when, mut is_not) = (When::Always, false);
    let mut words = rule.args.iter().map(String::as_str);
    while let Some(word) = words.next() {
        let is_pods = match word {
            "!" => {
                is_not = true;
                continue;
            }
            "-j" | "-g" => {
                let then = target(words.next().unwrap_or_default(), word == "-g", listing);
                return Step { when, then };
            }
            "-s" | "-d" => {
                let network = words.next().and_then(|word| word.parse::<IpNetwork>().ok());
                network.map(|network| {
                    network.contains(pods.network.network()) || pods.network.contains(network.ip())
                })
            }
            "-i" | "-o" => words.next().map(|name| {
                let prefix = name.strip_suffix('+');
                is_link(prefix.unwrap_or(name), prefix.is_some(), pods.bridges)
            }),
            "-m" => match words.next() {
                Some("comment") => {
                    let _ = (words.next(), words.next());
                    continue;
                }
                Some("set" | "iprange") => Some(!is_not),
                _ => None,
            },
            _ => None,
        };
        when = match (is_pods.map(|is_pods| is_pods != is_not), when) {
            (Some(false), _) => return Step { when: When::Else, then: Then::Next },
            (Some(true), _) | (None, When::Pods) => When::Pods,
            (None, _) => When::Else,
        };
        is_not = false;
    }
    Step { when, then: Then::Next }
}

fn target(name: &str, is_goto: bool, listing: &Listing) -> Then {
    match name {
        "ACCEPT" => Then::Accept,
        "DROP" | "REJECT" => Then::Drop,
        "RETURN" => Then::Return,
        _ if !listing.has_chain(name) => Then::Next,
        _ if is_goto => Then::Goto(name.to_owned()),
        _ => Then::Jump(name.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_words_of_a_rule() {
        let bridges = ["ferrule0".to_owned()];
        let pods = Pods { network: "10.244.1.0/24".parse().unwrap(), bridges: &bridges };
        for (text, when, then) in [
            ("-j REJECT --reject-with icmp-host-prohibited", When::Always, Then::Drop),
            ("-m comment --comment x -j ACCEPT", When::Always, Then::Accept),
            ("-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", When::Else, Then::Accept),
            ("-s 10.244.0.0/16 -j ACCEPT", When::Pods, Then::Accept),
            ("-s 10.244.1.9/32 -p tcp -j ACCEPT", When::Pods, Then::Accept),
            ("-s 192.168.0.0/16 -j DROP", When::Else, Then::Next),
            ("! -s 10.244.0.0/16 -j DROP", When::Else, Then::Next),
            ("! -i eth0 -j ACCEPT", When::Pods, Then::Accept),
            ("-i veth+ -g OTHER", When::Pods, Then::Goto("OTHER".to_owned())),
            ("-o ferrule0 -j OTHER", When::Pods, Then::Jump("OTHER".to_owned())),
            ("-o docker0 -j OTHER", When::Else, Then::Next),
            ("-m set --match-set pods src -j RETURN", When::Pods, Then::Return),
            ("-j LOG --log-prefix x", When::Always, Then::Next),
        ] {
            let listing = Listing { chains: vec!["OTHER".to_owned()], rules: Vec::new() };
            assert_eq!(step(&Rule::new("FORWARD", text), &listing, &pods), Step { when, then }, "{text}");
        }
    }
}
