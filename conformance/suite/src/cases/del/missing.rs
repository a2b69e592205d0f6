//! DEL when parts of the attachment are gone or never existed.

use serde_json::Value;

use super::super::tools::node_in_use;
use crate::call::Call;
use crate::outcome::{Stop, TestResult};
use crate::test_context::{Target, TestContext};
use cni_lab::Place as _;

/// Parts of an attachment that can be missing at DEL.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    Nothing,
    /// CNI_NETNS is empty.
    Netns,
    /// The namespace and the file at its path.
    Namespace,
    /// The namespace; its path is an ordinary file, as after a reboot.
    Mount,
    Interface,
}

impl Gone {
    fn makes(self, target: &Target) -> Result<(), Stop> {
        match self {
            Gone::Nothing | Gone::Netns => {}
            Gone::Namespace => target.pod.delete()?,
            Gone::Mount => target.pod.unmount_only()?,
            // Without ADD the interface may not exist.
            Gone::Interface => {
                target
                    .pod
                    .sh(&format!("! [ -e /proc/sys/net/ipv4/conf/{0} ] || ip link del {0}", target.ifname))?;
            }
        }
        Ok(())
    }

    /// Deletes the namespace if it still exists, as a runtime does after DEL.
    fn ends(self, target: &Target) -> Result<(), Stop> {
        if !matches!(self, Gone::Namespace | Gone::Mount) {
            target.pod.delete()?;
        }
        Ok(())
    }

    fn del<'a>(self, call: Call<'a>) -> Call<'a> {
        if self == Gone::Netns { call.var("CNI_NETNS", "") } else { call }
    }
}

/// DEL with `prevResult`, without it, and with `null`.
const PREVIOUS: [Option<bool>; 3] = [Some(true), None, Some(false)];

/// Calls DEL in each variant of [`PREVIOUS`], after an ADD if `is_added`. Expects nothing left on the node.
fn tried(test: &TestContext<'_>, gone: Gone, is_added: bool) -> TestResult {
    let before = node_in_use(test)?;
    for (number, previous) in PREVIOUS.into_iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        let result = if is_added { Some(test.attached(&target)?) } else { target.previous.clone() };
        gone.makes(&target)?;
        let del = match (previous, &result) {
            (Some(true), result) => test.del(&target, result.as_ref()),
            (None, _) => test.del(&target, None),
            (Some(false), _) => test.del(&target, None).key("prevResult", Value::Null),
        };
        let answer = gone.del(del).run()?;
        answer.silent()?;
        gone.ends(&target)?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

pub(super) fn after_add_not_given(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Netns, true)
}

pub(super) fn after_add_gone(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Namespace, true)
}

pub(super) fn after_add_unmounted(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Mount, true)
}

pub(super) fn after_add_no_interface(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Interface, true)
}

pub(super) fn never_added(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Nothing, false)
}

pub(super) fn never_added_not_given(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Netns, false)
}

pub(super) fn never_added_gone(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Namespace, false)
}

pub(super) fn never_added_unmounted(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Mount, false)
}

pub(super) fn never_added_no_interface(test: &TestContext<'_>) -> TestResult {
    tried(test, Gone::Interface, false)
}

pub(super) fn ipam_called(test: &TestContext<'_>) -> TestResult {
    let states = [Gone::Nothing, Gone::Netns, Gone::Namespace, Gone::Interface];
    for (number, gone) in states.into_iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        let result = test.attached(&target)?;
        gone.makes(&target)?;
        let calls = test.ipam()?.verbs()?.len();
        let answer = gone.del(test.del(&target, Some(&result))).run()?;
        let verbs = test.ipam()?.verbs()?;
        let verbs = verbs.get(calls..).unwrap_or_default();
        let expected = format!("a call of the IPAM plugin's DEL ({gone:?} gone)");
        answer.ensure(verbs.iter().any(|verb| verb == "DEL"), expected, format!("its calls: {verbs:?}"))?;
    }
    Ok(())
}
