//! Refusals in every state of a lease, and a server that answers in place of the lease's own.

use cni_lab::testing::{Origin, PluginDir, is_up, network_config, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::json;

use super::table::{Phase, Table, row};
use super::{ACK, NAK};
use crate::lab::Lab;
use crate::server::Server;

/// The times that have come in each state.
const STATES: [(&str, &[&str]); 3] = [
    ("renewing", &["renew_at"]),
    ("rebinding", &["renew_at", "rebind_at"]),
    ("rebooting", &["renew_at", "rebind_at", "expires_at"]),
];

#[test]
fn refusals_of_a_lease() {
    let rows = STATES.map(|(name, _)| row(name, |answer| answer.set(53, &[NAK])));
    let table = Table::new(rows.into());
    let (lab, conf) = (&table.lab, &table.conf);
    let mut daemon = lab.daemon(&[]);
    table.set(Phase::Right);
    let results = table.each(|_, _, attachment| lab.ctx.add(attachment, conf));
    // With one refusal the server gives the same address again.
    daemon.end("KILL");
    table.each(|number, _, attachment| lab.rewrite(attachment, STATES[number].1));
    table.set(Phase::OneForged);
    let mut daemon = lab.daemon(&[]);
    table.wait_for("10.9.0.1 refuses 10.9.0.1", 1);
    table.wait_for("lease acquired, 10.9.0.1", 2);
    table.each(|number, name, attachment| {
        lab.ctx.check(attachment, &with_prev(conf, &results[number]));
        assert!(is_up(&table.pod, &attachment.ifname), "{name}");
    });
    // Otherwise the container loses it.
    daemon.end("KILL");
    table.each(|number, _, attachment| lab.rewrite(attachment, STATES[number].1));
    table.set(Phase::Forged);
    let _daemon = lab.daemon(&["-timeout", "500ms"]);
    table.wait_for("lease expired, bringing interface DOWN", 1);
    assert!(eventually(TIMEOUT, || lab.files().is_empty()), "{:?}", lab.files());
    table.each(|_, name, attachment| assert!(!is_up(&table.pod, &attachment.ifname), "{name}"));
    table.set(Phase::Right);
    table.each(|_, _, attachment| lab.ctx.add(attachment, conf));
    table.del();
}

/// Only after T2 may another server prolong the lease.
#[test]
fn acknowledgements_of_another_server() {
    let rows = STATES[..2].iter().map(|(name, _)| {
        row(name, |answer| {
            if answer.options.contains(&(53, vec![ACK])) {
                answer.set(54, &[10, 9, 0, 99]);
            }
        })
    });
    let table = Table::new(rows.collect());
    let (lab, conf) = (&table.lab, &table.conf);
    // RELEASE goes to the server of the lease.
    lab.ctx.node.sh("ip addr add 10.9.0.99/24 dev br0").unwrap();
    let mut daemon = lab.daemon(&[]);
    table.set(Phase::Both);
    let results = table.each(|_, _, attachment| lab.ctx.add(attachment, conf));
    let servers = || table.each(|_, _, attachment| lab.file(attachment)["lease"]["server"].clone());
    assert_eq!(servers(), ["10.9.0.1", "10.9.0.1"]);
    daemon.end("KILL");
    table.each(|number, _, attachment| lab.rewrite(attachment, STATES[number].1));
    table.set(Phase::Forged);
    let _daemon = lab.daemon(&[]);
    lab.says("one/net/e0: 10.9.0.99 answers instead of 10.9.0.1: ignored");
    lab.says("one/net/e1: lease renewed, 10.9.0.1");
    assert_eq!(servers(), ["10.9.0.1", "10.9.0.99"]);
    table.each(|number, _, attachment| lab.ctx.check(attachment, &with_prev(conf, &results[number])));
    table.del();
}

/// The interface plugin cannot make the route. It says so, and gives the lease back.
#[test]
fn a_router_outside_of_the_net() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    server.option(3, &[192, 0, 2, 1]);
    let _daemon = lab.daemon(&[]);
    let bridge =
        lab.ctx.with_plugins(PluginDir::installed(Origin::Ours, "bridge").with(Origin::Ours, &["dhcp"]));
    let conf = network_config("bridge", "1.1.0", &json!({"bridge": "br0", "ipam": {"type": "dhcp"}}));
    let attachment = lab.ctx.pod("one").attachment("eth0");
    bridge.fail("ADD", &attachment, &conf).expect(999, "192.0.2.1");
    assert!(eventually(TIMEOUT, || server.leased().is_empty()), "{:?}", server.leased());
    assert!(lab.files().is_empty());
    bridge.del(&attachment, &conf);
}
