//! `dscp`, a chained CNI plugin: marks all packets of a pod with the DSCP value, 0 to 63, of its annotation `example.org/dscp`.
//! Each attachment with a value has an nftables table of its own, with a chain at the host's end of its link.

use std::collections::BTreeMap;
use std::process::{Command, ExitCode};

use cni_common::plugin::{self, AddRequest, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, Context as _, NetConf};

#[derive(serde::Deserialize)]
struct Conf {
    #[serde(rename = "runtimeConfig", default)]
    capabilities: BTreeMap<String, BTreeMap<String, String>>,
}

fn dscp(config: &NetConf) -> Result<Option<u8>, CniError> {
    let conf: Conf = config.decode()?;
    let annotations = conf.capabilities.get("io.kubernetes.cri.pod-annotations");
    let Some(text) = annotations.and_then(|all| all.get("example.org/dscp")) else { return Ok(None) };
    let value = text.parse().ok().filter(|value| *value < 64);
    value
        .map(Some)
        .ok_or_else(|| CniError::invalid_config(format!("example.org/dscp: {text:?} is not 0 to 63")))
}

fn table(network: &NetConf, container: &str, ifname: &str) -> String {
    // No name of a network or a container has a slash. An interface may have any character, and nft takes only some.
    let ifname: String = ifname.bytes().map(|byte| format!("{byte:02x}")).collect();
    format!("dscp/{}/{container}/{ifname}", network.name())
}

fn nft(commands: &str) -> Result<String, CniError> {
    let output = Command::new("nft").args(["-n", commands]).output().context(|| "start nft")?;
    let said = String::from_utf8_lossy(if output.status.success() { &output.stdout } else { &output.stderr });
    output
        .status
        .success()
        .then(|| said.to_string())
        .ok_or_else(|| CniError::internal(format!("nft: {said}")))
}

fn remove(table: &str) -> Result<(), CniError> {
    nft(&format!("add table netdev {table}; delete table netdev {table}")).map(drop)
}

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let result = call.prev_result.clone().ok_or_else(|| CniError::invalid_config("must be chained"))?;
    let Some(value) = dscp(call.config)? else { return Ok(result) };
    let end = result.host_interfaces(call.ifname).last();
    let end = &end.ok_or_else(|| CniError::invalid_config("no end of the link is on the host"))?.name;
    let table = table(call.config, call.container_id, call.ifname);
    remove(&table)?;
    nft(&format!(
        "table netdev {table} {{ chain marks {{ type filter hook ingress device \"{end}\" priority 0; \
         ip dscp set {value}; ip6 dscp set {value}; }}; }}"
    ))?;
    Ok(result)
}

/// The result is that of the whole chain: a plugin behind this one may have added links.
fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let result = call.prev_result.as_ref().ok_or_else(|| CniError::invalid_config("must be chained"))?;
    let Some(value) = dscp(call.config)? else { return Ok(()) };
    let table = table(call.config, call.container_id, call.ifname);
    let said = nft(&format!("list table netdev {table}"))?;
    let has = |text: String| said.contains(&text);
    let is_whole = result.host_interfaces(call.ifname).any(|end| has(format!("\"{}\"", end.name)))
        && ["ip", "ip6"].into_iter().all(|family| has(format!("{family} dscp set {value:#04x}")));
    is_whole.then_some(()).ok_or_else(|| CniError::internal(format!("{table} is not as ADD has made it")))
}

fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    remove(&table(call.config, call.container_id, call.ifname))
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let is_valid =
        |name| call.valid.iter().any(|it| table(call.config, &it.container_id, &it.ifname) == name);
    let (ours, listed) = (format!("dscp/{}/", call.config.name()), nft("list tables netdev")?);
    let tables = listed.lines().filter_map(|line| line.strip_prefix("table netdev "));
    tables.filter(|name| name.starts_with(&ours) && !is_valid(*name)).try_for_each(remove)
}

fn status(_: &StatusRequest<'_>) -> Result<(), CniError> {
    nft("list tables netdev").map(drop).map_err(|error| CniError::new(Code::NotAvailable, error.msg))
}

fn main() -> ExitCode {
    plugin::run(&Plugin { check, gc, status, ..Plugin::new("dscp", add, del) })
}
