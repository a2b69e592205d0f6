//! What runtimes do with plugins, replayed against a folder's whole chain: bridge and host-local, with loopback,
//! bandwidth and portmap where the folder and the machine have them.

mod caller;
mod cnitool;
mod containerd;
mod crio;
mod nerdctl;
mod networks;
mod podman;
mod recorded;
mod recordings;

use std::time::Duration;

use self::caller::Caller;
use crate::fixture::{Place as _, eventually};
use crate::suite::lab::Lab;
use crate::suite::outcome::{Stop, Trialled, ensure};
use crate::suite::subject::Role;
use crate::suite::trial::Trial;

const CHAIN: &[Role] = &[Role::Chain];

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("CALL-01", "a-pod-under-containerd", CHAIN, |lab| containerd::pod(lab, 1)),
    Trial::new("CALL-02", "a-failed-add-under-containerd", CHAIN, |lab| containerd::failed_add(lab, 1)),
    Trial::new("CALL-03", "containerd-after-a-reboot", CHAIN, |lab| containerd::after_a_reboot(lab, 1)),
    Trial::new("CALL-04", "a-pod-under-crio", CHAIN, |lab| crio::pod(lab, 1)),
    Trial::new("CALL-05", "a-restart-under-nerdctl", CHAIN, |lab| nerdctl::restart(lab, 1)),
    Trial::new("CALL-06", "a-container-under-podman", CHAIN, |lab| podman::container(lab, 1)),
    Trial::new("CALL-07", "two-networks-at-once", CHAIN, |lab| networks::two_at_once(lab, 1)),
    Trial::new("CALL-08", "cnitool-by-hand", CHAIN, |lab| cnitool::by_hand(lab, 1)),
    Trial::new("CALL-09", "calls-of-containerd", CHAIN, recorded::containerd),
    Trial::new("CALL-09", "calls-of-crio", CHAIN, recorded::crio),
    Trial::new("CALL-09", "calls-of-podman", CHAIN, recorded::podman),
    Trial::new("CALL-09", "calls-of-nerdctl", CHAIN, recorded::nerdctl),
    Trial::new("CALL-09", "calls-of-cnitool", CHAIN, recorded::cnitool),
    Trial::new("CALL-10", "a-pod-under-containerd", CHAIN, |lab| quiet(lab, containerd::pod)),
    Trial::new("CALL-10", "a-failed-add-under-containerd", CHAIN, |lab| quiet(lab, containerd::failed_add)),
    Trial::new("CALL-10", "containerd-after-a-reboot", CHAIN, |lab| quiet(lab, containerd::after_a_reboot)),
    Trial::new("CALL-10", "a-pod-under-crio", CHAIN, |lab| quiet(lab, crio::pod)),
    Trial::new("CALL-10", "a-restart-under-nerdctl", CHAIN, |lab| quiet(lab, nerdctl::restart)),
    Trial::new("CALL-10", "a-container-under-podman", CHAIN, |lab| quiet(lab, podman::container)),
    Trial::new("CALL-10", "two-networks-at-once", CHAIN, |lab| quiet(lab, networks::two_at_once)),
    Trial::new("CALL-10", "cnitool-by-hand", CHAIN, |lab| quiet(lab, cnitool::by_hand)),
];

/// Fails if a sequence leaves anything or changes what is another network's. What a network's attachments share, such as
/// the bridge, stays after the first time, so it is the second that is looked at, with another container.
fn quiet(lab: &Lab<'_>, sequence: fn(&Lab<'_>, u8) -> Trialled) -> Trialled {
    let caller = Caller::new(lab)?;
    let network = caller.chain("neighbours", lab.version, caller::bridge("cni-others", "10.99.0.0/24"))?;
    let neighbour = lab.node()?.pod("neighbour")?;
    let ports = serde_json::json!([{"hostPort": 18099, "containerPort": 80, "protocol": "tcp"}]);
    caller.add(&network, &neighbour.attachment("eth0").with_capability("portMappings", ports))?;
    let links = || Ok::<_, Stop>(lab.node()?.sh("ip -o link show type veth | wc -l")?);
    let at_first = links()?;
    sequence(lab, 1)?;
    // A pod's links go some time after its namespace.
    eventually(Duration::from_secs(4), || links().is_ok_and(|now| now == at_first));
    let before = lab.snapshot()?;
    sequence(lab, 2)?;
    let changes = lab.changes_since(&before)?;
    ensure(changes.is_empty(), "a node as it was before", changes)
}
