use std::os::unix::fs::{chown, symlink};

use super::*;
use crate::cluster::Peer;

fn identity(node: &str, machine: &str) -> Identity {
    Identity { node: node.into(), machine: machine.into() }
}

fn peers() -> Peers {
    let peer = |uid: &str, number: u8| Peer {
        created: "2026-01-02T03:04:05Z".into(),
        uid: uid.into(),
        is_ready: true,
        networks: [format!("10.244.{number}.0/24"), format!("fd00:{number}::/64")]
            .map(|text| text.parse().unwrap())
            .into(),
        addresses: [Some([192, 0, 2, number].into()), format!("2001:db8::{number}").parse().ok()],
        key: Some([number; 32]),
        faults: vec![("x".into(), "y".into())],
        ..Peer::default()
    };
    Peers::from([("n1".into(), peer("u1", 1)), ("n2".into(), peer("u2", 2)), ("n3".into(), Peer::default())])
}

/// What a reader of the file knows of the nodes.
fn kept() -> Peers {
    let keep =
        |(name, peer)| (name, Peer { uid: String::new(), is_ready: false, faults: Vec::new(), ..peer });
    peers().into_iter().map(keep).collect()
}

fn save(path: &Path, identity: &Identity) -> Result<()> {
    let (json, sum) = content(identity, &peers()).unwrap();
    write(path, &json, &sum)
}

#[test]
fn what_is_written_is_read_by_the_same_node_on_the_same_machine() {
    let folder = tempfile::tempdir().unwrap();
    let (path, me) = (folder.path().join("a/plan"), identity("n1", "m1"));
    assert_eq!(read(&path, &me).unwrap(), None);
    save(&path, &me).unwrap();
    let found = read(&path, &me).unwrap().unwrap();
    assert_eq!((found.uid.as_str(), found.peers), ("u1", kept()));
    assert_eq!(content(&me, &peers()).unwrap().1, found.sum, "it is not written again");
    for (other, why) in [
        (identity("n2", "m1"), "it is that of node n1"),
        (identity("n1", "m2"), "it is that of another machine"),
    ] {
        assert_eq!(read(&path, &other).unwrap_err().to_string(), why);
    }
    assert!(content(&identity("n9", "m1"), &peers()).is_none(), "a list without this node");
    assert!(remove(&path).unwrap() && !remove(&path).unwrap());
    assert!(!folder.path().join("a").exists());
}

#[test]
fn a_damaged_file_is_passed_over_wherever_the_damage_is_and_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, me) = (folder.path().join("plan"), identity("n1", "m1"));
    save(&path, &me).unwrap();
    let sound = fs::read(&path).unwrap();
    for at in (0..sound.len()).step_by(7) {
        let mut damaged = sound.clone();
        damaged[at] ^= 1;
        fs::write(&path, &damaged).unwrap();
        assert!(read(&path, &me).is_err(), "byte {at}");
        fs::write(&path, &sound[..at]).unwrap();
        assert!(read(&path, &me).is_err(), "{at} bytes");
    }
    for damaged in [&sound[..30], b"", &[0; 4096]] {
        fs::write(&path, damaged).unwrap();
        save(&path, &me).unwrap();
        read(&path, &me).unwrap().unwrap();
    }
}

#[test]
fn foreign_files_are_neither_read_nor_replaced_nor_removed() {
    let folder = tempfile::tempdir().unwrap();
    let ([path, link], me) = (["plan", "link"].map(|name| folder.path().join(name)), identity("n1", "m1"));
    save(&path, &me).unwrap();
    symlink(&path, &link).unwrap();
    assert!(read(&link, &me).is_err() && save(&link, &me).is_err());
    chown(&path, Some(1234), None).unwrap();
    assert_eq!(read(&path, &me).unwrap_err().to_string(), "it belongs to user 1234");
    fs::write(&path, "precious").unwrap();
    assert!(save(&path, &me).unwrap_err().to_string().contains("not ours") && !remove(&path).unwrap());
    assert_eq!(fs::read(&path).unwrap(), b"precious");
}

#[test]
fn a_machine_without_an_identifier_has_no_identity() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("machine-id");
    let has_product = !file::read_named_text(Path::new(PRODUCT)).unwrap_or_default().trim().is_empty();
    for text in ["", "\n", "uninitialized\n"] {
        fs::write(&path, text).unwrap();
        assert_eq!(Identity::find("n1", &path).is_some(), has_product);
    }
    let find = |text: &str| {
        fs::write(&path, text).unwrap();
        Identity::find("n1", &path)
    };
    assert_ne!(find("1\n").unwrap(), find("2\n").unwrap());
}

/// The size at 5,000 nodes of both families, for README.md: `cargo test -p ferrule-node --lib plan_file -- --nocapture`.
#[test]
fn five_thousand_nodes_are_a_small_file() {
    let mut peers = Peers::new();
    for number in 0..5000_u32 {
        let mut peer = peers_of(number);
        peer.uid = "00000000-0000-4000-8000-000000000000".into();
        peers.insert(format!("ip-10-0-{}-{}.eu-west-1.compute.internal", number / 250, number % 250), peer);
    }
    let me = peers.keys().next().unwrap().clone();
    let (json, _) = content(&identity(&me, &"0".repeat(64)), &peers).unwrap();
    println!("{} bytes", json.len());
    assert!(json.len() < 2_000_000, "{}", json.len());
}

fn peers_of(number: u32) -> Peer {
    let (high, low) = (number / 250, number % 250);
    Peer {
        created: "2026-01-02T03:04:05Z".into(),
        networks: [format!("10.{}.{low}.0/24", 100 + high), format!("fd00:10:{number:x}::/64")]
            .map(|text| text.parse().unwrap())
            .into(),
        addresses: [
            Some(std::net::Ipv4Addr::from(0x0a00_0000 + number).into()),
            format!("2001:db8:0:9::{number:x}").parse().ok(),
        ],
        ..Peer::default()
    }
}
