//! What the reference's iptables backend made through iptables-legacy.
//!
//! The legacy tables are not nf_tables and need the `iptables-legacy` program, the one process that masquerading ever
//! starts, and it does so only where the kernel has a legacy nat table. The reference's plugin made its chains with the
//! program that it found on the runtime's `PATH`; if there is none on the same `PATH`, none of these chains can be there.
//! That is no error: a node whose kube-proxy brings a legacy `iptables` in its own image would otherwise fail every DEL.

use std::env;
use std::fs;
use std::io::{self, Write};
use std::net::IpAddr;
use std::process::{Command, Output, Stdio};

use cni_common::spec::ValidAttachment;

use super::plan;

/// How often a removal is tried again because somebody else removed the same meanwhile.
const TRIES: u32 = 3;

/// One of the two families of tables.
struct Tables {
    /// Lists the legacy tables that this network namespace has.
    names: &'static str,
    /// The program's names, the first of which is legacy for sure.
    programs: [&'static str; 2],
}

const FAMILIES: [Tables; 2] = [
    Tables { names: "/proc/thread-self/net/ip_tables_names", programs: ["iptables-legacy", "iptables"] },
    Tables { names: "/proc/thread-self/net/ip6_tables_names", programs: ["ip6tables-legacy", "ip6tables"] },
];

/// The addresses for which `POSTROUTING` jumps to the chain.
pub(super) fn sources(chain: &str) -> io::Result<Vec<IpAddr>> {
    let mut sources = Vec::new();
    for program in FAMILIES.iter().filter_map(Tables::program) {
        let rules = list(program?, "POSTROUTING")?.unwrap_or_default();
        let rules = rules.lines().map(words).filter(|rule| argument(rule, "-j") == Some(chain));
        sources.extend(rules.filter_map(|rule| source(&rule)));
    }
    Ok(sources)
}

/// Deletes the chain and what jumps to it.
pub(super) fn delete(chain: &str) -> io::Result<()> {
    for program in FAMILIES.iter().filter_map(Tables::program) {
        delete_chain(program?, chain)?;
    }
    Ok(())
}

/// Deletes the chains of the network's containers that have no valid attachment.
pub(super) fn gc(network: &str, valid: &[ValidAttachment]) -> io::Result<()> {
    for program in FAMILIES.iter().filter_map(Tables::program) {
        let program = program?;
        let rules = list(program, "POSTROUTING")?.unwrap_or_default();
        let dead = rules.lines().map(words).filter_map(|rule| {
            let (comment, target) = (argument(&rule, "--comment")?, argument(&rule, "-j")?);
            plan::dead_chain(comment, target, network, valid)
        });
        for chain in dead {
            delete_chain(program, &chain)?;
        }
    }
    Ok(())
}

impl Tables {
    /// The program for the family, if the kernel has a legacy nat table of it and the program exists.
    fn program(&self) -> Option<io::Result<&'static str>> {
        let names = fs::read_to_string(self.names).unwrap_or_default();
        if !names.lines().any(|name| name == "nat") {
            return None;
        }
        let [legacy, either] = self.programs;
        if exists(legacy) {
            return Some(Ok(legacy));
        }
        if !exists(either) {
            return None;
        }
        // Before version 1.8 there was but one, which is what now is called legacy.
        match Command::new(either).arg("-V").stdin(Stdio::null()).output() {
            Ok(output) if contains(&output.stdout, "nf_tables") => None,
            Ok(_) => Some(Ok(either)),
            Err(error) => Some(Err(error)),
        }
    }
}

/// Whether the program is on the `PATH`.
fn exists(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// The chain's rules as `iptables -S` prints them, or `None` if there is no such chain.
fn list(program: &str, chain: &str) -> io::Result<Option<String>> {
    let args = ["-w", "5", "-t", "nat", "-S", chain];
    let output = Command::new(program).args(args).stdin(Stdio::null()).output()?;
    if output.status.success() {
        return Ok(Some(String::from_utf8_lossy(&output.stdout).into_owned()));
    }
    if contains(&output.stderr, "No chain/target/match by that name") {
        return Ok(None);
    }
    Err(failure(program, &output))
}

fn delete_chain(program: &str, chain: &str) -> io::Result<()> {
    let mut tries = TRIES;
    loop {
        // The chain first: where there is none, as nearly always, this is all.
        if list(program, chain)?.is_none() {
            return Ok(());
        }
        let rules = list(program, "POSTROUTING")?.unwrap_or_default();
        match restore(program, &removal(&rules, chain)) {
            Err(_) if tries > 0 => tries -= 1,
            outcome => return outcome,
        }
    }
}

/// What `iptables-restore` is told, which it does as a whole or not at all.
fn removal(postrouting: &str, chain: &str) -> String {
    let mut input = String::from("*nat\n");
    for rule in postrouting.lines().filter(|rule| argument(&words(rule), "-j") == Some(chain)) {
        if let Some(rule) = rule.strip_prefix("-A ") {
            input += &format!("-D {rule}\n");
        }
    }
    input + &format!("-F {chain}\n-X {chain}\nCOMMIT\n")
}

fn restore(program: &str, input: &str) -> io::Result<()> {
    let mut child = Command::new(format!("{program}-restore"))
        .args(["-w", "5", "--noflush"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()?;
    let written = child.stdin.take().map_or(Ok(()), |mut stdin| stdin.write_all(input.as_bytes()));
    let output = child.wait_with_output()?;
    // A program that ends early says why, which is more than a broken pipe does.
    if output.status.success() { written } else { Err(failure(&format!("{program}-restore"), &output)) }
}

fn failure(program: &str, output: &Output) -> io::Error {
    let words = String::from_utf8_lossy(&output.stderr);
    io::Error::other(format!("{program}: {}: {}", output.status, words.trim()))
}

fn contains(output: &[u8], text: &str) -> bool {
    String::from_utf8_lossy(output).contains(text)
}

/// The words of a rule as `iptables -S` prints it: text in double quotes is one word, in which a backslash stands before
/// a character that is meant as it is.
fn words(rule: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word = String::new();
    let mut quoted = false;
    let mut characters = rule.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => quoted = !quoted,
            '\\' if quoted => word.extend(characters.next()),
            ' ' if !quoted => words.push(std::mem::take(&mut word)),
            other => word.push(other),
        }
    }
    words.push(word);
    words
}

/// What follows the option.
fn argument<'r>(rule: &'r [String], option: &str) -> Option<&'r str> {
    let at = rule.iter().position(|word| word == option)?;
    rule.get(at + 1).map(String::as_str)
}

/// The single source address of the rule.
fn source(rule: &[String]) -> Option<IpAddr> {
    let negated = rule.windows(2).any(|pair| pair == ["!", "-s"]);
    let network: ipnetwork::IpNetwork = argument(rule, "-s").filter(|_| !negated)?.parse().ok()?;
    let full = if network.is_ipv6() { 128 } else { 32 };
    (network.prefix() == full).then(|| network.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    const RULE: &str =
        r#"-A POSTROUTING -s 10.0.0.2/32 -m comment --comment "name: \"net\" id: \"one\"" -j CNI-x"#;

    #[test]
    fn a_rule_is_taken_apart() {
        let rule = words(RULE);
        assert_eq!(argument(&rule, "--comment"), Some("name: \"net\" id: \"one\""));
        assert_eq!(argument(&rule, "-j"), Some("CNI-x"));
        assert_eq!(argument(&rule, "-d"), None);
        assert_eq!(source(&rule), "10.0.0.2".parse().ok());
        assert_eq!(source(&words("-A POSTROUTING ! -s 10.0.0.2/32 -j CNI-x")), None);
        assert_eq!(source(&words("-A POSTROUTING -s 10.0.0.0/24 -j CNI-x")), None);
    }

    #[test]
    fn a_removal_touches_the_chain_and_its_jumps_only() {
        let rules = format!("-P POSTROUTING ACCEPT\n-A POSTROUTING -j CNI-xy\n{RULE}\n");
        let jump = RULE.strip_prefix("-A ").unwrap();
        assert_eq!(removal(&rules, "CNI-x"), format!("*nat\n-D {jump}\n-F CNI-x\n-X CNI-x\nCOMMIT\n"));
    }
}
