//! How ADD, CHECK, DEL and GC treat existing reservations.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::fs;

use cni_lab::testing::Expect as _;
use common::{Net, OURS, age, go, listing, run};
use rustix::fs::{XattrFlags, setxattr};
use serde_json::{Value, json};

const DUPLICATE: &str = "duplicate allocation is not allowed";

fn dual() -> Net {
    Net::new(json!([[{ "subnet": "10.0.0.0/29" }], [{ "subnet": "fd00::/125" }]]))
}

#[test]
fn second_add_fails_and_changes_nothing() {
    let net = Net::of("10.0.0.0/24");
    net.add("c1").result();
    let before = listing(&net.store());
    let (code, msg) = net.add("c1").error().pair();
    assert_eq!(
        (code, msg),
        (999, format!("failed to allocate for range 0: 10.0.0.2 has been allocated to c1, {DUPLICATE}"))
    );
    assert_eq!(listing(&net.store()), before);
    // The reference would assign a second address if one is requested.
    let command = net.exec(OURS, "ADD", "c1", "eth0").env("CNI_ARGS", "IP=10.0.0.77");
    assert!(run(command, &net.conf).error().msg.ends_with(DUPLICATE));
    assert_eq!(listing(&net.store()), before);
    // Another interface of the container is another attachment.
    net.exec(OURS, "ADD", "c1", "eth1").run().unwrap().result();
    assert_eq!(net.reservations().len(), 2);
}

#[test]
fn failed_add_releases_only_its_own_addresses() {
    let net = dual();
    net.seed("fd00::5", "c1\r\neth0");
    let msg = net.add("c1").error().msg;
    assert_eq!(msg, format!("failed to allocate for range 1: fd00::5 has been allocated to c1, {DUPLICATE}"));
    assert_eq!(net.reservations(), [("fd00::5".to_owned(), "c1\r\neth0".to_owned())].into());
    // The address that ADD reserved and released again is free.
    net.del("c1").ok();
    let net = net.with(|conf| conf["args"] = json!({ "cni": { "ips": ["10.0.0.2"] } }));
    assert_eq!(net.add("c1").ips(), ["10.0.0.2", "fd00::2"]);
}

#[test]
fn full_later_set_releases_addresses_of_earlier_sets() {
    let net = dual();
    for n in 2..=7 {
        net.seed(&format!("fd00::{n}"), &format!("other{n}\r\neth0"));
    }
    let before = net.reservations();
    let (code, msg) = net.add("c1").error().pair();
    let expected = "failed to allocate for range 1: no IP addresses available in range set: fd00::1-fd00::7";
    assert_eq!((code, msg.as_str()), (999, expected));
    assert_eq!(net.reservations(), before);
}

#[test]
fn unavailable_requested_addresses() {
    for (ips, msg) in [
        (vec!["10.0.0.1"], "failed to allocate for range 0: requested ip 10.0.0.1 is subnet's gateway"),
        (
            vec!["10.0.0.3", "fd00::3"],
            "failed to allocate for range 1: requested IP address fd00::3 is not available in range set fd00::1-fd00::7",
        ),
        (
            vec!["10.0.0.3", "192.0.2.1", "10.0.0.4"],
            "failed to allocate all requested IPs: 192.0.2.1 10.0.0.4",
        ),
    ] {
        let net = dual().with(|conf| conf["args"] = json!({ "cni": { "ips": ips } }));
        net.seed("fd00::3", "other\r\neth0");
        assert_eq!(net.add("c1").error().pair(), (999, msg.to_owned()));
        assert_eq!(net.reservations().into_keys().collect::<Vec<_>>(), ["fd00::3"]);
    }
}

#[test]
fn failing_last_step_leaks_no_address() {
    let net = dual();
    fs::create_dir_all(net.store().join("last_reserved_ip.1")).unwrap();
    let (code, msg) = net.add("c1").error().pair();
    assert_eq!(code, 5, "{msg}");
    assert!(msg.contains("last_reserved_ip.1"), "{msg}");
    let names: Vec<_> = fs::read_dir(net.store()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert!(
        !names.iter().any(|name| name.to_str().unwrap().parse::<std::net::IpAddr>().is_ok()),
        "{names:?}"
    );
}

/// After a reboot the container starts again without a DEL, and gets the address that it had.
#[test]
fn attachment_keeps_its_address_across_a_boot() {
    for content in ["c1\r\neth0", "c1"] {
        let net = dual();
        for name in ["10.0.0.5", "10.0.0.6", "fd00::5"] {
            net.seed(name, content);
            age(&net.store().join(name));
        }
        assert_eq!(net.add("c1").ips(), ["10.0.0.5", "fd00::5"]);
        assert_eq!(net.reservations().into_values().collect::<Vec<_>>(), ["c1\r\neth0"; 2]);
        assert!(net.add("c1").error().msg.ends_with(DUPLICATE));
        net.del("c1").ok();
        assert!(net.reservations().is_empty());
    }
}

/// A file's boot ID takes precedence over its mtime.
#[test]
fn boot_id_takes_precedence_over_mtime() {
    let net = Net::of("10.0.0.0/24");
    net.add("c1").result();
    let file = net.store().join("10.0.0.2");
    age(&file);
    assert!(net.add("c1").error().msg.ends_with(DUPLICATE));
    fs::File::options().write(true).open(&file).unwrap().set_modified(std::time::SystemTime::now()).unwrap();
    let other = b"00000000-0000-4000-8000-000000000000";
    setxattr(&file, "user.ferrule.boot", other, XattrFlags::REPLACE).unwrap();
    assert_eq!(net.add("c1").ips(), ["10.0.0.2"]);
}

#[test]
fn requested_address_replaces_the_old_one() {
    let net = Net::of("10.0.0.0/24").with(|conf| conf["args"] = json!({ "cni": { "ips": ["10.0.0.9"] } }));
    net.seed("10.0.0.5", "c1\r\neth0");
    age(&net.store().join("10.0.0.5"));
    assert_eq!(net.add("c1").ips(), ["10.0.0.9"]);
    assert_eq!(net.reservations().len(), 1);
    // Another attachment's address from an earlier boot cannot be in use either, and this request has no
    // alternative.
    net.seed("10.0.0.9", "c2\r\neth0");
    age(&net.store().join("10.0.0.9"));
    setxattr(net.store().join("10.0.0.9"), "user.ferrule.boot", b"other", XattrFlags::empty()).unwrap();
    assert_eq!(net.add("c3").ips(), ["10.0.0.9"]);
}

/// A full range reuses addresses from an earlier boot, those with empty files last. Placeholders and
/// addresses of this boot are never reused.
#[test]
fn full_range_reuses_addresses_of_an_earlier_boot() {
    let net = Net::of("10.0.0.0/29");
    for (name, content, old) in [
        ("10.0.0.2", "", true),
        ("10.0.0.3", "kept for the printer", true),
        ("10.0.0.4", "old\r\neth0", true),
        ("10.0.0.5", "", false),
    ] {
        net.seed(name, content);
        if old {
            age(&net.store().join(name));
        }
    }
    assert_eq!(net.add("c1").ips(), ["10.0.0.6"]);
    assert_eq!(net.add("c2").ips(), ["10.0.0.4"]);
    let last = net.add("c3");
    assert_eq!(last.ips(), ["10.0.0.2"]);
    assert!(last.stderr_text().contains("10.0.0.2"), "{last:?}");
    assert_eq!(net.add("c4").error().code, 999);
    assert_eq!(net.reservations()["10.0.0.3"], "kept for the printer");
    // A late DEL of the attachment that had the address before does not release it.
    net.del("old").ok();
    assert_eq!(net.reservations()["10.0.0.4"], "c2\r\neth0");
}

#[test]
fn legacy_reservations_block_all_interfaces_and_are_released_last() {
    let net = Net::of("10.0.0.0/24");
    net.seed("10.0.0.8", "c1");
    assert!(net.add("c1").error().msg.ends_with(DUPLICATE));
    net.check(OURS, "c1", &["10.0.0.8".to_owned()]).ok();
    net.seed("10.0.0.9", "c1\r\neth0\n");
    net.del("c1").ok();
    assert_eq!(net.reservations().into_keys().collect::<Vec<_>>(), ["10.0.0.8"]);
    net.del("c1").ok();
    assert!(net.reservations().is_empty());
}

#[test]
fn del_removes_only_addresses_of_its_attachment() {
    let net = Net::of("10.0.0.0/24");
    net.add("c1").result();
    net.exec(OURS, "ADD", "c1", "eth1").run().unwrap().result();
    net.add("c2").result();
    net.seed("note", "c1\r\neth0");
    net.seed("last_reserved_ip.7", "c1");
    net.del("c1").ok();
    net.del("c1").ok();
    let remaining: Vec<String> = net.files().into_keys().collect();
    assert_eq!(
        remaining,
        ["10.0.0.3", "10.0.0.4", "last_reserved_ip.0", "last_reserved_ip.7", "lock", "note"]
    );
    // A container ID that looks like an address must not match the content of last_reserved_ip.
    net.del("10.0.0.4").ok();
    assert!(net.files().contains_key("last_reserved_ip.0"));
}

#[test]
fn only_add_creates_directories() {
    let net = Net::of("10.0.0.0/24");
    net.del("c1").ok();
    net.gc(json!([])).ok();
    let msg = "host-local: Failed to find address added by container c1";
    assert_eq!(net.check(OURS, "c1", &["10.0.0.2".to_owned()]).error().pair(), (999, msg.to_owned()));
    let mut status_conf = net.conf.clone();
    status_conf["cniVersion"] = "1.1.0".into();
    run(net.exec(OURS, "STATUS", "", ""), &status_conf).ok();
    assert!(listing(net.root()).is_empty());
    net.seed("10.0.0.2", "c1\r\neth0");
    net.check(OURS, "c1", &["10.0.0.2".to_owned()]).ok();
    assert_eq!(listing(net.root()).len(), 3);
    net.del("c1").ok();
    assert!(net.reservations().is_empty());
    assert!(!net.root().join("data/.ferrule").exists());
}

#[test]
fn check_compares_reservations_with_the_result() {
    let net = dual();
    let ips = net.add("c1").ips();
    let before = listing(net.root());
    net.check(OURS, "c1", &ips).ok();
    // The result may contain addresses of other plugins and interfaces, or no addresses at all.
    net.check(OURS, "c1", &[&["192.0.2.1".to_owned()], ips.as_slice()].concat()).ok();
    net.check(OURS, "c1", &[]).ok();
    let (code, msg) = net.check(OURS, "c1", &["10.0.0.6".to_owned()]).error().pair();
    assert_eq!(code, 999);
    assert!(msg.contains("10.0.0.2, fd00::2"), "{msg}");
    assert_eq!(net.run("CHECK", "c1").error().pair(), (7, "Required prevResult missing".to_owned()));
    assert_eq!(listing(net.root()), before);
    // One of two addresses is not reserved, reserved for another container, or reserved for another interface
    // (accepted).
    let six = net.store().join("fd00::2");
    fs::remove_file(&six).unwrap();
    let msg = "host-local: address fd00::2 of container c1 is not reserved";
    assert_eq!(net.check(OURS, "c1", &ips).error().pair(), (999, msg.to_owned()));
    net.check(OURS, "c1", &ips[..1]).ok();
    net.seed("fd00::2", "c2\r\neth0");
    assert_eq!(net.check(OURS, "c1", &ips).error().pair(), (999, msg.to_owned()));
    net.seed("fd00::2", "c1\r\neth1");
    net.check(OURS, "c1", &ips).ok();
    net.del("c1").ok();
    let msg = "host-local: Failed to find address added by container c1";
    assert_eq!(net.check(OURS, "c1", &ips).error().pair(), (999, msg.to_owned()));
}

#[test]
fn gc_keeps_valid_attachments_and_placeholders() {
    let net = Net::of("10.0.0.0/24");
    for id in ["c1", "c2", "c3"] {
        net.add(id).result();
    }
    for (name, content) in [
        ("10.0.0.50", "c2"),
        ("10.0.0.51", "c9"),
        ("10.0.0.52", ""),
        ("10.0.0.53", "the printer's"),
        ("note", "c9"),
    ] {
        net.seed(name, content);
    }
    net.gc(json!([{ "containerID": "c2", "ifname": "eth0" }, { "containerID": "c3", "ifname": "eth9" }]))
        .ok();
    let remaining: Vec<String> = net.files().into_keys().collect();
    assert_eq!(
        remaining,
        ["10.0.0.3", "10.0.0.50", "10.0.0.52", "10.0.0.53", "last_reserved_ip.0", "lock", "note"]
    );
    net.del("c1").ok();
    assert!(net.add("c2").error().msg.ends_with(DUPLICATE));
    net.gc(Value::Null).ok();
    let remaining: Vec<String> = net.reservations().into_keys().collect();
    assert_eq!(remaining, ["10.0.0.52", "10.0.0.53", "note"]);
    assert_eq!(net.add("c2").ips(), ["10.0.0.5"]);
}

/// A missing, wrong or unusable index must not change any outcome.
#[test]
fn damaged_index_changes_no_outcome() {
    type Damage = fn(&std::path::Path);
    let damages: [Damage; 5] = [
        |index| fs::remove_dir_all(index).unwrap(),
        |index| {
            fs::remove_dir_all(index).unwrap();
            fs::write(index, "").unwrap();
        },
        |index| {
            fs::remove_dir_all(index.join("net")).unwrap();
            fs::write(index.join("net"), "").unwrap();
        },
        |index| {
            for entry in fs::read_dir(index.join("net")).unwrap() {
                fs::remove_file(entry.unwrap().path()).unwrap();
            }
        },
        |index| {
            for entry in fs::read_dir(index.join("net")).unwrap() {
                let path = entry.unwrap().path();
                fs::remove_file(&path).unwrap();
                std::os::unix::fs::symlink("10.0.0.3", path).unwrap();
            }
        },
    ];
    for (i, damage) in damages.iter().enumerate() {
        let net = Net::of("10.0.0.0/24");
        net.add("c1").result();
        net.add("c2").result();
        damage(&net.root().join("data/.ferrule"));
        net.check(OURS, "c1", &["10.0.0.2".to_owned()]).ok();
        assert!(net.add("c1").error().msg.ends_with(DUPLICATE), "{i}");
        damage_again(&net, *damage);
        net.del("c1").ok();
        assert_eq!(net.reservations().into_keys().collect::<Vec<_>>(), ["10.0.0.3"], "{i}");
        assert_eq!(net.add("c1").ips(), ["10.0.0.4"], "{i}");
    }

    fn damage_again(net: &Net, damage: Damage) {
        if net.root().join("data/.ferrule/net").is_dir() {
            damage(&net.root().join("data/.ferrule"));
        }
    }
}

/// The reference's changes are noticed even if they follow ours within one tick of the kernel's clock.
#[test]
fn changes_of_the_reference_are_always_noticed() {
    let net = Net::of("10.0.0.0/16");
    for i in 0..25 {
        net.add(&format!("ours{i}")).result();
        let id = format!("theirs{i}");
        net.exec(go(), "ADD", &id, "eth0").run().unwrap().result();
        assert!(net.add(&id).error().msg.ends_with(DUPLICATE), "{i}");
        net.exec(go(), "DEL", &id, "eth0").run().unwrap().ok();
        net.add(&id).result();
        net.exec(go(), "DEL", &id, "eth0").run().unwrap().ok();
        net.exec(go(), "ADD", &id, "eth0").run().unwrap().result();
        net.del(&id).ok();
    }
    assert_eq!(net.reservations().len(), 25);
}
