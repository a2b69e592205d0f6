//! The cases of the comparison. A new plugin needs a function for its configuration and an entry in [`all`] or, if one
//! configuration is enough, in `folder.rs`.

use std::path::Path;
use std::slice;
use std::time::Duration;

use cni_lab::{Node, Place as _};
use serde_json::{Value, json};

use crate::side::Side;

/// Includes VERSION, which does nothing else than start the program.
const ALL: &[&str] = &["VERSION", "ADD", "CHECK", "DEL"];
const VERBS: &[&str] = &["ADD", "CHECK", "DEL"];
pub(crate) const WITHOUT_CHECK: &[&str] = &["ADD", "DEL"];

/// See [`Case::life`].
const LIFE: Duration = Duration::from_millis(150);

/// The file that `policy` reads.
const ISOLATED: &str = "mkdir -p /var/lib/ferrule/policy && \
    printf 'ferrule-policy 1\\nshop both\\nend\\n' >/var/lib/ferrule/policy/isolated";

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
    pub(crate) delegates: &'static [&'static str],
    /// A shell command that prepares the node for one side.
    pub(crate) setup: fn(&Side) -> String,
    /// A type of link, as in `ip link add type`, that the kernel must have.
    pub(crate) kind: Option<&'static str>,
    pub(crate) verbs: &'static [&'static str],
    /// How many reservations host-local's store already has.
    pub(crate) reservations: u32,
    /// How many host ports of other containers portmap already has.
    pub(crate) host_ports: u16,
    /// How many host ports the pod wants.
    pub(crate) own_ports: u16,
    /// How many links of other pods the node already has.
    pub(crate) links: u16,
    /// Whether the pod's `lo` is up, as after ADD of the loopback plugin.
    pub(crate) lo_is_up: bool,
    /// How long the pods live before each DEL. An ADD leaves work to the kernel (RCU callbacks), and DEL would
    /// wait for it. Pods live for seconds at least.
    pub(crate) life: Duration,
    /// Whether to measure in the same rounds how long the kernel takes to remove such a veth pair.
    pub(crate) beside_kernel: bool,
}

impl Case {
    pub(crate) fn new(name: impl Into<String>, steps: Vec<Step>) -> Case {
        Case {
            name: name.into(),
            steps,
            delegates: &[],
            setup: |_| "true".to_owned(),
            kind: None,
            verbs: VERBS,
            reservations: 0,
            host_ports: 0,
            own_ports: 1,
            links: 0,
            lo_is_up: true,
            life: Duration::ZERO,
            beside_kernel: false,
        }
    }

    /// The same with a bridge or another interface that asks host-local for addresses, and pods that live for a while.
    pub(crate) fn with_addresses(name: impl Into<String>, steps: Vec<Step>) -> Case {
        Case { delegates: &["host-local"], life: LIFE, ..Case::new(name, steps) }
    }

    /// What the case needs and does not find: the first program that one of the sides does not have, or the type of
    /// link.
    pub(crate) fn missing(&self, sides: &[Side]) -> anyhow::Result<Option<String>> {
        let programs = || self.steps.iter().map(|step| step.program).chain(self.delegates.iter().copied());
        let mut files = sides.iter().flat_map(|side| programs().map(|program| side.dir.join(program)));
        if let Some(file) = files.find(|file| !file.is_file()) {
            return Ok(Some(format!("no {}", file.display())));
        }
        let Some(kind) = self.kind else { return Ok(None) };
        let more = match kind {
            "vlan" => "id 7",
            "vrf" => "table 77",
            _ => "",
        };
        let probe =
            format!("ip link add parent type veth; ip link add link parent name probe type {kind} {more}");
        let works = Node::new()?.sh(&probe).is_ok();
        Ok((!works).then(|| format!("this kernel has no link type {kind}")))
    }
}

pub(crate) const fn measured(program: &'static str, config: fn(&Side) -> Value) -> Step {
    Step { program, config, measured: true, checks: true }
}

pub(crate) const fn unmeasured(program: &'static str, config: fn(&Side) -> Value) -> Step {
    Step { program, config, measured: false, checks: true }
}

/// Without CHECK: the reference's CHECK, in 1.1.1, fails for a pod without an IPv6 address, because it
/// expects an IPv6 chain that its ADD has not made.
const PORTMAP: Step = Step { checks: false, ..measured("portmap", portmap) };

/// The chains for many pods, without CHECK and without pauses: the usual one, and the same without limits.
pub(crate) fn bursts(sides: &[Side]) -> [Case; 2] {
    let case = |name, steps| Case { delegates: &["host-local"], ..Case::new(name, steps) };
    [
        case("the chain", chain(sides)),
        case("bridge and portmap", vec![measured("bridge", masquerading_bridge), PORTMAP]),
    ]
}

/// Pods with this many host ports, beside other pods with host ports.
pub(crate) fn ports() -> Vec<Case> {
    let counts = [0, 10_000].into_iter().flat_map(|others| [1, 32, 206, 1_000].map(|own| (others, own)));
    let case = |(host_ports, own_ports)| Case {
        verbs: WITHOUT_CHECK,
        host_ports,
        own_ports,
        ..Case::with_addresses(
            format!("bridge + portmap, {own_ports} host ports beside {host_ports}"),
            vec![measured("bridge", bridge), PORTMAP],
        )
    };
    counts.map(case).collect()
}

/// The chain on a node with the state of more and more pods.
pub(crate) fn growth(sides: &[Side]) -> Vec<Case> {
    let case = |pods: u16| Case {
        reservations: pods.into(),
        host_ports: pods,
        links: pods,
        ..Case::with_addresses(format!("chain, the state of {pods} pods"), chain(sides))
    };
    [10, 1_000, 10_000].map(case).into()
}

/// The chain alone.
pub(crate) fn one_chain(sides: &[Side]) -> Case {
    Case::with_addresses("chain", chain(sides))
}

/// A list that ends with `policy`, for [`with_policy`].
pub(crate) fn policy() -> Case {
    let steps = vec![
        measured("ptp", |side| json!({"type": "ptp", "ipam": ipam(side)})),
        measured("bandwidth", bandwidth),
        measured("policy", |_| json!({"type": "policy"})),
    ];
    Case {
        setup: |_| ISOLATED.to_owned(),
        ..Case::with_addresses("ptp, host-local, bandwidth and policy", steps)
    }
}

/// One `chain` with pods that `policy` isolates, beside pods of a namespace without policies, and beside a list without `policy`.
pub(crate) fn with_policy(ours: &Side) -> Vec<Side> {
    let of = |(name, number, label, namespace): (_, _, &str, _)| Side {
        name,
        number,
        label: label.to_owned(),
        namespace,
        ..ours.folded()
    };
    [
        ("shut", 1, "isolated", Some("shop")),
        ("free", 2, "not isolated", Some("open")),
        ("bare", 3, "without policy", None),
    ]
    .map(of)
    .into()
}

/// All cases.
pub(crate) fn all(sides: &[Side]) -> Vec<Case> {
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
            ..Case::with_addresses("bridge + host-local", vec![measured("bridge", bridge)])
        },
        Case::with_addresses(
            "bridge + host-local, ipMasq (Go: by iptables)",
            vec![measured("bridge", masquerading_bridge)],
        ),
        Case {
            verbs: WITHOUT_CHECK,
            ..Case::with_addresses("portmap", vec![unmeasured("bridge", masquerading_bridge), PORTMAP])
        },
        Case {
            verbs: WITHOUT_CHECK,
            host_ports: 1000,
            ..Case::with_addresses(
                "portmap, 1,000 host ports of others",
                vec![unmeasured("bridge", masquerading_bridge), PORTMAP],
            )
        },
        Case::with_addresses(
            "bandwidth",
            vec![unmeasured("bridge", masquerading_bridge), measured("bandwidth", bandwidth)],
        ),
        one_chain(sides),
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

pub(crate) fn ipam(side: &Side) -> Value {
    json!({
        "type": "host-local",
        "dataDir": side.data_dir(),
        "ranges": [[{"subnet": format!("{}.0.0/16", side.net16())}]],
        "routes": [{"dst": "0.0.0.0/0"}]})
}

fn host_local(side: &Side) -> Value {
    json!({"type": "bridge", "ipam": ipam(side)})
}

pub(crate) fn bridge(side: &Side) -> Value {
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
