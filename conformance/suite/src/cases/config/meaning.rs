//! The effect of keys that every network may have, in plugins that support them.

use serde_json::{Value, json};

use crate::outcome::{Stop, TestResult, ensure};
use crate::test_context::TestContext;
use cni_lab::Place as _;

/// The masquerading rules on the node while a container is attached.
fn masquerades(test: &TestContext<'_>, wanted: bool) -> Result<Vec<String>, Stop> {
    let target = test.target(if wanted { "with" } else { "without" })?;
    let result = test.add(&target).key("ipMasq", wanted).run()?.result()?;
    let is_one = |line: &String| line.to_ascii_lowercase().contains("masquerade");
    let rules = test.snapshot()?.lines().filter(is_one).collect();
    test.del(&target, Some(&result)).key("ipMasq", wanted).run()?.ok()?;
    Ok(rules)
}

pub(super) fn masquerading(test: &TestContext<'_>) -> TestResult {
    let without = masquerades(test, false)?;
    ensure(without.is_empty(), "no masquerading without `ipMasq`", format!("{without:?}"))?;
    let with = masquerades(test, true)?;
    ensure(!with.is_empty(), "a masquerading rule with `ipMasq`", "none")
}

pub(super) fn addresses(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    answer.ok()?;
    let verbs = test.ipam()?.verbs()?;
    answer.ensure(verbs == ["ADD"], "one call of the IPAM plugin, its ADD", format!("{verbs:?}"))?;
    let seen = target.pod.sh(&format!("ip -o -4 addr show dev {} 2>&1; true", target.ifname))?;
    answer.ensure(seen.contains(" 10.77.0.2/24 "), "the address 10.77.0.2/24 on the interface", seen)
}

pub(super) fn name_servers(test: &TestContext<'_>) -> TestResult {
    let dns = json!({
        "nameservers": ["192.0.2.53"], "domain": "trial.example", "search": ["trial.example"],
        "options": ["ndots:5"]});
    let answer = test.add(&test.target("pod1")?).key("dns", dns.clone()).run()?;
    let seen = answer.result()?["dns"].clone();
    answer.ensure(seen == dns, format!("the dns {dns} in the result"), seen)
}

pub(super) fn delegate_by_path(test: &TestContext<'_>) -> TestResult {
    let (ipam, target) = (test.ipam()?, test.target("pod1")?);
    let absolute = test.dir().join(ipam.name()).to_string_lossy().into_owned();
    let upwards = format!("{}.calls/../{}", ipam.name(), ipam.name());
    for path in [absolute, upwards, format!("./{}", ipam.name())] {
        let answer = test.add(&target).key("ipam", json!({"type": path})).run()?;
        answer.refused()?;
        let verbs = ipam.verbs()?;
        answer.ensure(verbs.is_empty(), "no call of a delegate", format!("{verbs:?}"))?;
    }
    Ok(())
}

/// A plugin that needs addresses may refuse all forms, but must treat all alike. bridge and macvlan need
/// none.
pub(super) fn no_ipam(test: &TestContext<'_>) -> TestResult {
    let forms = [None, Some(Value::Null), Some(json!({})), Some(json!({"type": ""}))];
    let mut works = ["bridge", "macvlan"].contains(&test.plugin.name.as_str()).then_some(true);
    for (number, form) in forms.iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        let add = test.add(&target).without_key("ipam");
        let add = form.iter().fold(add, |add, form| add.key("ipam", form.clone()));
        let answer = add.run()?;
        let success = answer.output.success();
        if success { answer.result().map(drop) } else { answer.refused().map(drop) }?;
        let expected = *works.get_or_insert(success);
        answer.ensure(
            success == expected,
            if expected { "success, as without `ipam`" } else { "an error, as without `ipam`" },
            answer.shown(),
        )?;
        let made = target.pod.sh(&format!("ip -o link show dev {} 2>&1; true", target.ifname))?;
        answer.ensure(made.contains("link/ether") == success, "an interface if ADD succeeds", made)?;
        let verbs = test.ipam()?.verbs()?;
        answer.ensure(verbs.is_empty(), "no call of an IPAM plugin", format!("{verbs:?}"))?;
    }
    Ok(())
}
