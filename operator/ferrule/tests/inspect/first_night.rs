//! docs/first-bad-night.md: each of its failures is made here, and its command says what the page shows.

use std::fs;
use std::thread;

use cni_lab::Place as _;
use cni_lab::testing::Origin;
use serde_json::{Value, json};

use crate::fixture::Fixture;

/// A failure.
struct Night {
    /// The number of its heading in the page.
    number: u32,
    /// What breaks the node, as a shell script. It runs with a live pod `first-night-NUMBER`, if `has_pod`.
    breaks: &'static str,
    has_pod: bool,
    /// The command.
    words: &'static str,
    /// What it says. The page has the same text.
    says: &'static [&'static str],
}

const NIGHTS: [Night; 10] = [
    Night {
        number: 1,
        breaks: "rm /run/cni/net.d/*",
        has_pod: false,
        words: "doctor",
        says: &["there is no network: runtimes report \"cni plugin not initialized\""],
    },
    Night {
        number: 2,
        breaks: "sed -i 's/firewall/vrf/' /run/cni/net.d/10-pods.conflist",
        has_pod: false,
        words: "doctor",
        says: &["vrf: no such program in "],
    },
    Night {
        number: 3,
        breaks: "echo '{\"name\": \"x\",' >/run/cni/net.d/05-x.conflist",
        has_pod: false,
        words: "doctor",
        says: &["05-x.conflist: is not JSON: "],
    },
    Night {
        number: 4,
        breaks: "nft flush ruleset",
        has_pod: true,
        words: "check",
        says: &["failed: container ", " (interface eth0 on network ", "0 sound, 1 failed, 0 skipped"],
    },
    Night {
        number: 5,
        breaks: "iptables -P FORWARD DROP; sed -i 's/firewall/tuning/' /run/cni/net.d/10-pods.conflist",
        has_pod: false,
        words: "doctor",
        says: &["ip filter FORWARD"],
    },
    Night {
        number: 6,
        // The kernel removes the pair a moment after the namespace. Until then the address has a live link.
        breaks: "umount /run/netns/first-night-6; rm /run/netns/first-night-6
            while ip -o link show type veth | grep -q veth; do sleep 0.02; done",
        has_pod: true,
        words: "inspect leaks",
        says: &["address", "host port", "does not exist"],
    },
    Night {
        number: 7,
        breaks: "true",
        has_pod: true,
        words: "inspect why 18907",
        says: &["host port ", "18907/tcp"],
    },
    Night {
        number: 8,
        breaks: "ip link add br-pods type bridge; ip link set br-pods mtu 1200",
        has_pod: false,
        words: "test",
        says: &[
            "failed: MTU pod to outside (IPv4): a packet of 1500 bytes, the MTU of the pod, does not pass: ",
            "the MTU of br-pods is 1200",
        ],
    },
    Night {
        number: 9,
        breaks: "ip link add lan0 type bridge; ip address add 10.214.7.1/24 dev lan0; ip link set lan0 up",
        has_pod: false,
        words: "doctor",
        says: &["its subnet 10.214.0.0/16 overlaps with 10.214.7."],
    },
    Night { number: 10, breaks: "true", has_pod: true, words: "inspect shaping", says: &["80Mbit/s"] },
];

fn conflist() -> Value {
    json!({"name": "pods", "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": "br-pods", "isDefaultGateway": true, "ipMasq": true,
            "ipam": {"type": "host-local", "ranges": [[{"subnet": "10.214.0.0/16"}]]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "firewall"},
    ]})
}

fn said(night: &Night) -> String {
    let f = Fixture::new();
    f.node.write_conflist("10-pods.conflist", &conflist()).unwrap();
    let name = format!("first-night-{}", night.number);
    let port = 18900 + u16::try_from(night.number).unwrap();
    let _pod = night.has_pod.then(|| f.add(Origin::Ours, &name, port));
    f.node.sh(night.breaks).unwrap();
    let bin_dir = format!("--bin-dir {}", f.bin_dir(Origin::Ours).display());
    let options = match night.words {
        "doctor" | "test" => format!(" --conf-dir /run/cni/net.d {bin_dir}"),
        "check" => format!(" {bin_dir}"),
        _ => String::new(),
    };
    let output = f.run(&format!("{}{options}", night.words));
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn each_failure_of_the_page_says_what_the_page_shows() {
    let page =
        fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/first-bad-night.md")).unwrap();
    let parts: Vec<&str> = page.split("\n## ").skip(1).collect();
    assert_eq!(parts.len(), NIGHTS.len());
    thread::scope(|scope| {
        let threads: Vec<_> = NIGHTS.iter().map(|night| (night, scope.spawn(|| said(night)))).collect();
        for (night, thread) in threads {
            let said = thread.join().unwrap();
            let part = parts.iter().find(|part| part.starts_with(&format!("{}. ", night.number))).unwrap();
            let command = night.words.split(' ').next().unwrap_or_default();
            assert!(part.contains(&format!("$ ferrule {command}")), "{part}");
            for text in night.says {
                assert!(said.contains(text), "{}: {text}: {said}", night.number);
                assert!(part.contains(text), "{}: {text}: {part}", night.number);
            }
        }
    });
}
