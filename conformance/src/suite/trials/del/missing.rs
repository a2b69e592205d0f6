//! DEL where parts of what is to be removed are gone, or were never there.

use serde_json::Value;

use super::super::tools::node_in_use;
use crate::fixture::Place as _;
use crate::suite::call::Call;
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled};

/// What is gone when DEL comes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gone {
    Nothing,
    /// The runtime knows no namespace.
    Netns,
    /// The namespace and its path.
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
            // A plugin that was not added has made none.
            Gone::Interface => {
                target
                    .pod
                    .sh(&format!("! [ -e /proc/sys/net/ipv4/conf/{0} ] || ip link del {0}", target.ifname))?;
            }
        }
        Ok(())
    }

    /// Takes the namespace away if it is still there, as a runtime does after DEL.
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

/// Whether DEL gets a `prevResult`.
const PREVIOUS: [Option<bool>; 3] = [Some(true), None, Some(false)];

/// DEL with `prevResult`, without, and with `null`: after an ADD, or without one.
fn tried(lab: &Lab<'_>, gone: Gone, is_added: bool) -> Trialled {
    let before = node_in_use(lab)?;
    for (number, previous) in PREVIOUS.into_iter().enumerate() {
        let target = lab.target(&format!("pod{number}"))?;
        let result = if is_added { Some(lab.attached(&target)?) } else { target.previous.clone() };
        gone.makes(&target)?;
        let del = match (previous, &result) {
            (Some(true), result) => lab.del(&target, result.as_ref()),
            (None, _) => lab.del(&target, None),
            (Some(false), _) => lab.del(&target, None).key("prevResult", Value::Null),
        };
        let answer = gone.del(del).run()?;
        answer.silent()?;
        gone.ends(&target)?;
        lab.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

pub(super) fn after_add_not_given(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Netns, true)
}

pub(super) fn after_add_gone(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Namespace, true)
}

pub(super) fn after_add_unmounted(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Mount, true)
}

pub(super) fn after_add_no_interface(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Interface, true)
}

pub(super) fn never_added(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Nothing, false)
}

pub(super) fn never_added_not_given(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Netns, false)
}

pub(super) fn never_added_gone(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Namespace, false)
}

pub(super) fn never_added_unmounted(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Mount, false)
}

pub(super) fn never_added_no_interface(lab: &Lab<'_>) -> Trialled {
    tried(lab, Gone::Interface, false)
}

pub(super) fn ipam_called(lab: &Lab<'_>) -> Trialled {
    let states = [Gone::Nothing, Gone::Netns, Gone::Namespace, Gone::Interface];
    for (number, gone) in states.into_iter().enumerate() {
        let target = lab.target(&format!("pod{number}"))?;
        let result = lab.attached(&target)?;
        gone.makes(&target)?;
        let calls = lab.ipam()?.verbs()?.len();
        let answer = gone.del(lab.del(&target, Some(&result))).run()?;
        let verbs = lab.ipam()?.verbs()?;
        let verbs = verbs.get(calls..).unwrap_or_default();
        let expected = format!("the IPAM plugin is called with DEL ({gone:?} gone)");
        answer.ensure(verbs.iter().any(|verb| verb == "DEL"), expected, format!("its calls: {verbs:?}"))?;
    }
    Ok(())
}
