//! Lists the host ports in iptables, for the operator's tool. Also tells which host ports no container has.

use std::net::IpAddr;

use cni_common::spec::{CniError, Code, Context};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{Listing, Programs, Variant, kernel, legacy};
use ferrule_kernel::netlink::Socket;

use crate::iptables::rules::{DNAT, OLD_SNAT, owner_in};
use crate::plan::{HostPort, Plan};
use crate::{nft, reference};

/// A container's chain in iptables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Chain {
    /// The network.
    pub network: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// The chain's name.
    pub name: String,
    /// Its host ports, as `8080/tcp -> 10.1.2.3:80`; empty if no program could list the chain.
    pub host_ports: Vec<String>,
}

/// Lists the containers' chains of both variants. Starts a process only for a family whose nat table has such chains.
///
/// # Errors
/// The kernel refuses to list a chain, or a program fails.
pub fn chains(socket: &mut Socket) -> Result<Vec<Chain>, CniError> {
    let step = || "list host ports of iptables";
    let mut found = Vec::new();
    for family in kernel::families_with(socket, &[DNAT, OLD_SNAT]).context(step)? {
        // iptables-nft stores DNAT in a form that only its programs decode.
        let programs = Programs::of_node(family).ok().filter(|programs| programs.variant == Variant::Nft);
        if let Some(programs) = programs {
            found.extend(in_listing(&Listing::parse(&programs.save().context(step)?)));
            continue;
        }
        found.extend(without_programs(socket, family).context(step)?);
    }
    for listing in legacy::listings().context(step)? {
        found.extend(in_listing(&listing));
    }
    Ok(found)
}

fn without_programs(
    socket: &mut Socket,
    family: IpFamily,
) -> Result<Vec<Chain>, ferrule_kernel::nftables::Error> {
    let mut found: Vec<Chain> = Vec::new();
    for parent in [DNAT, OLD_SNAT] {
        for rule in ferrule_kernel::nftables::rules(socket, kernel::table(family), parent)? {
            let comment = rule.compat_comment().or_else(|| rule.comment.clone());
            if let (Some(comment), Some(name)) = (comment, rule.jump_target()) {
                push(&mut found, &comment, &name, Vec::new);
            }
        }
    }
    Ok(found)
}

fn in_listing(listing: &Listing) -> Vec<Chain> {
    let mut found = Vec::new();
    for rule in [DNAT, OLD_SNAT].into_iter().flat_map(|parent| listing.rules_of(parent)) {
        if let (Some(comment), Some(name)) = (rule.argument("--comment"), rule.argument("-j")) {
            push(&mut found, comment, name, || host_ports(listing, name));
        }
    }
    found
}

fn push(found: &mut Vec<Chain>, comment: &str, name: &str, host_ports: impl Fn() -> Vec<String>) {
    if let Some((network, container_id)) = owner_in(comment, name)
        && !found.iter().any(|chain| chain.name == name)
    {
        let (network, container_id) = (network.to_owned(), container_id.to_owned());
        found.push(Chain { network, container_id, name: name.to_owned(), host_ports: host_ports() });
    }
}

fn host_ports(listing: &Listing, chain: &str) -> Vec<String> {
    let host_port = |rule: &ferrule_kernel::iptables::Rule| {
        let (port, proto) = (rule.argument("--dport")?, rule.argument("-p")?);
        let host = rule.argument("-d").map_or(String::new(), |ip| format!("{}:", ip.trim_end_matches("/32")));
        Some(format!("{host}{port}/{proto} -> {}", rule.argument("--to-destination")?))
    };
    let mut ports: Vec<String> = listing.rules_of(chain).filter_map(host_port).collect();
    ports.dedup();
    ports
}

/// Leaves out the host ports that some container has, in any layout.
///
/// # Errors
/// The kernel refuses to list a table, or a program fails.
pub fn unmapped(socket: &mut Socket, mut host_ports: Vec<HostPort>) -> Result<Vec<HostPort>, CniError> {
    let mut mapped: Vec<HostPort> = nft::list(socket)?.into_iter().map(|owned| owned.host_port).collect();
    mapped.extend(reference::list(socket)?.into_iter().filter_map(|(_, host_port)| host_port));
    let chains = chains(socket)?;
    host_ports.retain(|HostPort { key, target, .. }| {
        let text = format!("{}/{} -> {target}", key.port, key.proto);
        let is_it = |found: &String| {
            found.strip_suffix(&text).is_some_and(|host| host.is_empty() || host.ends_with(':'))
        };
        let same = (key.proto, key.port, *target);
        !mapped.iter().any(|found| (found.key.proto, found.key.port, found.target) == same)
            && !chains.iter().flat_map(|chain| &chain.host_ports).any(is_it)
    });
    Ok(host_ports)
}

/// Checks that no other container has one of the plan's host ports in iptables or in the reference's tables.
///
/// # Errors
/// Code 11 with the name of the container; otherwise as [`unmapped`].
pub fn ensure_free(socket: &mut Socket, plan: &Plan<'_>) -> Result<(), CniError> {
    let mut others: Vec<(String, String, String)> = Vec::new();
    for (container_id, host_port) in reference::list(socket)? {
        others.extend(host_port.map(|found| (container_id, packets(&found), found.target.to_string())));
    }
    for chain in chains(socket)? {
        let found = chain.host_ports.iter().filter_map(|host_port| host_port.split_once(" -> "));
        others.extend(
            found.map(|(key, target)| (chain.container_id.clone(), key.to_owned(), target.to_owned())),
        );
    }
    others.retain(|(container_id, ..)| container_id != plan.owner.container_id);
    for wanted in &plan.host_ports {
        let is_it = |(_, key, target): &&(String, String, String)| {
            *key == packets(wanted) && target.starts_with('[') == wanted.target.is_ipv6()
        };
        if let Some((container_id, _, target)) = others.iter().find(is_it) {
            let held = format!("host port {} is held by container {container_id}", wanted.key);
            let details = format!("the host port leads to {target}");
            return Err(CniError::new(Code::TryAgainLater, held).with_details(details));
        }
    }
    Ok(())
}

/// The packets of a host port, in the form of [`Chain::host_ports`].
fn packets(HostPort { key, .. }: &HostPort) -> String {
    let host = match key.host_ip {
        None => String::new(),
        Some(IpAddr::V4(ip)) => format!("{ip}:"),
        Some(IpAddr::V6(ip)) => format!("{ip}/128:"),
    };
    format!("{host}{}/{}", key.port, key.proto)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_of_both_layouts_name_their_container() {
        let listing = Listing::parse(concat!(
            "*nat\n",
            "-A CNI-HOSTPORT-DNAT -p tcp -m comment --comment \"dnat name: \\\"ptpnet\\\" id: \\\"id1\\\"\" ",
            "-m multiport --dports 8080 -j CNI-DN-8cd2b1b80d9ee4dbc8d5c\n",
            "-A CNI-DN-x -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.0.0.2:80\n",
            "COMMIT\n"
        ));
        assert!(in_listing(&listing).is_empty(), "the chain is not that container's");
        let name = crate::iptables::rules::chain_of("net", "one");
        let listing = Listing::parse(&format!(
            "*nat\n-A {DNAT} -p tcp -m comment --comment \"dnat name: \\\"net\\\" id: \\\"one\\\"\" -j {name}\n\
             -A {name} -d 192.0.2.1/32 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.0.0.2:80\n\
             -A {name} -p udp -m udp --dport 53 -j DNAT --to-destination 10.0.0.2:53\nCOMMIT\n"
        ));
        let host_ports = ["192.0.2.1:8080/tcp -> 10.0.0.2:80", "53/udp -> 10.0.0.2:53"].map(str::to_owned);
        let chain = Chain {
            network: "net".to_owned(),
            container_id: "one".to_owned(),
            name,
            host_ports: host_ports.to_vec(),
        };
        assert_eq!(in_listing(&listing), [chain]);
    }
}
