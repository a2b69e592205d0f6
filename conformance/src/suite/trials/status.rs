//! STATUS: whether a plugin is ready to serve ADD.

use std::time::Duration;

use super::tools::node_in_use;
use crate::fixture::Place as _;
use crate::suite::call::{Call, Refusal};
use crate::suite::lab::Lab;
use crate::suite::outcome::{Stop, Trialled, skip};
use crate::suite::stub::Reply;
use crate::suite::subject::{PLUGINS, Role, STATEFUL};
use crate::suite::trial::Trial;

/// Plugins that make an interface.
const MAKERS: &[Role] = &[Role::Interface];
const IPAM: &[Role] = &[Role::Ipam];
/// Not ready for ADD, and containers besides may be cut off.
const NOT_READY: &[u64] = &[50, 51];
/// CRI-O asks every half second until a node is ready.
const QUICK: Duration = Duration::from_secs(2);

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("STA-01", "a-plugin-in-good-order-is-ready", PLUGINS, ready),
    Trial::new("STA-01", "ready-while-in-use", PLUGINS, ready_in_use),
    Trial::new("STA-01", "the-ipam-plugin-is-missing", MAKERS, delegate_missing).delegating(),
    Trial::new("STA-01", "no-folder-for-its-state", IPAM, no_folder).only(&["host-local"]),
    Trial::new("STA-02", "the-ipam-plugin-is-missing", MAKERS, delegate_missing_code).delegating(),
    Trial::new("STA-02", "no-folder-for-its-state", IPAM, no_folder_code).only(&["host-local"]),
    Trial::new("STA-05", "the-ipam-plugin-is-asked", MAKERS, delegated).delegating(),
    Trial::new("STA-05", "the-ipam-plugin-is-not-ready", MAKERS, delegate_not_ready).delegating(),
    Trial::new("STA-05", "the-ipam-plugin-dies", MAKERS, delegate_dies).delegating(),
    Trial::new("STA-06", "an-add-works-although-status-was-never-asked", STATEFUL, never_asked),
    Trial::new("STA-06", "everything-works-although-status-has-failed", MAKERS, works_anyway).delegating(),
    Trial::new("STA-07", "nothing-is-changed", PLUGINS, harmless),
    Trial::new("STA-07", "quick", PLUGINS, quick),
];

fn ready(lab: &Lab<'_>) -> Trialled {
    lab.call("STATUS").run()?.silent()
}

fn never_asked(lab: &Lab<'_>) -> Trialled {
    lab.attached(&lab.target("pod1")?)?;
    Ok(())
}

fn harmless(lab: &Lab<'_>) -> Trialled {
    let before = lab.snapshot()?;
    let answer = lab.call("STATUS").run()?;
    answer.ok()?;
    let diff = before.diff(&lab.snapshot()?);
    answer.ensure(diff.is_empty(), "an unchanged node", diff)
}

fn ready_in_use(lab: &Lab<'_>) -> Trialled {
    node_in_use(lab)?;
    lab.call("STATUS").run()?.silent()
}

/// With the folder of the stubs not searched.
fn without_delegate<'a>(lab: &'a Lab<'_>) -> Call<'a> {
    lab.call("STATUS").var("CNI_PATH", lab.subject.dir.to_string_lossy())
}

fn delegate_missing(lab: &Lab<'_>) -> Trialled {
    without_delegate(lab).run()?.refused()?;
    Ok(())
}

fn delegate_missing_code(lab: &Lab<'_>) -> Trialled {
    without_delegate(lab).run()?.refused()?.code_in(NOT_READY)?;
    Ok(())
}

/// What should be a folder is a file, so no ADD can succeed.
fn without_folder(lab: &Lab<'_>) -> Result<Refusal, Stop> {
    lab.node()?.sh("mkdir -p /var/lib/cni && rm -rf /var/lib/cni/networks && touch /var/lib/cni/networks")?;
    let target = lab.target("pod1")?;
    if lab.add(&target).run()?.output.success() {
        return skip("ADD works without it");
    }
    lab.call("STATUS").run()?.refused()
}

fn no_folder(lab: &Lab<'_>) -> Trialled {
    without_folder(lab).map(drop)
}

fn no_folder_code(lab: &Lab<'_>) -> Trialled {
    without_folder(lab)?.code_in(NOT_READY)?;
    Ok(())
}

fn delegated(lab: &Lab<'_>) -> Trialled {
    let answer = lab.call("STATUS").run()?;
    answer.silent()?;
    let verbs = lab.ipam()?.verbs()?;
    answer.ensure(verbs.iter().any(|verb| verb == "STATUS"), "the IPAM plugin's STATUS", verbs.join(", "))
}

fn delegate_not_ready(lab: &Lab<'_>) -> Trialled {
    let msg = "no addresses today";
    for code in NOT_READY {
        lab.ipam()?.on("STATUS", Reply::Error { code: *code, msg, status: 1 })?;
        lab.call("STATUS").run()?.refused()?.code_in(&[*code])?.mentions(msg)?;
    }
    Ok(())
}

fn delegate_dies(lab: &Lab<'_>) -> Trialled {
    lab.ipam()?.on("STATUS", Reply::Crash)?;
    lab.call("STATUS").run()?.refused()?;
    Ok(())
}

fn works_anyway(lab: &Lab<'_>) -> Trialled {
    lab.ipam()?.on("STATUS", Reply::Error { code: 50, msg: "not ready", status: 1 })?;
    lab.call("STATUS").run()?.refused()?;
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    lab.call("STATUS").run()?.refused()?;
    lab.check(&target, &result).run()?.silent()?;
    lab.detached(&target, &result)?;
    lab.call("GC").key("cni.dev/valid-attachments", Vec::<String>::new()).run()?.silent()
}

fn quick(lab: &Lab<'_>) -> Trialled {
    node_in_use(lab)?;
    let answer = lab.call("STATUS").run()?;
    answer.ok()?;
    let wall = answer.output.wall;
    answer.ensure(wall < QUICK, format!("an end within {QUICK:?}"), format!("{wall:?}"))
}
