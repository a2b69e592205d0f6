//! A node with a bystander, on which one container after the other misbehaves.

use std::fmt;
use std::process::Command;
use std::time::{Duration, Instant};

use cni_lab::testing::{ips_of, overlay};
use cni_lab::{Background, Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Network, ValidAttachment};
use serde_json::{Value, json};

use super::Subject;
use super::attacks::Attack;

/// How long CHECK, DEL and GC of a chain may take on a busy machine. A lock that a container could hold makes them fail after 10 s.
const LIMIT: Duration = Duration::from_secs(60);
/// The names of the pods and their host ports.
pub(crate) const BYSTANDER: (&str, u16) = ("bystander", 8081);
pub(crate) const VICTIM: (&str, u16) = ("victim", 8080);

/// How the attachment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// DEL.
    Del,
    /// DEL after the runtime has removed the namespace.
    LateDel,
    /// GC after the runtime has removed the namespace and lost its cache.
    Gc,
}

impl Ending {
    /// All endings.
    pub(crate) fn all() -> impl Iterator<Item = Ending> {
        [Ending::Del, Ending::LateDel, Ending::Gc].into_iter()
    }
}

/// The node, the network, and the bystander.
pub(crate) struct Scene {
    pub(crate) node: Node,
    pub(crate) network: Network,
    /// The node's first process, for `ferrule repair`.
    init: Background,
    /// Keeps the bystander's namespace.
    bystander: Pod,
    /// The node and the bystander without the container.
    before: [Snapshot; 2],
}

/// One attack with one ending, for failures.
struct Play<'a>(&'a Attack, Ending);

impl fmt::Display for Play<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {:?}", self.0.name, self.1)
    }
}

impl Scene {
    /// A node with an attached bystander. host-local has two addresses for each family, so the container and each pod after it
    /// get the same ones.
    pub(crate) fn new(subject: &Subject) -> Scene {
        let node = Node::new().unwrap();
        node.sh(subject.prepare).unwrap();
        let network = network(subject, &json!({}));
        let bystander = node.pod(BYSTANDER.0).unwrap();
        let other = self::network(subject, &subject.bystander);
        let runtime = node.runtime([bin_dir().unwrap()]);
        runtime.add(&other, &attachment(&bystander, BYSTANDER.1)).unwrap();
        let init = node.spawn(sleep()).unwrap();
        let scene = Scene { node, network, init, bystander, before: Default::default() };
        // The first container makes what all share.
        let first = scene.node.pod("first").unwrap();
        scene.add(&first);
        scene.runtime().del(&scene.network, &attachment(&first, VICTIM.1)).unwrap();
        first.delete().unwrap();

        Scene { before: scene.look(), ..scene }
    }

    fn runtime(&self) -> NodeRuntime<'_> {
        self.node.runtime([bin_dir().unwrap()])
    }

    fn add(&self, pod: &Pod) -> Vec<String> {
        ips_of(&self.runtime().add(&self.network, &attachment(pod, VICTIM.1)).unwrap())
    }

    fn look(&self) -> [Snapshot; 2] {
        let node =
            Snapshot::take(&self.node).unwrap().ignoring(&["last_reserved_ip", "/var/lib/cni/results/ "]);
        [node, Snapshot::take(&self.bystander).unwrap()]
    }

    /// Panics unless node and bystander are as they were before the first container.
    pub(crate) fn assert_as_before(&self, what: &str) {
        let diff = || {
            let now = self.look();
            [0, 1].map(|part| self.before[part].diff(&now[part])).join("bystander:\n")
        };
        // The kernel removes some objects after the call that asked for it.
        eventually(TIMEOUT, || diff() == "bystander:\n");
        assert_eq!(diff(), "bystander:\n", "{what}");
    }

    /// Attaches a container, lets it attack, detaches it by this ending, and attaches the next one.
    pub(crate) fn play(&self, attack: &Attack, ending: Ending) {
        let what = Play(attack, ending).to_string();
        let [victim, nested] = [VICTIM.0, "nested"].map(|name| self.node.pod(name).unwrap());
        let ips = self.add(&victim);
        let variables = format!("set -e; IP4={} IP6={}; ", ips[0], ips[1]);
        victim
            .sh(&format!("{variables}{}", attack.script))
            .unwrap_or_else(|error| panic!("{what}: {error:#}"));
        // CHECK may succeed or fail, but has to answer.
        let checked =
            self.timed(&what, |runtime| runtime.check(&self.network, &attachment(&victim, VICTIM.1)));
        let error = checked.err().map(|error| error.to_string()).unwrap_or_default();
        assert!(!error.contains("has been locked"), "{what}: {error}");
        self.repair(&victim, &what);
        if ending != Ending::Del {
            victim.delete().unwrap();
        }
        let ended = self.timed(&what, |runtime| match ending {
            Ending::Gc => {
                self.node.sh("rm -f /var/lib/cni/results/*victim*").unwrap();
                let bystander = [ValidAttachment::new(BYSTANDER.0, "eth0")];
                runtime.gc(&self.network, Some(&bystander))
            }
            _ => runtime.del(&self.network, &attachment(&victim, VICTIM.1)),
        });
        ended.unwrap_or_else(|error| panic!("{what}: {error}"));
        // A veth whose namespace is gone may take the kernel a moment.
        let places: &[&Pod] = if ending == Ending::Del { &[&victim, &nested] } else { &[&nested] };
        for place in places {
            for ip in &ips {
                let holder = || place.sh(&format!("ip -o address show to {ip}")).unwrap();
                eventually(Duration::from_secs(2), || holder().is_empty());
                assert_eq!(holder(), "", "{what}: {} still has {ip}", place.name());
            }
        }
        self.node.sh("test ! -e /run/attacker || { kill $(cat /run/attacker); rm /run/attacker; }").unwrap();
        nested.delete().unwrap();
        if ending == Ending::Del {
            victim.delete().unwrap();
        }
        self.assert_as_before(&what);
        self.next_pod_gets(&ips, &what);
    }

    /// Runs `ferrule repair` while a process of the container runs. It may succeed or fail, but DEL must remove all that it makes.
    fn repair(&self, victim: &Pod, what: &str) {
        let process = victim.spawn(sleep()).unwrap();
        let bin_dir = bin_dir().unwrap();
        let mut said = String::new();
        eventually(TIMEOUT, || {
            let mut command = Command::new(bin_dir.join("ferrule"));
            command.args(["repair", "--yes", "--container", VICTIM.0, "--init", &self.init.id().to_string()]);
            let output =
                self.timed(what, |_| self.node.exec(command.arg("--bin-dir").arg(&bin_dir)).unwrap());
            said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            // Containers of other tests have the same ID.
            !said.contains("works for it")
        });
        assert!(said.contains(" repaired, ") && said.contains(" 0 skipped, "), "{what}: {said}");
        drop(process);
    }

    /// The address is free again, and a pod that has it works.
    fn next_pod_gets(&self, ips: &[String], what: &str) {
        let next = self.node.pod("next").unwrap();
        assert_eq!(self.add(&next), ips, "{what}");
        let attachment = attachment(&next, VICTIM.1);
        self.runtime().check(&self.network, &attachment).unwrap_or_else(|error| panic!("{what}: {error}"));
        self.runtime().del(&self.network, &attachment).unwrap_or_else(|error| panic!("{what}: {error}"));
        next.delete().unwrap();
        self.assert_as_before(what);
    }

    /// Runs one operation within [`LIMIT`].
    fn timed<T>(&self, what: &str, operation: impl FnOnce(&NodeRuntime<'_>) -> T) -> T {
        let began = Instant::now();
        let outcome = operation(&self.runtime());
        assert!(began.elapsed() < LIMIT, "{what}: {:?}", began.elapsed());
        outcome
    }
}

fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("infinity");
    command
}

/// That of a pod of Kubernetes, which `policy` isolates, since no file on the node says that it need not.
pub(crate) fn attachment(pod: &Pod, host_port: u16) -> Attachment {
    let ports = json!([{"hostPort": host_port, "containerPort": 80, "protocol": "tcp"}]);
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME={}", pod.name());
    pod.attachment("eth0").with_args(args).with_capability("portMappings", ports)
}

/// The subject's chain, with more keys for the main plugin.
fn network(subject: &Subject, keys: &Value) -> Network {
    let range = |subnet, base: &str| json!([{"subnet": subnet, "rangeStart": format!("{base}2"), "rangeEnd": format!("{base}3")}]);
    let ipam = json!({"type": "host-local", "ranges": [range("10.1.2.0/24", "10.1.2."), range("fd00:1::/64", "fd00:1::")]});
    let main = overlay(&json!({"type": subject.plugin, "ipam": ipam}), &overlay(&subject.keys, keys));
    let mut plugins = vec![main];
    plugins.extend(subject.chained.as_array().unwrap().clone());
    Network::from_value(&json!({"name": "hostile", "cniVersion": "1.1.0", "plugins": plugins})).unwrap()
}
