//! Calls with one error each.

use serde_json::json;

use crate::call::{Answer, Call};
use crate::outcome::{Stop, mismatch};
use crate::test_context::{Target, TestContext};
use cni_runner::Version;

/// A call that should fail.
pub(super) struct Provocation<'a> {
    pub(super) call: Call<'a>,
    /// The code that the specification defines for this error, if any.
    pub(super) code: Option<u64>,
    /// The text that the error must contain, so that its reader knows what to change.
    pub(super) names: Option<&'static str>,
}

/// The code, if the test's version defines it: 1 in every version, 4 to 7 from 1.0.0 on.
fn code(test: &TestContext<'_>, code: u64) -> Option<u64> {
    (code == 1 || test.version >= Version::V1_0_0).then_some(code)
}

/// The calls, for a container that is not attached.
pub(super) fn provocations<'a>(test: &'a TestContext<'a>, target: &Target) -> Vec<Provocation<'a>> {
    let add = || test.add(target);
    let mut all: Vec<(Call<'a>, Option<u64>, Option<&'static str>)> = vec![
        (add().var("CNI_COMMAND", "MULTIPLY"), code(test, 4), Some("MULTIPLY")),
        (add().var("CNI_CONTAINERID", "a/b"), code(test, 4), None),
        (add().var("CNI_IFNAME", "a/b"), None, None),
        (add().var("CNI_NETNS", "/run/netns/nowhere"), None, Some("/run/netns/nowhere")),
        (add().bytes("hello"), code(test, 6), None),
        (add().bytes(r#"{"cniVersion":"#), code(test, 6), None),
        (add().bytes("[]"), code(test, 6), None),
        (add().key("cniVersion", json!(["1.0.0"])), code(test, 6), None),
        (add().key("cniVersion", "99.0.0"), code(test, 1), Some("99.0.0")),
        (add().without_key("name"), code(test, 7), None),
        (add().key("name", "a/b"), code(test, 7), Some("a/b")),
    ];
    for name in ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"] {
        // An IPAM plugin does not use the namespace and may accept a call without it.
        all.push((add().unset(name), code(test, 4).filter(|_| name != "CNI_NETNS"), Some(name)));
    }
    all.into_iter().map(|(call, code, names)| Provocation { call, code, names }).collect()
}

/// The answers of the calls that failed. Other requirements say which calls must fail, but at least some of
/// them must.
pub(super) fn failures<'a>(test: &'a TestContext<'a>) -> Result<Vec<(Provocation<'a>, Answer)>, Stop> {
    let mut failures = Vec::new();
    let target = test.target("pod1")?;
    for provocation in provocations(test, &target) {
        let answer = provocation.call.run()?;
        if !answer.output.success() {
            failures.push((provocation, answer));
        }
    }
    if failures.is_empty() {
        return mismatch("errors for invalid calls", "all of them succeeded");
    }
    Ok(failures)
}
