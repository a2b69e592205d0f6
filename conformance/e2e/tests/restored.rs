//! A ruleset that other software saves as text and restores, with and without a reboot, whole and in part. The text keeps names,
//! comments and values, but not the owner metadata.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::net::SocketAddr;
use std::process::Command;

use cni_lab::testing::{ask, ips_of, serve, silent};
use cni_lab::{Background, Client, Node, NodeRuntime, Place as _, Pod, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Network, ValidAttachment};
use serde_json::{Value, json};

/// How the ruleset is saved and restored.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Rules {
    Nft,
    Iptables,
}

/// What the saved text has lost, as a script for `perl`.
const WHOLE: &str = "";
const NO_OWNERS: &str = r"s/(set owners \{[^}]*?)elements = \{[^}]*\}/$1/g";
const NO_PODS: &str = r"s/(map pods[46] \{[^}]*?)elements = \{[^}]*\}/$1/g";
const NO_HOST_PORTS: &str = r"s/(map dnat[46] \{[^}]*?)elements = \{[^}]*\}/$1/g";
const NO_FIREWALL: &str = r"s/table inet cni_firewall \{.*?\n\}\n//gs";
const NO_MASQUERADE: &str = r"s/table inet cni_plugins_masquerade \{.*?\n\}\n//gs";
/// As a version without the maps of pods leaves the table.
const OLDER: &str = r"s/\tmap pods[46] \{.*?\n\t\}\n//gs";
const NO_JUMP: &str = r"s/.*CNI-HOSTPORT-DNAT.*8080.*\n//g";

/// Container IDs are unique on the machine: other tests run on it.
const ONE: &str = "restored-one";
const TWO: &str = "restored-two";
const THREE: &str = "restored-three";

fn held() -> String {
    format!("held by container {ONE}")
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("infinity");
    command
}

struct Scene {
    init: Background,
    node: Node,
    outside: Client,
    network: Network,
    rules: Rules,
}

/// A pod and its attachment.
struct Attached {
    pod: Pod,
    attachment: Attachment,
    address: String,
    process: Option<Background>,
}

impl Scene {
    fn new(rules: Rules) -> Scene {
        let node = Node::new().unwrap();
        let outside = node.outside_client("192.0.2.0/24").unwrap();
        let backend = if rules == Rules::Nft { "nftables" } else { "iptables" };
        let spoof = rules == Rules::Nft;
        let network = Network::from_value(&json!({"name": "pods", "cniVersion": "1.1.0", "plugins": [
            {"type": "bridge", "bridge": "cni0", "isDefaultGateway": true, "ipMasq": true, "ipMasqBackend": backend,
                "macspoofchk": spoof, "ipam": {"type": "host-local", "subnet": "10.1.0.0/24"}},
            {"type": "firewall", "backend": backend},
            {"type": "portmap", "backend": backend, "capabilities": {"portMappings": true}}]}));
        let init = node.spawn(sleep()).unwrap();
        Scene { init, node, outside, network: network.unwrap(), rules }
    }

    fn runtime(&self) -> NodeRuntime<'_> {
        self.node.runtime([bin_dir().unwrap()])
    }

    fn try_add(&self, name: &str, ports: &[u16]) -> Result<Attached, String> {
        let pod = self.node.pod(name).unwrap();
        let mapping = |port: &u16| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"});
        let mappings: Value = ports.iter().map(mapping).collect();
        let attachment = pod.attachment("eth0").with_capability("portMappings", mappings);
        let added = self.runtime().add(&self.network, &attachment).map_err(|error| error.to_string())?;
        let address = ips_of(&added).remove(0);
        serve(&pod, name, 80);
        let process = Some(pod.spawn(sleep()).unwrap());
        Ok(Attached { pod, attachment, address, process })
    }

    fn add(&self, name: &str, ports: &[u16]) -> Attached {
        self.try_add(name, ports).unwrap_or_else(|error| panic!("ADD of {name}: {error}"))
    }

    fn check(&self, attached: &Attached) -> Result<(), String> {
        self.runtime().check(&self.network, &attached.attachment).map_err(|error| error.to_string())
    }

    fn del(&self, attached: &Attached) {
        self.runtime().del(&self.network, &attached.attachment).unwrap();
    }

    /// Saves the ruleset, flushes it, and restores what the script of `perl` leaves.
    fn restore(&self, script: &str) {
        let (save, restore) = match self.rules {
            Rules::Nft => ("nft list ruleset", "nft -f /run/saved"),
            Rules::Iptables => (
                "iptables-save; echo; nft list table inet cni_firewall >/run/nft; nft list table inet cni_portmap >>/run/nft",
                "iptables-restore /run/saved; nft -f /run/nft",
            ),
        };
        self.node
            .sh(&format!("set -e; ({save}) >/run/full; perl -0pe '{script}' /run/full >/run/saved; nft flush ruleset; {restore}"))
            .unwrap();
    }

    /// Ends the boot: no pod, no link, and another boot ID.
    fn reboot(&self, attached: &mut Attached) {
        attached.process = None;
        attached.pod.delete().unwrap();
        self.node
            .sh("for link in $(ls /sys/class/net/cni0/brif) cni0; do ip link delete $link; done
                cat /proc/sys/kernel/random/uuid >/run/boot; mount --bind /run/boot /proc/sys/kernel/random/boot_id")
            .unwrap();
    }

    /// The next container gets this one's address.
    fn free(&self, attached: &Attached) {
        let files = format!("rm -f {} last_reserved_ip.0", attached.address);
        self.node.sh(&format!("cd /var/lib/cni/networks/pods; {files}")).unwrap();
    }

    /// Runs `ferrule`, which succeeds, on the node.
    fn ferrule(&self, words: &str) -> String {
        let mut command = Command::new(bin_dir().unwrap().join("ferrule"));
        command.args(words.split(' ')).args(["--init", &self.init.id().to_string()]);
        let output = self.node.exec(&mut command).unwrap();
        let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{words}: {said}");
        said
    }

    /// GC of the runtime; only this attachment is valid.
    fn gc(&self, attached: &Attached) {
        let valid =
            ValidAttachment { container_id: attached.pod.name().to_owned(), ifname: "eth0".to_owned() };
        self.runtime().gc(&self.network, Some(&[valid])).unwrap();
    }

    /// `ferrule gc` removes what the first container has left. Namespaces of other tests, which come and go, may make it wait.
    fn collect(&self) {
        let mut said = String::new();
        let is_gone = eventually(TIMEOUT, || {
            said = self.ferrule("gc --yes");
            !self.node.sh("iptables-save; nft list ruleset").unwrap().contains(ONE)
        });
        assert!(is_gone, "{said}");
    }

    fn repair(&self) -> String {
        self.ferrule(&format!("repair --yes --bin-dir {}", bin_dir().unwrap().display()))
    }

    fn to(&self, port: u16) -> SocketAddr {
        SocketAddr::new(self.outside.node_address(), port)
    }

    fn answers(&self, port: u16) -> String {
        let answer = ask(&self.outside, "tcp", self.to(port)).unwrap_or_else(|error| error);
        answer.split(' ').next().unwrap_or_default().to_owned()
    }

    fn is_closed(&self, port: u16) -> bool {
        silent(&self.outside, "tcp", self.to(port))
    }

    fn listing(&self) -> String {
        self.node.sh("nft list ruleset").unwrap()
    }
}

#[test]
fn without_a_reboot_the_container_keeps_everything() {
    for (what, lost, check) in [
        ("whole", WHOLE, true),
        ("older", OLDER, true),
        ("pods", NO_PODS, true),
        ("host ports", NO_HOST_PORTS, false),
        ("firewall", NO_FIREWALL, false),
        ("masquerade", NO_MASQUERADE, false),
    ] {
        let scene = Scene::new(Rules::Nft);
        let one = scene.add(ONE, &[8080]);
        scene.restore(lost);
        let checked = scene.check(&one);
        assert_eq!(checked.is_ok(), check, "{what}: {checked:?}");
        if check {
            let error = scene.try_add(TWO, &[8080]).err().unwrap_or_default();
            assert!(error.contains(&held()), "{what}: {error}");
            assert!(error.contains("restored from its text"), "{what}: {error}");
        } else {
            let said = scene.repair();
            assert!(said.contains("1 repaired, 0 failed"), "{what}: {said}");
            assert_eq!(scene.check(&one), Ok(()), "{what}");
        }
        scene.ferrule("gc --yes");
        assert_eq!(scene.check(&one), Ok(()), "{what}");
        assert_eq!(scene.answers(8080), ONE, "{what}");
        scene.del(&one);
        let next = scene.add(THREE, &[8080]);
        assert_eq!(scene.answers(8080), THREE, "{what}");
        scene.del(&next);
        let left = scene.listing();
        assert!(!left.contains(ONE) && !left.contains(THREE), "{what}: {left}");
    }
}

#[test]
fn after_a_reboot_the_next_container_gets_the_port() {
    let cases = [
        ("whole", WHOLE, true),
        ("owners", NO_OWNERS, true),
        ("host ports", NO_HOST_PORTS, true),
        ("firewall", NO_FIREWALL, true),
        ("masquerade", NO_MASQUERADE, true),
        // Nothing proves the boot.
        ("pods", NO_PODS, false),
        ("older", OLDER, false),
    ];
    for (number, (what, lost, is_proven)) in cases.into_iter().enumerate() {
        let scene = Scene::new(Rules::Nft);
        let mut one = scene.add(ONE, &[8080, 8081]);
        scene.reboot(&mut one);
        scene.restore(lost);
        let second = scene.try_add(TWO, &[8080]);
        assert_eq!(second.is_ok(), is_proven, "{what}: {:?}", second.as_ref().err());
        if let Err(error) = &second {
            assert!(error.contains(&held()), "{what}: {error}");
            scene.del(&one);
        }
        let second = second.unwrap_or_else(|_| scene.add(THREE, &[8080]));
        assert_ne!(second.address, one.address, "{what}");
        assert_eq!(scene.check(&second), Ok(()), "{what}");
        assert_eq!(scene.answers(8080), second.pod.name(), "{what}");
        // A pod without host ports, and one with another, get the address of the dead one.
        for (name, ports) in [("bare", &[][..]), ("other", &[9090])] {
            scene.free(&one);
            let heir = scene.add(name, ports);
            assert_eq!(heir.address, one.address, "{what}");
            assert!(scene.is_closed(8081), "{what}: {name}: {}", scene.listing());
            assert_eq!(scene.check(&heir), Ok(()), "{what}");
            scene.del(&heir);
        }
        match number % 3 {
            0 => scene.del(&one),
            1 => scene.gc(&second),
            _ => scene.collect(),
        }
        assert!(!scene.listing().contains(ONE), "{what}: {}", scene.listing());
        assert_eq!(scene.check(&second), Ok(()), "{what}");
        assert_eq!(scene.answers(8080), second.pod.name(), "{what}");
        let said = scene.repair();
        assert!(said.contains("0 repaired, 0 failed"), "{what}: {said}");
        scene.del(&second);
        let left = scene.listing();
        assert!(!left.contains(ONE) && !left.contains(second.pod.name()), "{what}: {left}");
    }
}

/// After a reboot the first pod gets the address of the dead one, and has no host ports or others.
#[test]
fn the_heir_of_an_address_does_not_get_the_host_port() {
    for (name, ports) in [("bare", &[][..]), ("other", &[9090])] {
        let scene = Scene::new(Rules::Nft);
        let mut one = scene.add(ONE, &[8080]);
        scene.reboot(&mut one);
        scene.free(&one);
        scene.restore(WHOLE);
        let heir = scene.add(name, ports);
        assert_eq!(heir.address, one.address);
        assert!(scene.is_closed(8080), "{}", scene.listing());
        assert!(ports.iter().all(|port| scene.answers(*port) == name));
        // The DEL that comes late takes nothing from the heir.
        scene.del(&one);
        assert_eq!(scene.check(&heir), Ok(()));
        scene.del(&heir);
        assert!(!scene.listing().contains("pods/eth0"), "{}", scene.listing());
    }
}

/// The chains of iptables have the reference's form, in which nothing tells the boot. GC removes them.
#[test]
fn iptables_after_a_reboot() {
    for lost in [WHOLE, NO_JUMP] {
        let scene = Scene::new(Rules::Iptables);
        let mut one = scene.add(ONE, &[8080]);
        scene.reboot(&mut one);
        scene.restore(lost);
        let second = scene.add(TWO, &[8080]);
        assert_eq!(scene.check(&second), Ok(()), "{lost}");
        if lost == WHOLE {
            scene.gc(&second);
        } else {
            scene.collect();
        }
        assert_eq!(scene.check(&second), Ok(()), "{lost}");
        assert_eq!(scene.answers(8080), TWO, "{lost}");
        scene.del(&second);
        let left = scene.node.sh("iptables-save; nft list ruleset").unwrap();
        assert!(!left.contains(ONE) && !left.contains(TWO), "{lost}: {left}");
    }
}
