//! The firewalld backend with Debian's firewalld on a private bus, beside the reference. The tests need root, `nft`,
//! `dbus-daemon`, `firewalld` and the reference's plugins.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cni_lab::Place as _;
use cni_lab::testing::{Firewalld, Origin, overlay, serve};
use common::{World, expect, expect_pod, host_port, more, network_of, pods, take_turns};
use serde_json::json;

const SOURCES: &str = "--zone=trusted --list-sources";

#[test]
fn connections_behind_firewalld() {
    let world = World::new();
    let firewalld = Firewalld::start(&world.node);
    for backend in ["", "firewalld"] {
        let keys = json!({"backend": backend});
        let server = world.add_by(&world, &format!("server{backend}"), &pods(keys.clone()), &host_port());
        let neighbour = world.add(&format!("neighbour{backend}"), &pods(keys.clone()));
        let stranger = world.add(&format!("stranger{backend}"), &more(keys));
        for added in [&server, &neighbour, &stranger] {
            added.serve(80);
            assert_eq!(added.check(), Ok(()));
        }
        let sources = firewalld.cmd(SOURCES);
        assert!(sources.contains(&format!("{}/32", server.address(false))), "{sources}");
        assert!(sources.contains(&format!("{}/128", server.address(true))), "{sources}");
        expect_pod(&stranger, &server, true, "another network");
        expect_pod(&neighbour, &server, true, "the same network");
        for (v6, outside) in [false, true].into_iter().zip(&world.outside) {
            if backend.is_empty() {
                serve(outside, "outside", 80);
            }
            expect(&neighbour.pod, SocketAddr::new(outside.address(), 80), true, "outbound");
            expect(outside, SocketAddr::new(outside.node_address(), 8080), true, "host port");
            expect(outside, SocketAddr::new(neighbour.address(v6), 80), false, "inbound");
        }
        // The text of the table does not say which backend has opened an address.
        world
            .node
            .sh("nft list table inet cni_firewall >/run/saved; nft delete table inet cni_firewall; nft -f /run/saved")
            .unwrap();
        assert_eq!(server.check(), Ok(()));
        for added in [&server, &neighbour, &stranger] {
            added.del();
        }
        assert_eq!(firewalld.cmd(SOURCES), "");
        assert_eq!(["others4", "others6"].map(|set| world.set(set)), [const { String::new() }; 2]);
    }
}

#[test]
fn errors_have_the_words_of_the_reference_and_check_uses_the_answer() {
    let world = World::new();
    let mut firewalld = Firewalld::start(&world.node);
    let one = world.add("one", &network_of("pods", "cni0", 0, "1.0.0", json!({"backend": "firewalld"})));
    let config = one.config();
    // ADD again: ZONE_ALREADY_SET is no error.
    world.ctx.add(&one.attachment, &config);
    firewalld.cmd("--zone=trusted --remove-source=10.1.0.2/32");
    let missing = "failed to find the address 10.1.0.2/32 in trusted zone";
    assert_eq!(world.fail("CHECK", &one.attachment, &config).msg, missing);
    world.ctx.add(&one.attachment, &config);
    world.ctx.check(&one.attachment, &config);
    let other = cni_runner::Attachment::new("other", one.attachment.netns.clone(), "eth0");
    for (zone, words) in [
        ("nope", "failed to add the address 10.1.0.77/32 to nope zone: INVALID_ZONE: nope"),
        (
            "internal",
            "failed to add the address 10.1.0.2/32 to internal zone: ZONE_CONFLICT: '10.1.0.2/32' already bound to a zone",
        ),
    ] {
        let mut config = overlay(&config, &json!({"firewalldZone": zone}));
        let address = if zone == "nope" { "10.1.0.77/24" } else { "10.1.0.2/24" };
        config["prevResult"]["ips"] = json!([{"address": address}]);
        let error = world.fail("ADD", &other, &config);
        assert_eq!((error.code, error.msg.as_str()), (999, words));
        world.ctx.del(&other, &config);
    }
    // A reload forgets the sources; the next ADD restores them.
    world.ctx.add(&one.attachment, &config);
    firewalld.cmd("--reload");
    assert_eq!(world.fail("CHECK", &one.attachment, &config).msg, missing);
    world.ctx.add(&one.attachment, &config);
    world.ctx.check(&one.attachment, &config);
    firewalld.stop_daemon();
    assert!(cni_lab::eventually(cni_lab::TIMEOUT, || world.node.sh("firewall-cmd --state").is_err()));
    let error = world.fail("ADD", &other, &config);
    assert!(
        error.msg.contains("The name org.fedoraproject.FirewallD1 was not provided by any .service files"),
        "{error}"
    );
    let status = json!({"cniVersion": "1.1.0", "name": "pods", "type": "firewall", "backend": "firewalld"});
    assert_eq!(
        world.fail("STATUS", &cni_runner::Attachment::default(), &status).pair(),
        (50, "firewalld does not run".to_owned())
    );
    // DEL without firewalld is success.
    world.ctx.del(&one.attachment, &config);
    assert_eq!(world.set("others4"), "");
}

/// A bus that does not answer: ADD fails after two seconds, DEL succeeds, and the automatic choice takes another backend.
#[test]
fn a_bus_that_hangs_does_not_hang_the_plugin() {
    let world = World::new();
    let mut bus = Firewalld::only_bus(&world.node);
    let one = world.add("one", &network_of("pods", "cni0", 0, "1.0.0", json!({"backend": "nftables"})));
    world.node.sh(&format!("kill -STOP {}", bus.bus_pid())).unwrap();
    let forced = overlay(&one.config(), &json!({"backend": "firewalld"}));
    let automatic = overlay(&one.config(), &json!({"backend": ""}));
    let start = Instant::now();
    let error = world.fail("ADD", &one.attachment, &forced);
    error.expect(11, "no answer from the system bus within 2 s");
    world.ctx.del(&one.attachment, &forced);
    let output = world.call("ADD", &one.attachment, &automatic);
    assert!(
        output.success() && output.stderr_text().contains("cannot tell whether firewalld runs"),
        "{output:?}"
    );
    assert!(world.set("pods4").contains("10.1.0.2"));
    world.ctx.del(&one.attachment, &automatic);
    // Three calls that wait for two seconds each; without the limit each would wait for ever.
    assert!(start.elapsed() < Duration::from_secs(30));
    world.node.sh(&format!("kill -CONT {}", bus.bus_pid())).unwrap();
}

/// Without root of the initial user namespace, the automatic choice is never firewalld.
#[test]
fn another_user_namespace_never_uses_firewalld() {
    let world = World::new();
    let firewalld = Firewalld::start(&world.node);
    let one = world.add("one", &network_of("pods", "cni0", 0, "1.0.0", json!({"backend": "nftables"})));
    let exec = |backend: &str| {
        world.exec("ADD", &one.attachment, &overlay(&one.config(), &json!({"backend": backend})))
    };
    let run = |backend: &str| {
        let exec = exec(backend);
        // Root of a new user namespace with a network namespace of its own, as with rootless containers.
        let plugin = world.plugin.to_str().unwrap();
        let mut command = cni_lab::testing::in_place_of_the_plugin(
            "unshare",
            &["--user", "--map-root-user", "--net", plugin],
            &exec,
        );
        command.stdin(cni_lab::testing::stdin_file(&exec));
        cni_lab::testing::run_command(&world.node, &mut command)
    };
    let output = run("firewalld");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("backend firewalld needs root in the initial user namespace"), "{said}");
    let output = run("");
    assert!(output.success(), "{output:?}");
    assert_eq!(firewalld.cmd(SOURCES), "");
}

#[test]
fn random_calls_of_both_plugins_leave_nothing() {
    let world = World::by(Origin::Reference);
    let _firewalld = Firewalld::start(&world.node);
    // firewall-cmd takes half a second.
    let sources = "dbus-send --system --print-reply --dest=org.fedoraproject.FirewallD1 /org/fedoraproject/FirewallD1 \
        org.fedoraproject.FirewallD1.zone.getSources string:trusted";
    take_turns(&world, &world.ctx, "firewalld", || {
        world.node.sh(sources).unwrap().matches("string \"").count()
    });
}
