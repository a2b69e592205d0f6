//! Which container gets a host port that several ask for. The tests need root and `nft`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;
use std::io::Write as _;
use std::net::SocketAddr;
use std::process::Command;

use cni_lab::testing::{Expect as _, ask, in_place_of_the_plugin, run_command_with};
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Attachment;
use common::{World, both, mapping, more, over_tcp, pods};
use serde_json::json;

#[test]
fn port_of_another_container_is_refused_and_nothing_is_left() {
    let world = World::new();
    let network = pods(json!({}));
    let holder = world.add("holder", &network, &over_tcp(8080, 80));
    let before = world.table();
    let pod = world.pod("late");
    let mappings = json!([mapping("tcp", "", 9090, 80), mapping("tcp", "0.0.0.0", 8080, 80)]);
    let late = pod.attachment("eth0").with_capability("portMappings", mappings);
    let error = world.runtime().add(&network, &late).unwrap_err().to_string();
    assert!(
        error.contains(
            "host port 8080/tcp (IPv4) is held by container holder (interface eth0 on network pods)"
        ),
        "{error}"
    );
    assert!(error.contains("code 11"), "{error}");
    assert_eq!(world.table(), before);
    // The same port with another protocol or another host address is free.
    let other = json!([mapping("udp", "", 8080, 80), mapping("tcp", "192.0.2.1", 8080, 80)]);
    let other = world.add("other", &network, &other);
    holder.del();
    other.del();
    assert_eq!(world.count(), 0);
}

#[test]
fn port_of_a_gone_container_is_taken_over() {
    let world = World::new();
    let network = pods(json!({}));
    let gone = world.add("gone", &network, &both(8080, 80));
    gone.pod.delete().unwrap();
    let next = world.add("next", &network, &over_tcp(8080, 80));
    next.serve(80);
    let outside = &world.outside[0];
    assert_eq!(ask(outside, "tcp", "192.0.2.1:8080".parse().unwrap()), Ok("next 192.0.2.2".to_owned()));
    assert_eq!(next.check(), Ok(()));
    // A late DEL removes only the host ports that were not taken over.
    assert_eq!(world.count(), 4);
    gone.del();
    assert_eq!(world.count(), 2);
    assert_eq!(next.check(), Ok(()));
    // The holder is also gone if its network has assigned its address again, even if its namespace exists.
    let alive = world.add("alive", &network, &over_tcp(9000, 80));
    let mut config = next.config();
    config["prevResult"] = alive.result.clone();
    config["runtimeConfig"]["portMappings"] = over_tcp(9000, 80);
    let heir = world.pod("heir");
    world.ctx.add(&heir.attachment("eth0"), &config);
    assert!(alive.check().unwrap_err().contains("is held by container heir"));
}

/// Two runtimes on one node have different `/run` folders, so neither sees the other's namespaces.
#[test]
fn port_of_a_container_of_a_runtime_with_other_mounts_is_refused() {
    let world = World::new();
    let holder = world.add("holder", &pods(json!({})), &over_tcp(8080, 80));
    holder.serve(80);
    let mut other = Command::new("unshare");
    let set_up = "mount -t tmpfs tmpfs /run && ip netns add late && ip netns add later && exec sleep 600";
    other.args(["--mount", "sh", "-c", set_up]);
    let mut other = world.node.spawn(other).unwrap();
    let pid = other.child().id();
    let name = format!("/proc/{pid}/comm");
    assert!(eventually(TIMEOUT, || fs::read_to_string(&name).is_ok_and(|name| name == "sleep\n")));
    let call = |verb: &str, container: &str, address: &str, port: u16| {
        let mut config = holder.config();
        config["name"] = json!("others");
        config["prevResult"]["ips"] = json!([{"address": address, "interface": 2}]);
        config["runtimeConfig"]["portMappings"] = over_tcp(port, 80);
        let attachment = Attachment::new(container, format!("/run/netns/{container}"), "eth0");
        let exec = world.ctx.exec(verb, &attachment, &config);
        let plugin = exec.binary.to_string_lossy();
        let args = [&format!("--mount=/proc/{pid}/ns/mnt"), "--", &*plugin];
        let mut command = in_place_of_the_plugin("nsenter", &args, &exec);
        run_command_with(&world.node, &mut command, |child| {
            child.stdin.take().unwrap().write_all(&exec.stdin).unwrap();
        })
    };

    let table = world.table();
    let error = call("ADD", "late", "10.1.0.200/24", 8080).error();
    error.expect(11, "host port 8080/tcp (IPv4) is held by container holder");
    error.expect(11, "DEL of it or GC of its network frees the host port");
    assert_eq!(world.table(), table);
    let to = SocketAddr::new(world.address(false), 8080);
    assert_eq!(ask(&world.outside[0], "tcp", to), Ok(format!("holder {}", world.outside[0].address())));

    // Among its own containers that runtime takes over as before, but the first runtime does not.
    call("ADD", "late", "10.1.0.200/24", 8081).result();
    let pod = world.pod("first");
    let ask_for = pod.attachment("eth0").with_capability("portMappings", over_tcp(8081, 80));
    let refused = || {
        let error = world.runtime().add(&pods(json!({})), &ask_for).unwrap_err().to_string();
        assert!(error.contains("is held by container late"), "{error}");
        world.runtime().del(&pods(json!({})), &ask_for).unwrap();
    };
    refused();
    world.node.sh(&format!("nsenter --mount=/proc/{pid}/ns/mnt ip netns delete late")).unwrap();
    refused();
    call("ADD", "later", "10.1.0.201/24", 8081).result();
    // DEL needs no mounts.
    call("DEL", "later", "10.1.0.201/24", 8081).ok();
    world.runtime().add(&pods(json!({})), &ask_for).unwrap();
}

#[test]
fn attachments_of_one_container_are_independent() {
    let world = World::new();
    let first = world.add("one", &pods(json!({})), &over_tcp(8080, 80));
    let again = world.node.sh("ip netns list").map(|_| first.pod.attachment("eth1")).unwrap();
    let again = again.with_capability("portMappings", over_tcp(8081, 80));
    world.runtime().add(&pods(json!({})), &again).unwrap();
    let other = first.pod.attachment("eth2").with_capability("portMappings", over_tcp(8082, 80));
    world.runtime().add(&more(json!({})), &other).unwrap();
    assert_eq!(world.count(), 6);
    first.del();
    assert_eq!(world.count(), 4);
    world.runtime().check(&pods(json!({})), &again).unwrap();
    world.runtime().del(&more(json!({})), &other).unwrap();
    assert_eq!(world.count(), 2);
    world.runtime().check(&pods(json!({})), &again).unwrap();
    world.runtime().del(&pods(json!({})), &again).unwrap();
    assert_eq!(world.count(), 0);
}

/// containerd and nerdctl request all ports of a container on each of its networks.
#[test]
fn port_requested_on_two_networks_stays_with_the_first() {
    let world = World::new();
    let first = world.add("one", &pods(json!({})), &over_tcp(8080, 80));
    let before = world.table();
    let none = first.pod.attachment("eth2").with_capability("portMappings", over_tcp(8080, 80));
    world.runtime().add(&more(json!({})), &none).unwrap();
    world.runtime().del(&more(json!({})), &none).unwrap();
    assert_eq!(world.table(), before);
    let mappings = json!([over_tcp(8080, 80)[0], over_tcp(8081, 81)[0]]);
    let second = first.pod.attachment("eth1").with_capability("portMappings", mappings);
    world.runtime().add(&more(json!({})), &second).unwrap();
    assert_eq!(world.count(), 4, "{}", world.table());
    assert_eq!(first.check(), Ok(()));
    world.runtime().check(&more(json!({})), &second).unwrap();
    world.runtime().del(&more(json!({})), &second).unwrap();
    assert_eq!((world.count(), first.check()), (2, Ok(())));
    world.runtime().add(&more(json!({})), &second).unwrap();
    first.del();
    assert_eq!(world.count(), 2);
    // The first port has no element now, and CHECK reports it.
    let error = world.runtime().check(&more(json!({})), &second).unwrap_err().to_string();
    assert!(error.contains("8080/tcp (IPv4) has no element in map \"dnat4\""), "{error}");
    world.runtime().del(&more(json!({})), &second).unwrap();
    assert_eq!(world.count(), 0);
}
