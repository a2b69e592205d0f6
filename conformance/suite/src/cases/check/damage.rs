//! Damage that CHECK must detect.

use super::super::tools::{altered, dual_stack};
use crate::outcome::{Stop, TestResult, skip};
use crate::test_context::{Target, TestContext};

/// Empties all packet filters: nf_tables and legacy iptables.
const FLUSH: &str = "nft flush ruleset; \
    for family in ip ip6; do for table in $(cat /proc/net/${family}_tables_names 2>/dev/null); do \
    ${family}tables-legacy -t $table -F; ${family}tables-legacy -t $table -X; done; done";
/// Removes the rules from all tables. It keeps tables and chains, because some tools create them when they
/// list.
pub(super) const EMPTY: &str = "nft list tables | sed 's/^table/nft flush table/' | sh";
/// The bridge in the suite's configuration of the bridge plugin.
const BRIDGE: &str = "cnitrial0";

/// Expects CHECK to succeed before the damage and to fail after it.
fn noticed(test: &TestContext<'_>, damage: impl Fn(&Target) -> Result<(), Stop>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let check = test.check(&target, &result);
    check.run()?.silent()?;
    damage(&target)?;
    check.run()?.refused()?;
    Ok(())
}

/// The damage is a shell command in the container; `IF` stands for the interface.
fn in_pod(test: &TestContext<'_>, command: &str) -> TestResult {
    noticed(test, |target| altered(&target.pod, &command.replace("IF", &target.ifname)))
}

/// The damage is a shell command on the node.
fn on_node(test: &TestContext<'_>, command: &str) -> TestResult {
    noticed(test, |_| altered(test.node()?, command))
}

pub(super) fn no_interface(test: &TestContext<'_>) -> TestResult {
    in_pod(test, "ip link del IF")
}

pub(super) fn no_namespace(test: &TestContext<'_>) -> TestResult {
    noticed(test, |target| Ok(target.pod.delete()?))
}

/// The kernel removes the subnet's route and the default route with the address; the command adds them again.
pub(super) fn no_address(test: &TestContext<'_>) -> TestResult {
    in_pod(
        test,
        "ip addr flush dev IF; ip route replace 10.77.0.0/24 dev IF; \
         ip route replace default via 10.77.0.1 dev IF",
    )
}

pub(super) fn other_prefix(test: &TestContext<'_>) -> TestResult {
    in_pod(
        test,
        "ip addr flush dev IF; ip addr add 10.77.0.2/25 dev IF; \
         ip route replace default via 10.77.0.1 dev IF",
    )
}

pub(super) fn no_ipv6_address(test: &TestContext<'_>) -> TestResult {
    dual_stack(test)?;
    in_pod(
        test,
        "ip -6 addr del $(ip -6 -o addr show dev IF | sed -n 's/.* \\(fd00:[^ ]*\\).*/\\1/p') dev IF; \
         ip -6 route replace fd00:77::/64 dev IF; ip -6 route replace default via fd00:77::1 dev IF",
    )
}

pub(super) fn no_route(test: &TestContext<'_>) -> TestResult {
    in_pod(test, "ip route del default")
}

pub(super) fn other_mac(test: &TestContext<'_>) -> TestResult {
    if test.plugin.description.links.iter().any(|kind| kind == "ipvlan") {
        return skip("an ipvlan always has the hardware address of its master");
    }
    in_pod(test, "ip link set IF address 02:00:00:00:77:77")
}

pub(super) fn no_bridge(test: &TestContext<'_>) -> TestResult {
    on_node(test, &format!("ip link del {BRIDGE}"))
}

pub(super) fn flushed(test: &TestContext<'_>) -> TestResult {
    on_node(test, FLUSH)
}

pub(super) fn no_reservation(test: &TestContext<'_>) -> TestResult {
    on_node(test, "rm /var/lib/cni/networks/*/10.77.0.*")
}

/// The host's end of the veth pair that the suite has made for the container.
fn host_end(target: &Target) -> String {
    let previous = target.previous.as_ref().and_then(|result| result.pointer("/interfaces/0/name"));
    previous.and_then(serde_json::Value::as_str).unwrap_or("host2").to_owned()
}

pub(super) fn no_ingress(test: &TestContext<'_>) -> TestResult {
    noticed(test, |target| altered(test.node()?, &format!("tc qdisc del dev {} root", host_end(target))))
}

pub(super) fn no_egress(test: &TestContext<'_>) -> TestResult {
    on_node(test, "for link in $(ip -o link show type ifb | cut -d: -f2); do ip link del $link; done")
}

pub(super) fn setting_undone(test: &TestContext<'_>) -> TestResult {
    in_pod(test, "ip link set IF mtu 1500")
}

pub(super) fn no_gateway(test: &TestContext<'_>) -> TestResult {
    on_node(
        test,
        "for link in $(ip -o addr show to 10.77.0.1 | cut -d' ' -f2); do \
         ip addr del $(ip -o addr show dev $link to 10.77.0.1 | sed 's/.*inet \\([^ ]*\\) .*/\\1/') dev $link; done",
    )
}

pub(super) fn down(test: &TestContext<'_>) -> TestResult {
    in_pod(test, "ip link set IF down")
}

pub(super) fn lo_down(test: &TestContext<'_>) -> TestResult {
    in_pod(test, "ip link set lo down")
}

pub(super) fn no_port(test: &TestContext<'_>) -> TestResult {
    on_node(
        test,
        &format!("for link in $(ls /sys/class/net/{BRIDGE}/brif); do ip link set $link nomaster; done"),
    )
}

pub(super) fn bridge_down(test: &TestContext<'_>) -> TestResult {
    on_node(test, &format!("ip link set {BRIDGE} down"))
}

pub(super) fn no_forwarding(test: &TestContext<'_>) -> TestResult {
    on_node(test, "echo 0 > /proc/sys/net/ipv4/ip_forward")
}
