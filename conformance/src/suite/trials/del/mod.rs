//! DEL: removes an attachment, whatever there still is of it.

mod broken;
mod missing;

use super::tools::node_in_use;
use crate::fixture::Place as _;
use crate::suite::call::Refusal;
use crate::suite::lab::Lab;
use crate::suite::outcome::{Stop, Trialled, skip};
use crate::suite::stub::Reply;
use crate::suite::subject::{PLUGINS, Role, STATEFUL};
use crate::suite::trial::Trial;

/// Plugins that make an interface.
const MAKERS: &[Role] = &[Role::Interface];
/// Plugins that work on links and may use helper programs for it.
const WORKERS: &[Role] = &[Role::Interface, Role::Chained];
/// Plugins with keys that removing does not need; they are in `broken`.
const SPOILT: &[&str] = &["bridge", "ptp", "macvlan", "host-local", "static", "portmap", "bandwidth"];

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("DEL-01", "nothing-is-left", STATEFUL, nothing_left).each_version(),
    Trial::new("DEL-01", "lo-is-down-again", &[Role::Loopback], lo_is_down).each_version(),
    Trial::new("DEL-01", "an-attachment-can-be-made-again", PLUGINS, again),
    Trial::new("DEL-02", "three-times", PLUGINS, repeated).each_version(),
    Trial::new("DEL-03", "netns-not-given", PLUGINS, missing::after_add_not_given),
    Trial::new("DEL-03", "namespace-gone", PLUGINS, missing::after_add_gone),
    Trial::new("DEL-03", "namespace-unmounted", PLUGINS, missing::after_add_unmounted),
    Trial::new("DEL-03", "interface-gone", WORKERS, missing::after_add_no_interface),
    Trial::new("DEL-03", "never-added-and-namespace-unmounted", PLUGINS, missing::never_added_unmounted),
    Trial::new("DEL-03", "never-added-and-interface-gone", WORKERS, missing::never_added_no_interface),
    Trial::new("DEL-04", "prev-result-absent-or-null", PLUGINS, without_previous).each_version(),
    Trial::new("DEL-05", "ipam-is-called-whatever-is-gone", MAKERS, missing::ipam_called).delegating(),
    Trial::new("DEL-06", "the-ipam-plugin-fails", MAKERS, ipam_fails).delegating().each_version(),
    Trial::new("DEL-07", "nothing-but-the-namespace", PLUGINS, missing::never_added).each_version(),
    Trial::new("DEL-07", "netns-not-given", PLUGINS, missing::never_added_not_given),
    Trial::new("DEL-07", "namespace-gone", PLUGINS, missing::never_added_gone),
    Trial::new("DEL-08", "unknown-cni-args", STATEFUL, broken::unknown_args),
    Trial::new("DEL-08", "values-in-cni-args-that-are-not-valid", STATEFUL, broken::bad_args),
    Trial::new("DEL-08", "cni-args-that-are-no-pairs", STATEFUL, broken::no_args),
    Trial::new("DEL-08", "prev-result-is-damaged", STATEFUL, broken::previous),
    Trial::new("DEL-08", "runtime-config-is-damaged", STATEFUL, broken::runtime_config),
    Trial::new("DEL-08", "a-key-of-its-own-is-not-valid", STATEFUL, broken::own_key).only(SPOILT),
    Trial::new("DEL-09", "the-ipam-plugin-fails", MAKERS, words_of_ipam_failure).delegating(),
    Trial::new("DEL-09", "the-ipam-plugin-is-missing", MAKERS, words_of_missing_ipam).delegating(),
    Trial::new("DEL-09", "helper-programs-are-missing", WORKERS, words_without_helpers),
];

fn nothing_left(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    let (node, pod) = (lab.snapshot()?, lab.snapshot_of(&target.pod)?);
    let result = lab.attached(&target)?;
    let answer = lab.del(&target, Some(&result)).run()?;
    answer.silent()?;
    lab.unchanged_since(&node, &answer)?;
    let changes = pod.diff(&lab.snapshot_of(&target.pod)?);
    answer.ensure(changes.is_empty(), "a namespace as it was before", changes)?;
    target.pod.delete()?;
    lab.unchanged_since(&before, &answer)
}

/// The kernel gives `lo` its addresses when it comes up, and leaves them to it.
fn lo_is_down(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    let answer = lab.detached(&target, &result)?;
    let shown = target.pod.sh("ip -o link show lo")?;
    answer.ensure(!shown.contains(",UP"), "lo is down as before", shown)
}

fn again(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    for _ in 0..3 {
        let result = lab.attached(&target)?;
        lab.detached(&target, &result)?;
    }
    Ok(())
}

fn repeated(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    for _ in 0..3 {
        lab.del(&target, Some(&result)).run()?.silent()?;
    }
    target.pod.delete()?;
    let answer = lab.del(&target, Some(&result)).run()?;
    answer.silent()?;
    lab.unchanged_since(&before, &answer)
}

fn without_previous(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    for (container, is_null) in [("pod1", false), ("pod2", true)] {
        let target = lab.target(container)?;
        lab.attached(&target)?;
        let del = lab.del(&target, None);
        let answer = if is_null { del.key("prevResult", ()) } else { del }.run()?;
        answer.silent()?;
        target.pod.delete()?;
        lab.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

/// A DEL whose delegate cannot do its part.
fn failing_ipam(lab: &Lab<'_>, msg: &'static str) -> Result<Refusal, Stop> {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    lab.ipam()?.on("DEL", Reply::Error { code: 11, msg, status: 1 })?;
    lab.del(&target, Some(&result)).run()?.refused()
}

fn ipam_fails(lab: &Lab<'_>) -> Trialled {
    let msg = "the address cannot be released";
    failing_ipam(lab, msg)?.mentions(msg)?;
    Ok(())
}

/// Words that go-cni takes for success.
const TAKEN_FOR_SUCCESS: [&str; 2] = ["not found", "no such file or directory"];

fn is_no_success(refusal: &Refusal) -> Trialled {
    let text = refusal.text();
    let is_taken = TAKEN_FOR_SUCCESS.iter().any(|words| text.contains(words));
    refusal.answer.ensure(!is_taken, "an error that callers do not take for success", text)
}

fn words_of_ipam_failure(lab: &Lab<'_>) -> Trialled {
    is_no_success(&failing_ipam(lab, "the address cannot be released")?)
}

fn words_of_missing_ipam(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    // The folder of the stubs is not searched any more.
    let del = lab.del(&target, Some(&result)).var("CNI_PATH", lab.subject.dir.to_string_lossy());
    is_no_success(&del.run()?.refused()?)
}

fn words_without_helpers(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    let answer = lab.del(&target, Some(&result)).var("PATH", "/nonexistent").run()?;
    if answer.output.success() {
        return skip("DEL succeeds without helper programs");
    }
    is_no_success(&answer.refused()?)
}
