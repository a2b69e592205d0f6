//! The plugin's verbs with ledgers that the test writes, and with peers that are no good daemon.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::IpAddr;
use std::os::unix::net::UnixListener;

use cni_lab::testing::{ErrorObject, Expect, at_once, overlay, with_prev};
use cni_lab::{KillPoint, Machine, Node, Place as _};
use cni_runner::{Attachment, Exec, Output};
use serde_json::{Value, json};
use tempfile::TempDir;

const PROGRAM: &str = env!("CARGO_BIN_EXE_shared");

/// A network with two blocks of eight addresses, the second of which is closed.
struct Net {
    dir: TempDir,
    conf: Value,
}

impl Net {
    fn new() -> Net {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let conf = json!({ "cniVersion": "1.1.0", "name": "net", "type": "macvlan", "ipam": { "type": "shared", "domain": "lan",
            "blockSize": 8, "subnet": "10.0.0.0/24", "dataDir": path("stores"), "ledgers": path("ledgers"), "socket": path("sock") } });
        let net = Net { dir, conf };
        fs::create_dir(net.dir.path().join("ledgers")).unwrap();
        net.ledger(
            &this_boot(),
            json!([block("10.0.0.8", "open"), block("10.0.0.16", "closed"), block("10.0.0.24", "lost")]),
        );
        net
    }

    fn ledger(&self, boot: &str, blocks: Value) {
        let ledger = json!({ "ferruleBlocks": 1, "network": "net", "domain": "lan", "dataDir": self.dir.path().join("stores"),
            "sets": [[{ "subnet": "10.0.0.0/24", "rangeStart": "10.0.0.1", "rangeEnd": "10.0.0.254", "blockSize": 8, "gateway": "10.0.0.1" }]],
            "boot": boot, "blocks": blocks });
        fs::write(self.dir.path().join("ledgers/net.json"), ledger.to_string()).unwrap();
    }

    fn exec(&self, verb: &str, id: &str) -> Exec {
        let mut exec = Exec::new(PROGRAM, verb)
            .attachment(&Attachment::new(id, "/some/where", "eth0"))
            .path("/some/path");
        exec.inherit = false;
        exec.stdin(self.conf.to_string())
    }

    fn call(&self, verb: &str, id: &str) -> Output {
        self.exec(verb, id).run().unwrap()
    }

    fn check(&self, id: &str, ip: &str) -> Output {
        let conf = with_prev(
            &self.conf,
            &json!({ "cniVersion": "1.1.0", "ips": [{ "address": format!("{ip}/24") }] }),
        );
        self.exec("CHECK", id).stdin(conf.to_string()).run().unwrap()
    }

    /// The addresses that are reserved.
    fn reserved(&self) -> BTreeSet<IpAddr> {
        let files = fs::read_dir(self.dir.path().join("stores/net")).into_iter().flatten();
        files.filter_map(|file| file.unwrap().file_name().to_str()?.parse().ok()).collect()
    }
}

fn block(first: &str, state: &str) -> Value {
    json!({ "first": first, "size": 8, "state": state, "uid": first })
}

fn this_boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap().trim().to_owned()
}

#[test]
fn addresses_come_from_open_blocks_alone() {
    let net = Net::new();
    let calls: Vec<Exec> = (0..8).map(|n| net.exec("ADD", &format!("c{n}"))).collect();
    let ips: BTreeSet<IpAddr> = at_once(&Machine, &calls)
        .iter()
        .flat_map(|output| output.ips())
        .map(|ip| ip.parse().unwrap())
        .collect();
    assert_eq!(ips, (8..16).map(|n| IpAddr::from([10, 0, 0, n])).collect());
    let error = net.call("ADD", "more").error();
    error.expect(
        11,
        "network \"net\" has no address for this container: the daemon that claims addresses does not answer",
    );
    assert!(error.contains("remedy: start the daemon: ferrule-node blocks"), "{error}");
    net.call("STATUS", "").ok();
    assert_eq!(net.call("ADD", "c3").error().pair().1.split(' ').nth(1), Some("has"), "a second ADD");
    net.call("DEL", "c3").ok();
    assert_eq!(net.call("ADD", "more").ips().len(), 1);
}

#[test]
fn one_block_is_filled_before_the_next_one() {
    let net = Net::new();
    net.ledger(
        &this_boot(),
        json!([block("10.0.0.8", "open"), block("10.0.0.16", "open"), block("10.0.0.24", "open")]),
    );
    let add = |id: &str| net.call("ADD", id).ips().remove(0);
    let ips: Vec<String> = (0..12).map(|n| add(&format!("c{n}"))).collect();
    let expected: Vec<String> = (8..20).map(|n| format!("10.0.0.{n}")).collect();
    assert_eq!(ips, expected);
    // The present block goes on; then the free address of the first one comes, before the third block.
    net.call("DEL", "c3").ok();
    net.call("DEL", "c11").ok();
    let ips: Vec<String> = (0..6).map(|n| add(&format!("d{n}"))).collect();
    assert_eq!(ips, ["10.0.0.20", "10.0.0.21", "10.0.0.22", "10.0.0.23", "10.0.0.19", "10.0.0.11"]);
    assert_eq!(add("e"), "10.0.0.24");
}

#[test]
fn addresses_on_request_are_for_those_that_ask() {
    let mut net = Net::new();
    let range = |start: &str, end: &str| json!({ "subnet": "10.0.0.0/24", "rangeStart": start, "rangeEnd": end, "gateway": "10.0.0.1" });
    let (usual, on_request) = (range("10.0.0.1", "10.0.0.15"), range("10.0.0.240", "10.0.0.250"));
    let ipam = json!({ "subnet": null, "ranges": [[usual, on_request]], "onRequest": ["10.0.0.240/28"] });
    net.conf["ipam"] = overlay(&net.conf["ipam"], &ipam);
    let sets = [[
        overlay(&usual, &json!({ "blockSize": 8 })),
        overlay(&on_request, &json!({ "blockSize": 1, "onRequest": true })),
    ]];
    let ledger = json!({ "ferruleBlocks": 1, "network": "net", "domain": "lan", "dataDir": net.dir.path().join("stores"), "sets": sets,
        "boot": this_boot(), "blocks": [{ "first": "10.0.0.241", "size": 1, "state": "open", "uid": "u" }] });
    fs::write(net.dir.path().join("ledgers/net.json"), ledger.to_string()).unwrap();
    assert_eq!(net.call("ADD", "usual").error().code, 11);
    let asks = overlay(&net.conf, &json!({ "args": { "cni": { "ips": ["10.0.0.241"] } } }));
    assert_eq!(net.exec("ADD", "asks").stdin(asks.to_string()).run().unwrap().ips(), ["10.0.0.241"]);
    net.call("DEL", "asks").ok();
    assert_eq!(net.call("ADD", "usual").error().code, 11, "it was the last address");
    assert!(net.reserved().is_empty());
    // The configuration has changed.
    net.conf["ipam"]["ranges"][0][0]["exclude"] = json!(["10.0.0.9"]);
    net.call("STATUS", "").error().expect(50, "does not answer");
    let asks = overlay(&net.conf, &json!({ "args": { "cni": { "ips": ["10.0.0.241"] } } }));
    let exec = net.exec("ADD", "asks").stdin(asks.to_string());
    let request = answered(&net, &exec, "{\"ferruleBlocks\":1,\"failure\":{\"code\":11,\"msg\":\"no\"}}\n").0;
    assert!(request.contains("\"needs\":[{\"address\":\"10.0.0.241\"}]"), "{request}");
}

#[test]
fn a_ledger_of_an_earlier_boot_opens_nothing() {
    let net = Net::new();
    net.ledger("earlier", json!([block("10.0.0.8", "open")]));
    assert_eq!(net.call("ADD", "c").error().code, 11);
    assert_eq!(net.call("STATUS", "").error().code, 50);
    assert!(net.reserved().is_empty());
}

#[test]
fn check_del_and_gc_need_no_daemon() {
    let net = Net::new();
    let [ip] = &net.call("ADD", "live").ips()[..] else { panic!("one address") };
    net.check("live", ip).ok();
    net.check("other", ip).error().expect(999, "shared: Failed to find address added by container other");
    fs::write(net.dir.path().join("stores/net/10.0.0.25"), "lost\r\neth0").unwrap();
    fs::write(net.dir.path().join("stores/net/10.0.0.33"), "none\r\neth0").unwrap();
    for (id, ip) in [("lost", "10.0.0.25"), ("none", "10.0.0.33")] {
        net.check(id, ip).error().expect(999, "is in a block that this node no longer has");
    }
    let valid = json!({ "cni.dev/valid-attachments": [{ "containerID": "live", "ifname": "eth0" }] });
    net.exec("GC", "").stdin(overlay(&net.conf, &valid).to_string()).run().unwrap().ok();
    assert_eq!(net.reserved(), [ip.parse().unwrap()].into());
    fs::remove_dir_all(net.dir.path().join("ledgers")).unwrap();
    net.call("DEL", "live").ok();
    assert!(net.reserved().is_empty());
}

#[test]
fn a_network_keeps_its_domain_and_its_stores() {
    let mut net = Net::new();
    for (key, value) in [("domain", json!("other")), ("dataDir", json!("/run/elsewhere-of-the-test"))] {
        let former = std::mem::replace(&mut net.conf["ipam"][key], value);
        let error = net.call("ADD", "c").error();
        error.expect(7, "has blocks of the domain \"lan\"");
        net.conf["ipam"][key] = former;
        let _ = fs::remove_dir_all("/run/elsewhere-of-the-test");
    }
    fs::write(net.dir.path().join("ledgers/net.json"), "{").unwrap();
    net.call("ADD", "c").error().expect(5, "ledgers/net.json: EOF");
    net.call("DEL", "c").ok();
}

/// The request of a call whose peer answers this, and the call's error.
fn answered(net: &Net, exec: &Exec, answer: &str) -> (String, ErrorObject) {
    let socket = net.dir.path().join("sock");
    let _ = fs::remove_file(&socket);
    let listener = UnixListener::bind(&socket).unwrap();
    std::thread::scope(|scope| {
        let request = scope.spawn(|| {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            // The plugin stops reading when it has enough.
            let _ = stream.write_all(answer.as_bytes());
            request
        });
        let error = exec.run().unwrap().error();
        (request.join().unwrap(), error)
    })
}

/// Containers from before the last boot have all addresses of two blocks. No runtime has called DEL.
#[test]
fn addresses_from_before_the_boot_are_given_again_in_all_blocks() {
    let net = Net::new();
    net.ledger(&this_boot(), json!([block("10.0.0.8", "open"), block("10.0.0.16", "open")]));
    let store = net.dir.path().join("stores/net");
    fs::create_dir_all(&store).unwrap();
    for n in 8..24 {
        let path = store.join(format!("10.0.0.{n}"));
        // An administrator keeps one.
        let owner = if n == 19 { "for the printer".to_owned() } else { format!("former{n}\r\neth0") };
        fs::write(&path, owner).unwrap();
        fs::File::options().append(true).open(path).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
    }
    let ips: BTreeSet<String> = (0..15).flat_map(|n| net.call("ADD", &format!("c{n}")).ips()).collect();
    assert!(ips.len() == 15 && !ips.contains("10.0.0.19"), "{ips:?}");
    assert_eq!(net.call("ADD", "more").error().code, 11);
}

/// A daemon with another folder of ledgers says again and again that the node has a block.
#[test]
fn an_answer_that_changes_no_ledger_ends_add() {
    let net = Net::new();
    net.ledger(&this_boot(), json!([]));
    let listener = UnixListener::bind(net.dir.path().join("sock")).unwrap();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            BufReader::new(&stream).read_line(&mut String::new()).unwrap();
            let _ = stream.write_all(b"{\"ferruleBlocks\":1}\n");
        }
    });
    let error = net.call("ADD", "c").error();
    error.expect(11, "has claimed one, and");
    assert!(error.contains("remedy: give \"ledgers\" and --ledgers"), "{error}");
}

/// What the peer answers, and code and text of the error.
#[test]
fn peers_that_are_no_good_daemon() {
    let net = Net::new();
    net.ledger(&this_boot(), json!([]));
    let long = "x".repeat(2 << 20);
    for (answer, code, said) in [
        ("", 11, "closed the connection"),
        ("HTTP/1.1 400 Bad Request\r\n\r\n", 999, "is not ferrule-node blocks"),
        ("{\"ferruleBlocks\":2}\n", 999, "speaks version 2 of the protocol"),
        ("{\"ferruleBlocks\":1,\"failure\":{\"code\":7,\"msg\":\"no \\u001b[1m\"}}\n", 7, "no "),
        (&*long, 999, "is not ferrule-node blocks"),
    ] {
        let (request, error) = answered(&net, &net.exec("ADD", "c"), answer);
        assert!(request.contains("\"needs\":[{\"set\":0}]"), "{request}");
        error.expect(code, said);
    }
    assert!(net.reserved().is_empty());
}

/// A host outside of Kubernetes has addresses of the block.
#[test]
fn an_address_of_another_host_is_put_aside() {
    let (node, host) = (Node::new().unwrap(), Node::new().unwrap());
    let peer = host.netns_path().display().to_string();
    node.sh(&format!("ip link add lan0 type veth peer name eth0 netns {peer} && ip link set lan0 up"))
        .unwrap();
    host.sh("ip addr add 10.0.0.8/24 dev eth0 && ip addr add 10.0.0.9/24 dev eth0 && ip link set eth0 up")
        .unwrap();
    let mac = host.sh("cat /sys/class/net/eth0/address").unwrap().trim().to_owned();
    let mut net = Net::new();
    let call = |net: &Net, verb: &str, id: &str| node.run(|| net.exec(verb, id).run().unwrap()).unwrap();
    let last = |numbers: &[u8]| numbers.iter().map(|n| IpAddr::from([10, 0, 0, *n])).collect::<BTreeSet<_>>();
    assert_eq!(call(&net, "ADD", "c").ips(), ["10.0.0.8"], "without the key nobody asks");
    call(&net, "DEL", "c").ok();

    net.conf["ipam"]["probe"] = "lan0".into();
    call(&net, "STATUS", "").ok();
    fs::remove_file(net.dir.path().join("stores/net/last_reserved_ip.0")).unwrap();
    let added = call(&net, "ADD", "c");
    assert_eq!(added.ips(), ["10.0.0.10"]);
    assert!(
        added.stderr_text().contains(&format!("other hosts on lan0 have 10.0.0.8 ({mac}): put aside")),
        "{}",
        added.stderr_text()
    );
    assert_eq!(net.reserved(), last(&[8, 9, 10]));
    let holder = fs::read_to_string(net.dir.path().join("stores/net/10.0.0.8")).unwrap();
    assert_eq!(holder, format!("foreign-{}\r\nprobe", mac.replace(':', "")));
    call(&net, "DEL", "c").ok();
    let valid = json!({ "cni.dev/valid-attachments": [] });
    net.exec("GC", "").stdin(overlay(&net.conf, &valid).to_string()).run().unwrap().ok();
    assert!(net.reserved().is_empty(), "it is asked for again");

    net.conf["args"] = json!({ "cni": { "ips": ["10.0.0.9"] } });
    let error = call(&net, "ADD", "c").error();
    error.expect(11, &format!("network \"net\": other hosts on lan0 have 10.0.0.9 ({mac})"));
    assert_eq!(net.reserved(), last(&[9]));
    // One that answers for all addresses.
    net.conf["args"].take();
    host.sh("for n in $(seq 10 15); do ip addr add 10.0.0.$n/24 dev eth0; done").unwrap();
    let error = call(&net, "ADD", "c").error();
    error.expect(11, "have 10.0.0.");
    assert_eq!((error.to_string().matches(&mac).count(), net.reserved().len()), (4, 5));
    net.conf["ipam"]["probe"] = "none".into();
    call(&net, "ADD", "c").error().expect(7, "ipam.probe: there is no link none");
    call(&net, "STATUS", "").error().expect(50, "there is no link none");
    assert_eq!(net.reserved().len(), 5, "the attachment has nothing");
}

/// Kills ADD and DEL before each system call that is visible outside of the process: DEL leaves nothing.
#[test]
fn del_cleans_up_after_kills() {
    let node = Node::new().unwrap();
    for verb in ["ADD", "DEL"] {
        let killable = || {
            let net = Net::new();
            net.call("ADD", "live").result();
            if verb == "DEL" {
                net.call("ADD", "killed").result();
            }
            let exec = net.exec(verb, "killed");
            (net, exec)
        };
        let (_net, exec) = killable();
        for point in KillPoint::all(&node, &exec).unwrap() {
            let (net, exec) = killable();
            point.kill(&node, &exec).unwrap();
            net.call("DEL", "killed").ok();
            assert_eq!(net.reserved().len(), 1, "{verb} killed {point}");
        }
    }
}
