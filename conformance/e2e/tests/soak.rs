//! Random ADD, CHECK, DEL and GC of many networks on one node, eight at a time. Some are killed, some are calls of the
//! reference's programs, some DELs come after the end of the namespace. No address is in use twice, every call that is not
//! killed succeeds, and in the end nothing is left. `FERRULE_SOAK` is the number of operations of each test.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::BTreeMap;
use std::sync::{Mutex, RwLock};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::link_plugin::uplink_of;
use cni_lab::testing::{Random, ips_of, overlay};
use cni_lab::{Node, NodeRuntime, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Error, Network, ValidAttachment};
use serde_json::{Value, json};

#[path = "common/combinations.rs"]
mod combinations;

use combinations::Combinations;

/// Operations of one test in CI.
const OPERATIONS: usize = 400;
const WORKERS: usize = 8;
/// A killed call is killed before this.
const KILLED_BEFORE: Duration = Duration::from_millis(15);
/// Without GC, which only 1.1.0 has: the reference's programs are those of Debian 12.
const VERSION: &str = "1.0.0";

/// A chain of plugins, as a network of its own.
struct Subject {
    name: &'static str,
    plugins: Vec<Value>,
    /// The plugins, if the reference's programs may take the place of any of them at any call.
    mixed: Option<Combinations>,
    /// The main plugin's keys for each worker.
    own: fn(usize) -> Value,
    /// Whether ADD makes the interface. Otherwise it is a device of the node, which would end with the namespace.
    is_made: bool,
}

impl Subject {
    /// The `number`th network of the node: the number is part of its addresses. `main` gets host-local, unless it has IPAM.
    fn new(number: usize, name: &'static str, main: &Value, chained: &[Value]) -> Subject {
        let range = |subnet: String| json!([{ "subnet": subnet }]);
        let ranges = json!([range(format!("10.1.{number}.0/27")), range(format!("fd00:{number}::/112"))]);
        let main = overlay(&json!({"ipam": {"type": "host-local", "ranges": ranges}}), main);
        let plugins = [&[main], chained].concat();
        Subject { name, plugins, mixed: None, own: |_| json!({}), is_made: true }
    }

    fn mixed(self, plugins: &[&str]) -> Subject {
        Subject { mixed: Some(Combinations::new(plugins)), ..self }
    }

    fn network(&self, version: &str, worker: usize) -> Network {
        let mut plugins = self.plugins.clone();
        plugins[0] = overlay(&plugins[0], &(self.own)(worker));
        Network::from_value(&json!({"name": self.name, "cniVersion": version, "plugins": plugins})).unwrap()
    }
}

/// What a worker knows of an attachment.
enum State {
    /// It does not exist.
    Free,
    /// A call was killed. Only DEL may follow.
    Unknown,
    /// ADD has succeeded, with these addresses.
    Attached(Vec<String>),
}

/// One pod on one network. Only one worker uses it.
struct Slot<'s> {
    soak: &'s Soak,
    subject: &'s Subject,
    network: Network,
    attachment: Attachment,
    name: String,
    /// `None` after the end of its namespace.
    pod: Option<Pod>,
    state: State,
}

/// Operations, for the closing line.
#[derive(Debug, Default)]
struct Counts {
    operations: BTreeMap<&'static str, usize>,
    killed: usize,
    /// The time of each successful ADD by our programs.
    adds: Vec<Duration>,
}

/// The node and what all workers share.
struct Soak {
    node: Node,
    /// GC wants that no other call runs: it would remove what an ADD has not finished.
    calls: RwLock<()>,
    /// The addresses of all pods, and who has them.
    held: Mutex<BTreeMap<String, String>>,
    counts: Mutex<Counts>,
}

impl<'s> Slot<'s> {
    fn new(soak: &'s Soak, subject: &'s Subject, worker: usize) -> Slot<'s> {
        let name = format!("{}-{worker}", subject.name);
        let pod = soak.node.pod(&name).unwrap();
        let ports = json!([{"hostPort": 8080 + worker, "containerPort": 80, "protocol": "tcp"}]);
        let ifname = if subject.name == "loopback" { "lo" } else { "eth0" };
        let attachment = pod.attachment(ifname).with_capability("portMappings", ports);
        let network = subject.network(VERSION, worker);
        Slot { soak, subject, network, attachment, name, pod: Some(pod), state: State::Free }
    }

    /// The next operation.
    fn step(&mut self, random: &mut Random) {
        let kill = (random.below(4) == 0).then(|| KILLED_BEFORE.mul_f64(random.below(1000) as f64 / 1000.0));
        match self.state {
            State::Free => self.add(kill, random),
            State::Attached(_) if random.below(3) == 0 => self.check(random),
            State::Attached(_) | State::Unknown => {
                if random.below(4) == 0 && self.subject.is_made {
                    self.pod.take().map_or(Ok(()), |pod| pod.delete()).unwrap();
                }
                self.del(kill, random);
            }
        }
    }

    fn add(&mut self, kill: Option<Duration>, random: &mut Random) {
        if self.pod.is_none() {
            self.pod = Some(self.soak.node.pod(&self.name).unwrap());
        }
        let began = Instant::now();
        let (is_ours, added) = self.call("ADD", kill, random, |runtime, slot| {
            let ips = ips_of(&runtime.add(&slot.network, &slot.attachment)?);
            slot.hold(&ips);
            Ok(ips)
        });
        let Some(ips) = added else {
            self.state = State::Unknown;
            return;
        };
        if is_ours {
            self.soak.counts.lock().unwrap().adds.push(began.elapsed());
        }
        self.state = State::Attached(ips);
    }

    /// Notes the addresses, before GC can come.
    fn hold(&self, ips: &[String]) {
        let mut held = self.soak.held.lock().unwrap();
        for ip in ips.iter().filter(|_| self.subject.name != "loopback") {
            let other = held.insert(ip.clone(), self.name.clone());
            assert_eq!(other, None, "{ip} of {} is in use", self.name);
        }
    }

    fn check(&self, random: &mut Random) {
        // The reference's CHECK misses in the main table what sbr has moved.
        let only_ours = self.subject.plugins.iter().any(|plugin| plugin["type"] == "sbr");
        self.call("CHECK", only_ours.then_some(TIMEOUT), random, |runtime, slot| {
            runtime.check(&slot.network, &slot.attachment)
        });
    }

    fn del(&mut self, kill: Option<Duration>, random: &mut Random) {
        if let State::Attached(ips) = &self.state {
            let mut held = self.soak.held.lock().unwrap();
            ips.iter().for_each(|ip| drop(held.remove(ip)));
        }
        // The reference leaves things behind after a killed call, and after the end of a namespace.
        let is_plain = self.pod.is_some() && matches!(self.state, State::Attached(_));
        let limit = kill.or((!is_plain).then_some(TIMEOUT));
        let (_, ended) =
            self.call("DEL", limit, random, |runtime, slot| runtime.del(&slot.network, &slot.attachment));
        self.state = if ended.is_some() { State::Free } else { State::Unknown };
    }

    /// Makes a call, with this time limit by our programs, else by any. Returns whether only ours were called, and the call's
    /// success; `None` if it was killed.
    fn call<T>(
        &self,
        verb: &'static str,
        limit: Option<Duration>,
        random: &mut Random,
        call: impl FnOnce(&NodeRuntime<'_>, &Slot<'_>) -> Result<T, Error>,
    ) -> (bool, Option<T>) {
        let soak = self.soak;
        let (who, mut runtime) = match (&self.subject.mixed, limit) {
            (Some(mixed), None) => {
                let (_, who, runtime) = mixed.pick(&soak.node, random);
                (who, runtime)
            }
            _ => ("", soak.ours()),
        };
        if limit.is_some() {
            runtime.runtime.timeout = limit;
        }
        let outcome = {
            let _together = soak.calls.read().unwrap();
            call(&runtime, self)
        };
        (who.is_empty(), soak.judge(verb, limit, outcome, &format!("{} {who}", self.name)))
    }
}

impl Soak {
    fn new(prepare: impl FnOnce(&Node)) -> Soak {
        let node = Node::new().unwrap();
        prepare(&node);
        Soak { node, calls: RwLock::default(), held: Mutex::default(), counts: Mutex::default() }
    }

    fn ours(&self) -> NodeRuntime<'_> {
        self.node.runtime([bin_dir().unwrap()])
    }

    /// Counts an operation. An error is accepted only if the call was killed at its limit.
    fn judge<T>(
        &self,
        verb: &'static str,
        limit: Option<Duration>,
        outcome: Result<T, Error>,
        who: &str,
    ) -> Option<T> {
        let mut counts = self.counts.lock().unwrap();
        *counts.operations.entry(verb).or_default() += 1;
        match outcome {
            Ok(value) => Some(value),
            Err(error) => {
                let was_killed = limit.is_some_and(|limit| limit < TIMEOUT)
                    && error.to_string().contains("at the time limit");
                assert!(was_killed, "{verb} of {who}: {error}");
                counts.killed += 1;
                None
            }
        }
    }

    /// GC of a network, in which these workers have a pod.
    fn gc(&self, subject: &Subject, worker: usize, random: &mut Random) {
        let _alone = self.calls.write().unwrap();
        let attached: Vec<String> = self.held.lock().unwrap().values().cloned().collect();
        let valid: Vec<_> = attached.iter().map(|name| ValidAttachment::new(name, "eth0")).collect();
        let mut runtime = self.ours();
        let limit = (random.below(3) == 0).then_some(KILLED_BEFORE);
        runtime.runtime.timeout = limit.or(Some(TIMEOUT));
        let ended = runtime.gc(&subject.network("1.1.0", worker), Some(&valid));
        self.judge("GC", limit, ended, subject.name);
    }

    fn look(&self) -> Snapshot {
        let snapshot = Snapshot::take(&self.node).unwrap();
        snapshot.ignoring(&["last_reserved_ip", "/var/lib/cni/results/ "])
    }

    /// After GC, because the reference's DEL leaves our index of host-local.
    fn look_after_gc(&self, subjects: &[Subject]) -> Snapshot {
        for subject in subjects {
            self.ours().gc(&subject.network("1.1.0", 0), Some(&[])).unwrap();
        }
        self.look()
    }

    /// Runs all operations and detaches the attached pods.
    fn run(&self, subjects: &[Subject]) {
        let mut random = Random::seeded();
        // The first attachments by each program make what all share.
        for subject in subjects {
            let Slot { network, attachment, pod, .. } = Slot::new(self, subject, 0);
            for runtime in subject.mixed.as_ref().map_or(vec![self.ours()], |mixed| mixed.all(&self.node)) {
                runtime.add(&network, &attachment).unwrap();
                self.ours().del(&network, &attachment).unwrap();
            }
            pod.unwrap().delete().unwrap();
        }
        let before = self.look_after_gc(subjects);

        let operations: usize =
            std::env::var("FERRULE_SOAK").map_or(OPERATIONS, |number| number.parse().unwrap());
        thread::scope(|scope| {
            for worker in 0..WORKERS {
                let mut random = random.split();
                scope.spawn(move || self.work(subjects, worker, operations / WORKERS, &mut random));
            }
        });

        assert_eq!(*self.held.lock().unwrap(), BTreeMap::new());
        self.look_after_gc(subjects);
        // The kernel removes some objects after the call that asked for it.
        eventually(TIMEOUT, || before.diff(&self.look()).is_empty());
        assert_eq!(before.diff(&self.look()), "");
        let counts = self.counts.lock().unwrap();
        let mean = |adds: &[Duration]| adds.iter().sum::<Duration>() / adds.len().max(1) as u32;
        let (first, last) = counts.adds.split_at(counts.adds.len() / 2);
        println!(
            "{:?}, {} killed; mean ADD {:?}, then {:?}",
            counts.operations,
            counts.killed,
            mean(first),
            mean(last)
        );
        assert!(counts.killed > 0, "no call was killed");
    }

    fn work(&self, subjects: &[Subject], worker: usize, operations: usize, random: &mut Random) {
        let mut slots: Vec<Slot<'_>> =
            subjects.iter().map(|subject| Slot::new(self, subject, worker)).collect();
        for _ in 0..operations {
            let chosen = random.below(slots.len());
            if random.below(20) == 0 && subjects[chosen].name != "loopback" {
                self.gc(&subjects[chosen], worker, random);
            } else {
                slots[chosen].step(random);
            }
        }
        for mut slot in slots {
            if !matches!(slot.state, State::Free) {
                slot.del(None, random);
            }
            slot.pod.map_or(Ok(()), |pod| pod.delete()).unwrap();
        }
    }
}

#[test]
fn plugins_of_every_kernel() {
    let bridge = |name| json!({"type": "bridge", "bridge": name, "isDefaultGateway": true});
    let full = [
        json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "77"}}),
        json!({"type": "portmap", "capabilities": {"portMappings": true}}),
        json!({"type": "bandwidth", "ingressRate": 100_000_000, "ingressBurst": 10_000_000,
            "egressRate": 100_000_000, "egressBurst": 10_000_000}),
        json!({"type": "firewall", "backend": "nftables"}),
    ];
    let tuning = json!({"type": "tuning", "mtu": 1400, "promisc": true});
    let host_device = Subject::new(7, "host-device", &json!({"type": "host-device", "dad": "off"}), &[]);
    let subjects = [
        Subject::new(1, "full", &overlay(&bridge("cni1"), &json!({"ipMasq": true})), &full),
        Subject::new(2, "bridge", &bridge("cni2"), std::slice::from_ref(&tuning)).mixed(&[
            "bridge",
            "host-local",
            "tuning",
        ]),
        Subject::new(3, "ptp", &json!({"type": "ptp", "ipMasq": true, "ipMasqBackend": "iptables"}), &[])
            .mixed(&["ptp", "host-local"]),
        Subject::new(
            4,
            "macvlan",
            &json!({"type": "macvlan", "master": "uplink0", "dad": "off"}),
            &[json!({"type": "sbr"})],
        ),
        Subject::new(5, "tap", &json!({"type": "tap"}), &[tuning]),
        Subject { own: |worker| json!({"device": format!("nic{worker}")}), is_made: false, ..host_device },
        Subject {
            plugins: vec![json!({"type": "loopback"})],
            ..Subject::new(0, "loopback", &json!({}), &[])
        }
        .mixed(&["loopback"]),
    ];
    let soak = Soak::new(|node| {
        uplink_of(node);
        let pairs = (0..WORKERS)
            .map(|n| format!("ip link add nic{n} type veth peer name peer{n} && ip link set peer{n} up; "));
        node.sh(&pairs.collect::<String>()).unwrap();
    });
    soak.run(&subjects);
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn plugins_of_the_stock_kernel() {
    let vlan = Subject::new(2, "vlan", &json!({"type": "vlan", "master": "uplink0", "dad": "off"}), &[]);
    let subjects = [
        Subject::new(1, "ipvlan", &json!({"type": "ipvlan", "master": "uplink0"}), &[])
            .mixed(&["ipvlan", "host-local"]),
        Subject { own: |worker| json!({"vlanId": worker + 2}), ..vlan },
        Subject::new(
            3,
            "dummy",
            &json!({"type": "dummy", "dad": "off"}),
            &[json!({"type": "vrf", "vrfname": "blue"})],
        ),
    ];
    Soak::new(|node| drop(uplink_of(node))).run(&subjects);
}
