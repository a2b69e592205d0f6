//! Versions: what a configuration's means to a plugin, and the answer to VERSION.

mod command;

use serde_json::{Value, json};

use crate::runner::Version;
use crate::suite::call::Answer;
use crate::suite::lab::{Lab, Target};
use crate::suite::outcome::{Stop, Trialled, skip};
use crate::suite::shape::{self, Of};
use crate::suite::subject::{ANY, PLUGINS, Role};
use crate::suite::trial::Trial;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("VER-01", "absent-empty-and-null-mean-the-oldest", PLUGINS, without_version),
    Trial::new("VER-02", "a-version-that-nobody-has", ANY, unsupported),
    Trial::new("VER-03", "a-version-in-another-spelling", ANY, misspelled),
    Trial::new("VER-04", "a-version-that-is-no-string", ANY, no_string),
    Trial::new("VER-05", "check-before-0.4.0", PLUGINS, check_too_early),
    Trial::new("VER-05", "gc-and-status-before-1.1.0", PLUGINS, gc_and_status_too_early),
    Trial::new("VER-06", "the-result-is-of-the-configurations-version", PLUGINS, same_version).each_version(),
    Trial::new("VER-07", "the-result-of-a-usual-add", PLUGINS, right_shape).each_version(),
    Trial::new("VER-08", "a-list-of-versions-besides", PLUGINS, list_besides),
    Trial::new("VCMD-01", "the-answer-has-both-keys", ANY, command::answers).anywhere(),
    Trial::new("VCMD-02", "asked-with-each-version", ANY, command::echoes).anywhere(),
    Trial::new("VCMD-03", "nothing-to-read", ANY, command::empty_input).anywhere(),
    Trial::new("VCMD-03", "no-json-to-read", ANY, command::junk_input).anywhere(),
    Trial::new("VCMD-03", "an-input-that-is-never-closed", ANY, command::open_input).anywhere(),
    Trial::new("VCMD-04", "the-versions-are-written-out", ANY, command::usable).anywhere(),
    Trial::new("VCMD-06", "nothing-is-changed", ANY, command::harmless),
    Trial::new("VCMD-06", "an-unprivileged-user-asks", ANY, command::unprivileged),
    Trial::new("VCMD-07", "an-attachment-from-add-to-del", PLUGINS, command::works).each_version(),
];

fn without_version(lab: &Lab<'_>) -> Trialled {
    let has_oldest = lab.subject.versions.contains(&Version::V0_1_0);
    if has_oldest && lab.subject.role == Role::Chained {
        return skip("chains begin with version 0.3.0");
    }
    if lab.subject.delegates {
        lab.ipam_gives(&shape::one_address(), Version::V0_1_0)?;
    }
    let of = if lab.subject.role == Role::Ipam { Of::Ipam } else { Of::Interface };
    for (number, value) in [None, Some(json!("")), Some(Value::Null)].into_iter().enumerate() {
        let target = lab.target(&format!("pod{number}"))?;
        let call = lab.add(&target).without_key("cniVersion");
        let call = match value {
            Some(value) => call.key("cniVersion", value),
            None => call,
        };
        let answer = call.run()?;
        if has_oldest {
            let faults = shape::faults(&answer.result()?, Version::V0_1_0, of);
            answer.ensure(faults.is_empty(), "a result of 0.1.0", faults.join("; "))?;
        } else {
            answer.refused()?;
        }
    }
    Ok(())
}

/// Calls ADD, CHECK and DEL with a `cniVersion`, and those that need no container where the plugin knows them.
fn with_version(lab: &Lab<'_>, target: &Target, value: &Value) -> Result<Vec<Answer>, Stop> {
    let mut calls = vec![lab.add(target), lab.call_for("DEL", target)];
    if lab.version >= Version::V0_4_0 {
        calls.push(lab.call_for("CHECK", target));
    }
    if lab.version >= Version::V1_1_0 {
        calls.extend([lab.call("STATUS"), lab.call("GC")]);
    }
    calls.into_iter().map(|call| call.key("cniVersion", value.clone()).run()).collect()
}

fn unsupported(lab: &Lab<'_>) -> Trialled {
    let declared = command::declared(lab)?;
    let target = lab.target("pod1")?;
    for version in ["0.0.1", "0.3.2", "0.5.0", "1.2.0", "2.0.0"] {
        if declared.iter().any(|known| known == version) {
            continue;
        }
        for answer in with_version(lab, &target, &json!(version))? {
            answer.refused()?.code_in(&[1])?;
        }
    }
    Ok(())
}

fn misspelled(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    for version in ["0.4", "1.0", "v1.0.0", " 1.0.0", "1.0.0 ", "1.0.00", "1.0.0.0", "newest"] {
        for answer in with_version(lab, &target, &json!(version))? {
            answer.refused()?;
        }
    }
    Ok(())
}

fn no_string(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    for version in [json!(1), json!(1.0), json!(true), json!(["1.0.0"]), json!({"version": "1.0.0"})] {
        for answer in with_version(lab, &target, &version)? {
            answer.refused()?.code_in(&[6])?;
        }
    }
    Ok(())
}

/// With a result that is right for the old version, so that nothing is wrong but the version itself.
fn check_too_early(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    for &version in lab.subject.versions.iter().filter(|version| **version < Version::V0_4_0) {
        let call = lab.check(&target, &shape::render(&result, version));
        call.key("cniVersion", version.to_string()).run()?.refused()?;
    }
    Ok(())
}

fn gc_and_status_too_early(lab: &Lab<'_>) -> Trialled {
    for &version in lab.subject.versions.iter().filter(|version| **version < Version::V1_1_0) {
        for verb in ["GC", "STATUS"] {
            lab.call(verb).key("cniVersion", version.to_string()).run()?.refused()?;
        }
    }
    Ok(())
}

fn same_version(lab: &Lab<'_>) -> Trialled {
    let answer = lab.add(&lab.target("pod1")?).run()?;
    let version = answer.result()?["cniVersion"].clone();
    answer.ensure(version == lab.version.to_string(), format!("a result of {}", lab.version), version)
}

fn right_shape(lab: &Lab<'_>) -> Trialled {
    let of = if lab.subject.role == Role::Ipam { Of::Ipam } else { Of::Interface };
    let answer = lab.add(&lab.target("pod1")?).run()?;
    let faults = shape::faults(&answer.result()?, lab.version, of);
    answer.ensure(faults.is_empty(), format!("the shape of {}", lab.version), faults.join("; "))
}

/// A runtime may hand its list on, even with what no plugin knows in it; the plugin's version is the other key's.
fn list_besides(lab: &Lab<'_>) -> Trialled {
    let call = lab.add(&lab.target("pod1")?).key("cniVersions", json!(["0.1.0", "1.0.0", "99.0.0"]));
    let answer = call.run()?;
    let version = answer.result()?["cniVersion"].clone();
    answer.ensure(version == lab.version.to_string(), format!("a result of {}", lab.version), version)
}
