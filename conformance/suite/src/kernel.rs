//! Probes of the kernel and of installed programs; each result is cached.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use super::outcome::{Stop, TestResult, skip};
use super::plugin_under_test::Description;
use cni_lab::{Node, Place as _};

static KNOWN: Mutex<Option<HashMap<String, bool>>> = Mutex::new(None);

/// Skips the test case if the machine lacks a program, link type or queueing discipline that the plugin needs.
pub fn has_all(description: &Description) -> TestResult {
    tools(&description.tools)?;
    let prepare = "ip link add probe0 type veth peer name probe1";
    for kind in &description.links {
        let command = match kind.as_str() {
            "veth" => "true".to_owned(),
            "macvlan" | "ipvlan" => format!("ip link add link probe0 name probe2 type {kind}"),
            "vlan" => "ip link add link probe0 name probe2 type vlan id 7".to_owned(),
            "tap" => "ip tuntap add probe2 mode tap".to_owned(),
            "vrf" => "ip link add probe2 type vrf table 77".to_owned(),
            _ => format!("ip link add probe2 type {kind}"),
        };
        if !works(&format!("{prepare} && {command}"))? {
            return skip(format!("this kernel has no link type {kind}"));
        }
    }
    for kind in &description.qdiscs {
        let command = match kind.as_str() {
            "ingress" | "clsact" => format!("tc qdisc add dev probe0 {kind}"),
            "tbf" => "tc qdisc add dev probe0 root tbf rate 1mbit burst 10k latency 10ms".to_owned(),
            _ => format!("tc qdisc add dev probe0 root {kind}"),
        };
        if !works(&format!("{prepare} && {command}"))? {
            return skip(format!("this kernel has no queueing discipline {kind}"));
        }
    }
    Ok(())
}

/// Skips the test case if one of these programs is not installed.
pub fn tools(programs: &[impl AsRef<str>]) -> TestResult {
    for program in programs.iter().map(AsRef::as_ref) {
        if !works(&format!("command -v {program}"))? {
            return skip(format!("the program {program} is not installed"));
        }
    }
    Ok(())
}

/// Whether a shell command succeeds on a new node.
pub fn works(command: &str) -> Result<bool, Stop> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let known = known.get_or_insert_default();
    if let Some(works) = known.get(command) {
        return Ok(*works);
    }
    let works = Node::new()?.sh(command).is_ok();
    known.insert(command.to_owned(), works);
    Ok(works)
}
