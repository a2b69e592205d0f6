//! Links, addresses, routes, rules, queueing disciplines and forwarding.

use std::fs;
use std::io::{Seek as _, Write as _};
use std::process::Command;

use anyhow::{Context as _, ensure};
use serde_json::Value;

use super::Snapshot;
use crate::Place;

const SYSCTLS: [&str; 2] = ["ipv4/ip_forward", "ipv6/conf/all/forwarding"];

pub(super) fn take<P: Place>(place: &P, snapshot: &mut Snapshot) -> anyhow::Result<()> {
    let links = list(place, "ip -j -d address show")?;
    snapshot.add_sorted("link", links.iter().map(link).collect());
    snapshot.add_sorted("address", links.iter().flat_map(addresses).collect());
    let (rules, routes): (Vec<_>, Vec<_>) =
        routes_and_rules(place)?.into_iter().partition(|object| object.get("priority").is_some());
    let routes = routes.iter().map(|route| plain(route, &["flags", "pref", "dead"]));
    snapshot.add_sorted(
        "route",
        routes.filter(|route| !route.contains("fe80::") && !is_multicast(route)).collect(),
    );
    for (family, rules) in [("-4", rules), ("-6", list(place, "ip -j -6 rule show")?)] {
        let rules = rules.iter().map(|rule| format!("{family} {}", plain(rule, &[])));
        snapshot.add(&format!("rule {family}"), rules.collect());
    }
    queueing(place, snapshot)?;
    let sysctls =
        place.run(|| SYSCTLS.map(|name| (name, fs::read_to_string(format!("/proc/sys/net/{name}")))))?;
    // A kernel without IPv6 does not have the IPv6 sysctl.
    let lines =
        sysctls.iter().filter_map(|(name, value)| Some(format!("{name} = {}", value.as_ref().ok()?.trim())));
    snapshot.add_sorted("sysctl", lines.collect());
    Ok(())
}

fn queueing<P: Place>(place: &P, snapshot: &mut Snapshot) -> anyhow::Result<()> {
    let disciplines = list(place, "tc -j qdisc show")?;
    snapshot.add_sorted("qdisc", disciplines.iter().map(|qdisc| plain(qdisc, &["refcnt"])).collect());
    for qdisc in &disciplines {
        let (kind, device) = (text(qdisc, "kind"), text(qdisc, "dev"));
        let hooks: &[&str] = match kind {
            "ingress" => &["ingress"],
            "clsact" => &["ingress", "egress"],
            _ => continue,
        };
        for hook in hooks {
            let shown = place.tool("tc", &["filter", "show", "dev", device, hook]);
            if shown.is_err() && place.tool("ip", &["link", "show", "dev", device]).is_err() {
                continue; // The kernel has removed it meanwhile.
            }
            let filters = shown?;
            let filters = filters.lines().map(|line| line.trim().to_owned()).collect();
            snapshot.add(&format!("filter {device} {hook}"), filters);
        }
    }
    Ok(())
}

/// The routes of both families, and the rules for IPv4, which have a priority: by one process, because the start of a process takes
/// longer than what it does here.
fn routes_and_rules<P: Place>(place: &P) -> anyhow::Result<Vec<Value>> {
    let mut commands = tempfile::tempfile()?;
    commands.write_all(b"route show table all\nrule show\n")?;
    commands.rewind()?;
    let mut ip = Command::new("ip");
    ip.args(["-j", "-batch", "-"]).stdin(commands);
    let output = place.run(|| ip.output())??;
    ensure!(output.status.success(), "ip -batch: {}", String::from_utf8_lossy(&output.stderr));
    let lists = serde_json::Deserializer::from_slice(&output.stdout).into_iter::<Vec<Value>>();
    Ok(lists.collect::<Result<Vec<_>, _>>().context("ip -batch")?.concat())
}

fn list<P: Place>(place: &P, command: &str) -> anyhow::Result<Vec<Value>> {
    let mut words = command.split(' ');
    let program = words.next().unwrap_or_default();
    let output = place.tool(program, &words.collect::<Vec<_>>())?;
    // For an empty list some versions of `ip` and `tc` print nothing instead of `[]`.
    let output = if output.trim().is_empty() { "[]" } else { output.as_str() };
    serde_json::from_str(output).with_context(|| command.to_owned())
}

/// Name, kind, master, MTU, administrative flags, the settings of a bridge port that plugins change, VLAN
/// filtering and alias.
fn link(link: &Value) -> String {
    let flags: Vec<&str> = link["flags"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let kept: Vec<&str> =
        ["UP", "PROMISC", "ALLMULTI", "NOARP"].into_iter().filter(|flag| flags.contains(flag)).collect();
    let mut line = format!(
        "{} kind={} master={} mtu={} flags={}",
        text(link, "ifname"),
        text(&link["linkinfo"], "info_kind"),
        text(link, "master"),
        link["mtu"],
        kept.join(",")
    );
    let port = &link["linkinfo"]["info_slave_data"];
    for key in ["hairpin", "isolated", "guard", "learning", "flood"] {
        if let Some(value) = port.get(key) {
            line += &format!(" {key}={value}");
        }
    }
    if let Some(filtering) = link["linkinfo"]["info_data"].get("vlan_filtering") {
        line += &format!(" vlan_filtering={filtering}");
    }
    if let Some(alias) = link.get("ifalias") {
        line += &format!(" alias={alias}");
    }
    line
}

/// The addresses of one link without link-local IPv6, which the kernel adds some time after the link has come
/// up.
fn addresses(link: &Value) -> Vec<String> {
    let all = link["addr_info"].as_array().into_iter().flatten();
    let made = all.filter(|address| !text(address, "local").starts_with("fe80:"));
    made.map(|address| {
        let (local, prefix, scope) = (text(address, "local"), &address["prefixlen"], text(address, "scope"));
        format!("{} {local}/{prefix} scope={scope}", text(link, "ifname"))
    })
    .collect()
}

fn is_multicast(route: &str) -> bool {
    route.contains("dst=ff00::/8")
}

/// An object as `key=value` words, ordered by key.
fn plain(object: &Value, without: &[&str]) -> String {
    let members = object.as_object().into_iter().flatten();
    let kept = members.filter(|(key, _)| !without.contains(&key.as_str()));
    let words = kept.map(|(key, value)| match value {
        Value::String(text) => format!("{key}={text}"),
        other => format!("{key}={other}"),
    });
    words.collect::<Vec<_>>().join(" ")
}

fn text<'a>(object: &'a Value, key: &str) -> &'a str {
    object.get(key).and_then(Value::as_str).unwrap_or("-")
}
