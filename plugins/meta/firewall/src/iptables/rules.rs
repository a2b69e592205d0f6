//! Computes the chains and rules of iptables. Names, comments and positions are the reference's, byte for byte. Nothing here
//! sends requests to the kernel or starts a program.

use std::net::IpAddr;

use cni_common::spec::CniError;
use ferrule_kernel::iptables::{Listing, Rule};
use ferrule_kit::check::ensure;

use crate::config::Policy;
use crate::forward_chain::{self, CNI_FORWARD, STAGE_1};
use crate::plan::single;

/// The chain that drops packets to a guarded bridge.
const STAGE_2: &str = "CNI-ISOLATION-STAGE-2";

const COMMENT: &str = "CNI firewall plugin rules";
const ADMIN_COMMENT: &str = "CNI firewall plugin admin overrides";

/// What an attachment needs in one family.
pub(super) struct Wanted<'a> {
    /// The operator's chain.
    pub(super) admin: &'a str,
    /// The container's addresses of the family.
    pub(super) addresses: &'a [IpAddr],
    /// The bridge and its policy, unless that is `open`.
    pub(super) bridge: Option<(&'a str, Policy)>,
    /// The bit of the packet mark, for the forward chain.
    pub(super) mark_bit: u8,
}

/// `MATCHES -m comment --comment COMMENT -j TARGET`
fn commented(chain: &str, matches: &str, comment: &str, target: &str) -> Rule {
    Rule::commented(chain, matches, comment, &format!("-j {target}"))
}

fn jump() -> Rule {
    commented(forward_chain::FORWARD, "", COMMENT, CNI_FORWARD)
}

fn stage_jump() -> Rule {
    commented(forward_chain::FORWARD, "", &of_policy("same-bridge|isolated"), STAGE_1)
}

fn of_policy(policy: &str) -> String {
    format!("{COMMENT} (ingressPolicy: {policy})")
}

/// The two rules of an address.
pub(super) fn of_address(address: IpAddr) -> [Rule; 2] {
    let address = single(address);
    [
        Rule::new(CNI_FORWARD, &format!("-d {address} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT")),
        Rule::new(CNI_FORWARD, &format!("-s {address} -j ACCEPT")),
    ]
}

/// The rules of a bridge in [`STAGE_1`], the last one first.
fn of_bridge(bridge: &str, policy: Policy) -> Vec<Rule> {
    let comment = of_policy(policy.name());
    let mut rules = vec![commented(STAGE_1, &format!("-i {bridge} ! -o {bridge}"), &comment, STAGE_2)];
    match policy {
        Policy::Isolated => {
            rules.push(commented(STAGE_1, &format!("-i {bridge} -o {bridge}"), &comment, "DROP"));
        }
        Policy::Strict => {
            let new =
                format!("! -i {bridge} -o {bridge} -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT");
            rules.push(commented(STAGE_1, &new, &comment, "DROP"));
        }
        Policy::Open | Policy::SameBridge => {}
    }
    rules
}

fn drop_to(bridge: &str) -> Rule {
    commented(STAGE_2, &format!("-o {bridge}"), &of_policy("same-bridge|isolated"), "DROP")
}

fn return_of(chain: &str) -> Rule {
    commented(chain, "", &of_policy("same-bridge|isolated"), "RETURN")
}

fn is_in(listing: &Listing, wanted: &Rule) -> bool {
    listing.rules.contains(wanted)
}

/// The lines for `iptables-restore` that add what the listing lacks, in the reference's order; none if it lacks nothing.
pub(super) fn lines(listing: &Listing, wanted: &Wanted<'_>) -> Vec<String> {
    let mut lines = forward_chain::lines(listing, wanted.mark_bit);
    let make = |chain: &str, lines: &mut Vec<String>| {
        if !listing.has_chain(chain) && !lines.contains(&format!("-N {chain}")) {
            lines.push(format!("-N {chain}"));
        }
    };
    let add = |command: &str, rule: &Rule, lines: &mut Vec<String>| {
        if !is_in(listing, rule) {
            lines.push(rule.line(command));
        }
    };
    make(CNI_FORWARD, &mut lines);
    make(wanted.admin, &mut lines);
    add("-I", &jump(), &mut lines);
    add("-I", &commented(CNI_FORWARD, "", ADMIN_COMMENT, wanted.admin), &mut lines);
    for rule in wanted.addresses.iter().flat_map(|address| of_address(*address)) {
        add("-A", &rule, &mut lines);
    }
    if wanted.bridge.is_some() {
        make(STAGE_1, &mut lines);
        make(STAGE_2, &mut lines);
    }
    // A jump to CNI-FORWARD before this one would accept packets that the policies drop.
    if (wanted.bridge.is_some() || is_in(listing, &stage_jump())) && !is_in_order(listing) {
        if is_in(listing, &stage_jump()) {
            lines.push(stage_jump().line("-D"));
        }
        lines.push(stage_jump().line("-I"));
    }
    let Some((bridge, policy)) = wanted.bridge else { return lines };
    let rules = of_bridge(bridge, policy);
    // Rules of another policy that the bridge had.
    let is_stale = |rule: &&Rule| {
        let comment = rule.argument("--comment").unwrap_or_default();
        rule.argument("-i") == Some(bridge)
            && comment.starts_with(&of_policy("")[..of_policy("").len() - 1])
            && !rules.contains(rule)
    };
    lines.extend(listing.rules_of(STAGE_1).filter(is_stale).map(|rule| rule.line("-D")));
    for rule in &rules {
        add("-I", rule, &mut lines);
    }
    add("-A", &return_of(STAGE_1), &mut lines);
    add("-I", &drop_to(bridge), &mut lines);
    add("-A", &return_of(STAGE_2), &mut lines);
    lines
}

/// Whether FORWARD jumps to the chain of the policies before it jumps to the chain of the containers.
fn is_in_order(listing: &Listing) -> bool {
    let first = |wanted: &Rule| listing.rules_of(forward_chain::FORWARD).position(|rule| rule == wanted);
    matches!((first(&stage_jump()), first(&jump())), (Some(stage), Some(containers)) if stage < containers)
}

/// The lines that delete the rules of these addresses.
pub(super) fn removal(listing: &Listing, addresses: &[IpAddr]) -> Vec<String> {
    let own: Vec<Rule> = addresses.iter().flat_map(|address| of_address(*address)).collect();
    listing.rules_of(CNI_FORWARD).filter(|rule| own.contains(rule)).map(|rule| rule.line("-D")).collect()
}

/// The addresses that the listing lets pass.
pub(super) fn sources(listing: &Listing) -> Vec<IpAddr> {
    let source = |rule: &Rule| -> Option<IpAddr> { rule.argument("-s")?.split('/').next()?.parse().ok() };
    let sources = listing.rules_of(CNI_FORWARD).filter_map(|rule| Some((rule, source(rule)?)));
    sources
        .filter(|(rule, address)| of_address(*address).contains(rule))
        .map(|(_, address)| address)
        .collect()
}

/// Compares the listing with what the attachment needs.
///
/// # Errors
/// Code 999 with the first missing rule, in the reference's words.
pub(super) fn check(listing: &Listing, wanted: &Wanted<'_>) -> Result<(), CniError> {
    let admin = commented(CNI_FORWARD, "", ADMIN_COMMENT, wanted.admin);
    for (shared, chain) in [(jump(), forward_chain::FORWARD), (admin, CNI_FORWARD)] {
        ensure(is_in(listing, &shared), || {
            format!("expected {chain} rule [{}] not found", shared.args.join(" "))
        })?;
    }
    let mut rules: Vec<Rule> = wanted.addresses.iter().flat_map(|address| of_address(*address)).collect();
    if let Some((bridge, policy)) = wanted.bridge {
        rules.push(stage_jump());
        rules.extend(of_bridge(bridge, policy));
        rules.push(drop_to(bridge));
    }
    for rule in &rules {
        ensure(is_in(listing, rule), || format!("expected rule [{}] not found", rule.args.join(" ")))?;
    }
    ensure(wanted.bridge.is_none() || is_in_order(listing), || {
        format!("FORWARD jumps to {CNI_FORWARD} before {STAGE_1}: the policies of bridges have no effect")
    })
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::iptables::FILTER;

    use super::*;

    const ADDRESS: [IpAddr; 1] = [IpAddr::V4(std::net::Ipv4Addr::new(10, 1, 2, 3))];

    fn listing(rules: &str) -> Listing {
        Listing::of(FILTER, &format!("*filter\n:FORWARD DROP [0:0]\n{rules}\nCOMMIT\n"))
    }

    fn wanted(bridge: Option<(&'static str, Policy)>) -> Wanted<'static> {
        Wanted { admin: "CNI-ADMIN", addresses: &ADDRESS, bridge, mark_bit: 20 }
    }

    /// The state after the lines, as far as these tests need it: `-N`, `-A`, `-I` at the start, `-D`.
    fn apply(listing: &Listing, lines: &[String]) -> Listing {
        let mut state = listing.clone();
        for line in lines {
            let (command, rest) = line.split_once(' ').unwrap();
            let parsed =
                Listing::of(FILTER, &format!("*filter\n-A {}", rest.replacen("FORWARD 1", "FORWARD", 1)));
            match (command, parsed.rules.first()) {
                ("-N", _) => state.chains.push(rest.to_owned()),
                ("-A", Some(rule)) => state.rules.push(rule.clone()),
                ("-I", Some(rule)) => state.rules.insert(0, rule.clone()),
                ("-D", Some(rule)) => {
                    let at = state.rules.iter().position(|other| other == rule).unwrap();
                    state.rules.remove(at);
                }
                _ => panic!("{line}"),
            }
        }
        state
    }

    fn texts(listing: &Listing, chain: &str) -> Vec<String> {
        listing.rules_of(chain).map(|rule| rule.line("-A")).collect()
    }

    #[test]
    fn the_state_is_the_references() {
        let foo = apply(&listing(""), &lines(&listing(""), &wanted(Some(("foo", Policy::SameBridge)))));
        let both = apply(&foo, &lines(&foo, &wanted(Some(("bar", Policy::Isolated)))));
        let c = "CNI firewall plugin rules";
        let any = format!("-m comment --comment \"{c} (ingressPolicy: same-bridge|isolated)\"");
        let of = |policy: &str| format!("-m comment --comment \"{c} (ingressPolicy: {policy})\"");
        assert_eq!(
            texts(&both, "FORWARD"),
            [
                format!("-A FORWARD {any} -j CNI-ISOLATION-STAGE-1"),
                format!("-A FORWARD -m comment --comment \"{c}\" -j CNI-FORWARD"),
                "-A FORWARD -j FERRULE-FORWARD".to_owned(),
            ]
        );
        assert_eq!(
            texts(&both, STAGE_1),
            [
                format!("-A {STAGE_1} -i bar -o bar {} -j DROP", of("isolated")),
                format!("-A {STAGE_1} -i bar ! -o bar {} -j {STAGE_2}", of("isolated")),
                format!("-A {STAGE_1} -i foo ! -o foo {} -j {STAGE_2}", of("same-bridge")),
                format!("-A {STAGE_1} {any} -j RETURN"),
            ]
        );
        assert_eq!(
            texts(&both, STAGE_2),
            [
                format!("-A {STAGE_2} -o bar {any} -j DROP"),
                format!("-A {STAGE_2} -o foo {any} -j DROP"),
                format!("-A {STAGE_2} {any} -j RETURN"),
            ]
        );
        assert_eq!(
            texts(&both, CNI_FORWARD),
            [
                "-A CNI-FORWARD -m comment --comment \"CNI firewall plugin admin overrides\" -j CNI-ADMIN",
                "-A CNI-FORWARD -d 10.1.2.3/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
                "-A CNI-FORWARD -s 10.1.2.3/32 -j ACCEPT",
            ]
        );
        assert_eq!(lines(&both, &wanted(Some(("bar", Policy::Isolated)))), [""; 0]);
        assert_eq!(check(&both, &wanted(Some(("bar", Policy::Isolated)))), Ok(()));
        assert_eq!(removal(&both, &ADDRESS).len(), 2);
        assert_eq!(sources(&both), ADDRESS);
    }

    #[test]
    fn a_new_policy_replaces_the_old_one() {
        let isolated = apply(&listing(""), &lines(&listing(""), &wanted(Some(("br", Policy::Isolated)))));
        let same = apply(&isolated, &lines(&isolated, &wanted(Some(("br", Policy::SameBridge)))));
        assert!(!texts(&same, STAGE_1).iter().any(|rule| rule.contains("DROP")), "{same:?}");
        assert_eq!(texts(&same, STAGE_1).len(), 2, "{same:?}");
    }

    #[test]
    fn a_jump_that_bypasses_the_policies_is_found_and_repaired() {
        let policy = Some(("br", Policy::SameBridge));
        let mut stray = apply(&listing(""), &lines(&listing(""), &wanted(policy)));
        stray.rules.insert(0, jump());
        let error = check(&stray, &wanted(policy)).unwrap_err();
        assert!(error.msg.contains("have no effect"), "{error}");
        // Every ADD repairs it, also one without a policy.
        let repaired = apply(&stray, &lines(&stray, &wanted(None)));
        assert_eq!(check(&repaired, &wanted(policy)), Ok(()));
    }

    #[test]
    fn check_has_the_words_of_the_reference() {
        let whole = apply(&listing(""), &lines(&listing(""), &wanted(None)));
        for (chain, at, text) in [
            (
                "FORWARD",
                0,
                "expected FORWARD rule [-m comment --comment CNI firewall plugin rules -j CNI-FORWARD] not found",
            ),
            (
                CNI_FORWARD,
                0,
                "expected CNI-FORWARD rule [-m comment --comment CNI firewall plugin admin overrides -j CNI-ADMIN] not found",
            ),
            (
                CNI_FORWARD,
                1,
                "expected rule [-d 10.1.2.3/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT] not found",
            ),
            (CNI_FORWARD, 2, "expected rule [-s 10.1.2.3/32 -j ACCEPT] not found"),
        ] {
            let mut broken = whole.clone();
            let rule = whole.rules_of(chain).nth(at).unwrap();
            broken.rules.retain(|other| other != rule);
            assert_eq!(check(&broken, &wanted(None)).unwrap_err().msg, text);
        }
    }
}
