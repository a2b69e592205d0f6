//! Damage that CHECK has to notice.

use super::super::tools::{altered, dual_stack};
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled};

/// Empties every packet filter.
const FLUSH: &str = "nft flush ruleset; \
    for family in ip ip6; do for table in $(cat /proc/net/${family}_tables_names 2>/dev/null); do \
    ${family}tables-legacy -t $table -F; ${family}tables-legacy -t $table -X; done; done";
/// Takes the rules out of every table, and leaves tables and chains, which some tools make just by looking.
pub(super) const EMPTY: &str = "nft list tables | sed 's/^table/nft flush table/' | sh";
/// The bridge of the configuration that the suite has for the bridge plugin.
const BRIDGE: &str = "cnitrial0";

/// An attachment that CHECK finds in order before something is done to it, and not in order after.
fn noticed(lab: &Lab<'_>, damage: impl Fn(&Target) -> Result<(), Stop>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    let check = lab.check(&target, &result);
    check.run()?.silent()?;
    damage(&target)?;
    check.run()?.refused()?;
    Ok(())
}

/// The damage is a command in the container; `IF` stands for the interface.
fn in_pod(lab: &Lab<'_>, command: &str) -> Trialled {
    noticed(lab, |target| altered(&target.pod, &command.replace("IF", &target.ifname)))
}

/// The damage is a command on the node.
fn on_node(lab: &Lab<'_>, command: &str) -> Trialled {
    noticed(lab, |_| altered(lab.node()?, command))
}

pub(super) fn no_interface(lab: &Lab<'_>) -> Trialled {
    in_pod(lab, "ip link del IF")
}

pub(super) fn no_namespace(lab: &Lab<'_>) -> Trialled {
    noticed(lab, |target| Ok(target.pod.delete()?))
}

/// The subnet's route and the default route, which go with the address, come back.
pub(super) fn no_address(lab: &Lab<'_>) -> Trialled {
    in_pod(
        lab,
        "ip addr flush dev IF; ip route replace 10.77.0.0/24 dev IF; \
         ip route replace default via 10.77.0.1 dev IF",
    )
}

pub(super) fn other_prefix(lab: &Lab<'_>) -> Trialled {
    in_pod(
        lab,
        "ip addr flush dev IF; ip addr add 10.77.0.2/25 dev IF; \
         ip route replace default via 10.77.0.1 dev IF",
    )
}

pub(super) fn no_ipv6_address(lab: &Lab<'_>) -> Trialled {
    dual_stack(lab)?;
    in_pod(
        lab,
        "ip -6 addr del $(ip -6 -o addr show dev IF | sed -n 's/.* \\(fd00:[^ ]*\\).*/\\1/p') dev IF; \
         ip -6 route replace fd00:77::/64 dev IF; ip -6 route replace default via fd00:77::1 dev IF",
    )
}

pub(super) fn no_route(lab: &Lab<'_>) -> Trialled {
    in_pod(lab, "ip route del default")
}

pub(super) fn other_mac(lab: &Lab<'_>) -> Trialled {
    in_pod(lab, "ip link set IF address 02:00:00:00:77:77")
}

pub(super) fn no_bridge(lab: &Lab<'_>) -> Trialled {
    on_node(lab, &format!("ip link del {BRIDGE}"))
}

pub(super) fn flushed(lab: &Lab<'_>) -> Trialled {
    on_node(lab, FLUSH)
}

pub(super) fn no_reservation(lab: &Lab<'_>) -> Trialled {
    on_node(lab, "rm /var/lib/cni/networks/*/10.77.0.*")
}

/// The host's end of the pair that the suite has made for the container.
fn host_end(target: &Target) -> String {
    let previous = target.previous.as_ref().and_then(|result| result.pointer("/interfaces/0/name"));
    previous.and_then(serde_json::Value::as_str).unwrap_or("host2").to_owned()
}

pub(super) fn no_ingress(lab: &Lab<'_>) -> Trialled {
    noticed(lab, |target| altered(lab.node()?, &format!("tc qdisc del dev {} root", host_end(target))))
}

pub(super) fn no_egress(lab: &Lab<'_>) -> Trialled {
    on_node(lab, "for link in $(ip -o link show type ifb | cut -d: -f2); do ip link del $link; done")
}

pub(super) fn setting_undone(lab: &Lab<'_>) -> Trialled {
    in_pod(lab, "ip link set IF mtu 1500")
}

pub(super) fn no_gateway(lab: &Lab<'_>) -> Trialled {
    on_node(
        lab,
        "for link in $(ip -o addr show to 10.77.0.1 | cut -d' ' -f2); do \
         ip addr del $(ip -o addr show dev $link to 10.77.0.1 | sed 's/.*inet \\([^ ]*\\) .*/\\1/') dev $link; done",
    )
}

pub(super) fn down(lab: &Lab<'_>) -> Trialled {
    in_pod(lab, "ip link set IF down")
}

pub(super) fn lo_down(lab: &Lab<'_>) -> Trialled {
    in_pod(lab, "ip link set lo down")
}

pub(super) fn no_port(lab: &Lab<'_>) -> Trialled {
    on_node(
        lab,
        &format!("for link in $(ls /sys/class/net/{BRIDGE}/brif); do ip link set $link nomaster; done"),
    )
}

pub(super) fn bridge_down(lab: &Lab<'_>) -> Trialled {
    on_node(lab, &format!("ip link set {BRIDGE} down"))
}

pub(super) fn no_forwarding(lab: &Lab<'_>) -> Trialled {
    on_node(lab, "echo 0 > /proc/sys/net/ipv4/ip_forward")
}
