//! What the keys of every network mean to a plugin that heeds them.

use serde_json::{Value, json};

use crate::fixture::Place as _;
use crate::suite::lab::Lab;
use crate::suite::outcome::{Stop, Trialled, ensure};

/// The rules of the node that masquerade while a container is attached.
fn masquerades(lab: &Lab<'_>, wanted: bool) -> Result<Vec<String>, Stop> {
    let target = lab.target(if wanted { "with" } else { "without" })?;
    let result = lab.add(&target).key("ipMasq", wanted).run()?.result()?;
    let is_one = |line: &String| line.to_ascii_lowercase().contains("masquerade");
    let rules = lab.snapshot()?.lines().filter(is_one).collect();
    lab.del(&target, Some(&result)).key("ipMasq", wanted).run()?.ok()?;
    Ok(rules)
}

pub(super) fn masquerading(lab: &Lab<'_>) -> Trialled {
    let without = masquerades(lab, false)?;
    ensure(without.is_empty(), "no masquerading without `ipMasq`", format!("{without:?}"))?;
    let with = masquerades(lab, true)?;
    ensure(!with.is_empty(), "a rule that masquerades with `ipMasq`", "none")
}

pub(super) fn addresses(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let answer = lab.add(&target).run()?;
    answer.ok()?;
    let verbs = lab.ipam()?.verbs()?;
    answer.ensure(verbs == ["ADD"], "an ADD of the IPAM plugin", format!("{verbs:?}"))?;
    let seen = target.pod.sh(&format!("ip -o -4 addr show dev {} 2>&1; true", target.ifname))?;
    answer.ensure(seen.contains(" 10.77.0.2/24 "), "the address 10.77.0.2/24 on the interface", seen)
}

pub(super) fn name_servers(lab: &Lab<'_>) -> Trialled {
    let dns = json!({
        "nameservers": ["192.0.2.53"], "domain": "trial.example", "search": ["trial.example"],
        "options": ["ndots:5"]});
    let answer = lab.add(&lab.target("pod1")?).key("dns", dns.clone()).run()?;
    let seen = answer.result()?["dns"].clone();
    answer.ensure(seen == dns, format!("in the result the name servers {dns}"), seen)
}

pub(super) fn delegate_by_path(lab: &Lab<'_>) -> Trialled {
    let (ipam, target) = (lab.ipam()?, lab.target("pod1")?);
    let absolute = lab.dir().join(ipam.name()).to_string_lossy().into_owned();
    let upwards = format!("{}.calls/../{}", ipam.name(), ipam.name());
    for path in [absolute, upwards, format!("./{}", ipam.name())] {
        let answer = lab.add(&target).key("ipam", json!({"type": path})).run()?;
        answer.refused()?;
        let verbs = ipam.verbs()?;
        answer.ensure(verbs.is_empty(), "no call of a delegate", format!("{verbs:?}"))?;
    }
    Ok(())
}

/// A plugin that cannot do without addresses may refuse every form, but not some of them. A bridge and macvlan can.
pub(super) fn no_ipam(lab: &Lab<'_>) -> Trialled {
    let forms = [None, Some(Value::Null), Some(json!({})), Some(json!({"type": ""}))];
    let mut works = ["bridge", "macvlan"].contains(&lab.subject.name.as_str()).then_some(true);
    for (number, form) in forms.iter().enumerate() {
        let target = lab.target(&format!("pod{number}"))?;
        let add = lab.add(&target).without_key("ipam");
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
        let verbs = lab.ipam()?.verbs()?;
        answer.ensure(verbs.is_empty(), "no call of an IPAM plugin", format!("{verbs:?}"))?;
    }
    Ok(())
}
