//! The cases of the comparison. A new plugin needs a function for its configuration and an entry in [`all`].

use std::path::{Path, PathBuf};
use std::slice;
use std::time::Duration;

use serde_json::{Value, json};

use crate::side::Side;

/// Includes VERSION, which does nothing else than start the program.
const ALL: &[&str] = &["VERSION", "ADD", "CHECK", "DEL"];
const VERBS: &[&str] = &["ADD", "CHECK", "DEL"];
const WITHOUT_CHECK: &[&str] = &["ADD", "DEL"];

/// See [`Case::life`].
const LIFE: Duration = Duration::from_millis(150);

/// One plugin of a case.
#[derive(Clone, Copy)]
pub(crate) struct Step {
    /// The program. An IPAM plugin gets its delegator's configuration, so this is not always the
    /// configuration's `type`.
    pub(crate) program: &'static str,
    /// Its object in the list of plugins.
    pub(crate) config: fn(&Side) -> Value,
    /// Whether its calls are measured; if not, they only prepare the measured ones.
    pub(crate) measured: bool,
    /// Whether CHECK calls it. If not, neither side's CHECK does.
    pub(crate) checks: bool,
}

/// A list of plugins that is called with each of the verbs.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) steps: Vec<Step>,
    /// Programs that the plugins call.
    delegates: &'static [&'static str],
    pub(crate) verbs: &'static [&'static str],
    /// How many reservations host-local's store already has.
    pub(crate) reservations: u32,
    /// How many host ports of other containers portmap already has.
    pub(crate) host_ports: u16,
    /// A shell command that prepares the node.
    pub(crate) node: &'static str,
    /// Whether the pod's `lo` is up, as after ADD of the loopback plugin.
    pub(crate) lo_is_up: bool,
    /// How long the pods live before each DEL. An ADD leaves work to the kernel (RCU callbacks), and DEL would
    /// wait for it. Pods live for seconds at least.
    pub(crate) life: Duration,
    /// Whether to measure in the same rounds how long the kernel takes to remove such a veth pair.
    pub(crate) beside_kernel: bool,
}

impl Case {
    fn new(name: impl Into<String>, steps: Vec<Step>) -> Case {
        Case {
            name: name.into(),
            steps,
            delegates: &[],
            verbs: VERBS,
            reservations: 0,
            host_ports: 0,
            node: "true",
            lo_is_up: true,
            life: Duration::ZERO,
            beside_kernel: false,
        }
    }

    /// The first program that one of the sides does not have.
    pub(crate) fn missing(&self, sides: &[Side]) -> Option<PathBuf> {
        let programs = || self.steps.iter().map(|step| step.program).chain(self.delegates.iter().copied());
        let mut files = sides.iter().flat_map(|side| programs().map(|program| side.dir.join(program)));
        files.find(|file| !file.is_file())
    }
}

const fn measured(program: &'static str, config: fn(&Side) -> Value) -> Step {
    Step { program, config, measured: true, checks: true }
}

const fn unmeasured(program: &'static str, config: fn(&Side) -> Value) -> Step {
    Step { program, config, measured: false, checks: true }
}

/// Without CHECK: the reference's CHECK, in 1.1.1, fails for a pod without an IPv6 address, because it
/// expects an IPv6 chain that its ADD has not made.
const PORTMAP: Step = Step { checks: false, ..measured("portmap", portmap) };

/// All cases.
pub(crate) fn all(sides: &[Side]) -> Vec<Case> {
    let bridged =
        |name: &str, steps| Case { delegates: &["host-local"], life: LIFE, ..Case::new(name, steps) };
    let mut cases = vec![Case {
        verbs: ALL,
        lo_is_up: false,
        ..Case::new("loopback", vec![measured("loopback", loopback)])
    }];
    for (position, (reservations, shown)) in
        [(10, "10"), (2_000, "2,000"), (20_000, "20,000")].into_iter().enumerate()
    {
        let name = format!("host-local, {shown} reservations");
        let verbs = if position == 0 { ALL } else { VERBS };
        cases.push(Case { verbs, reservations, ..Case::new(name, vec![measured("host-local", host_local)]) });
    }
    cases.extend([
        Case {
            verbs: ALL,
            beside_kernel: true,
            ..bridged("bridge + host-local", vec![measured("bridge", bridge)])
        },
        bridged(
            "bridge + host-local, ipMasq (Go: by iptables)",
            vec![measured("bridge", masquerading_bridge)],
        ),
        Case {
            verbs: WITHOUT_CHECK,
            ..bridged("portmap", vec![unmeasured("bridge", masquerading_bridge), PORTMAP])
        },
        Case {
            verbs: WITHOUT_CHECK,
            host_ports: 1000,
            ..bridged(
                "portmap, 1,000 host ports of others",
                vec![unmeasured("bridge", masquerading_bridge), PORTMAP],
            )
        },
        bridged(
            "bandwidth",
            vec![unmeasured("bridge", masquerading_bridge), measured("bandwidth", bandwidth)],
        ),
        Case {
            node: "iptables -P FORWARD DROP",
            ..bridged(
                "firewall (Go: by iptables)",
                vec![unmeasured("bridge", masquerading_bridge), measured("firewall", firewall)],
            )
        },
        bridged("tuning", vec![unmeasured("bridge", masquerading_bridge), measured("tuning", tuning)]),
        bridged("chain", chain(sides)),
    ]);
    // The name lists the plugins, which depend on what all sides have.
    if let Some(chain) = cases.last_mut() {
        let programs = chain.steps.iter().flat_map(|step| match step.program {
            "bridge" => ["bridge", "host-local"].as_slice(),
            _ => slice::from_ref(&step.program),
        });
        chain.name = format!("chain: {}", programs.copied().collect::<Vec<_>>().join(", "));
    }
    cases
}

/// A usual list: bridge, and portmap and bandwidth if all sides have them.
fn chain(sides: &[Side]) -> Vec<Step> {
    let wanted = [measured("bridge", masquerading_bridge), PORTMAP, measured("bandwidth", bandwidth)];
    let everywhere = |program: &str| sides.iter().all(|side| Path::new(&side.dir).join(program).is_file());
    let optional = wanted.into_iter().skip(1).filter(|step| everywhere(step.program));
    wanted.into_iter().take(1).chain(optional).collect()
}

fn loopback(_: &Side) -> Value {
    json!({"type": "loopback"})
}

fn ipam(side: &Side) -> Value {
    json!({
        "type": "host-local",
        "dataDir": side.data_dir(),
        "ranges": [[{"subnet": format!("{}.0.0/16", side.net16())}]],
        "routes": [{"dst": "0.0.0.0/0"}]})
}

fn host_local(side: &Side) -> Value {
    json!({"type": "bridge", "ipam": ipam(side)})
}

fn bridge(side: &Side) -> Value {
    json!({"type": "bridge", "bridge": side.bridge(), "isGateway": true, "ipam": ipam(side)})
}

fn masquerading_bridge(side: &Side) -> Value {
    json!({"type": "bridge", "bridge": side.bridge(), "isGateway": true, "ipMasq": true, "ipam": ipam(side)})
}

fn portmap(_: &Side) -> Value {
    json!({"type": "portmap", "capabilities": {"portMappings": true}, "snat": true})
}

fn bandwidth(_: &Side) -> Value {
    json!({"type": "bandwidth", "capabilities": {"bandwidth": true}})
}

/// The reference takes the word for the automatic choice, and uses iptables.
fn firewall(_: &Side) -> Value {
    json!({"type": "firewall", "backend": "nftables"})
}

fn tuning(_: &Side) -> Value {
    json!({"type": "tuning", "mtu": 1400, "sysctl": {"net.core.somaxconn": "500"}})
}
