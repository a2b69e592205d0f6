//! Delegates that fail, and plugins that fail after them.

use serde_json::{Value, json};

use crate::suite::call::Answer;
use crate::suite::lab::Lab;
use crate::suite::outcome::{Trialled, skip};
use crate::suite::shape;
use crate::suite::stub::Reply;

/// Fails unless the ADD was refused and the delegate was called with DEL after its own ADD.
fn undone(lab: &Lab<'_>, answer: &Answer) -> Trialled {
    answer.refused()?;
    let verbs = lab.ipam()?.verbs()?;
    answer.ensure(
        verbs == ["ADD", "DEL"],
        "the delegate called with ADD, then with DEL",
        format!("{verbs:?}"),
    )
}

pub(super) fn refused_add(lab: &Lab<'_>) -> Trialled {
    lab.ipam()?.on("ADD", Reply::Error { code: 111, msg: "the pool is empty", status: 1 })?;
    let answer = lab.add(&lab.target("pod1")?).run()?;
    undone(lab, &answer)
}

/// Fails unless a failed ADD was followed by a DEL of the delegate; a plugin that can live with the delegate's answer
/// has nothing to call off.
fn called_off(lab: &Lab<'_>, reply: Value) -> Trialled {
    lab.ipam()?.on("ADD", Reply::Json(reply))?;
    let answer = lab.add(&lab.target("pod1")?).run()?;
    if answer.output.success() {
        return skip("the plugin can live with that");
    }
    undone(lab, &answer)
}

pub(super) fn no_address(lab: &Lab<'_>) -> Trialled {
    called_off(lab, json!({"cniVersion": lab.version.to_string(), "ips": []}))
}

/// The kernel refuses a route whose gateway is on no link.
pub(super) fn impossible_route(lab: &Lab<'_>) -> Trialled {
    let model = json!({
        "ips": [{"address": "10.77.0.2/24", "gateway": "10.77.0.1"}],
        "routes": [{"dst": "198.51.100.0/24", "gw": "203.0.113.77"}]});
    called_off(lab, shape::render(&model, lab.version))
}

pub(super) fn no_version(lab: &Lab<'_>) -> Trialled {
    let mut reply = lab.ipam_result();
    if let Some(members) = reply.as_object_mut() {
        members.remove("cniVersion");
    }
    lab.ipam()?.on("ADD", Reply::Json(reply))?;
    let answer = lab.add(&lab.target("pod1")?).run()?;
    let addresses = shape::addresses(&answer.result()?);
    answer.ensure(
        addresses == ["10.77.0.2/24"],
        "the delegate's address, 10.77.0.2/24",
        format!("{addresses:?}"),
    )
}

pub(super) fn null(lab: &Lab<'_>) -> Trialled {
    lab.ipam()?.on("ADD", Reply::Json(Value::Null))?;
    let answer = lab.add(&lab.target("pod1")?).run()?;
    if answer.output.success() { answer.result().map(drop) } else { answer.refused().map(drop) }
}

pub(super) fn crash(lab: &Lab<'_>) -> Trialled {
    lab.ipam()?.on("ADD", Reply::Crash)?;
    lab.add(&lab.target("pod1")?).run()?.refused()?;
    Ok(())
}

pub(super) fn junk(lab: &Lab<'_>) -> Trialled {
    let replies = [("", 0), ("hello", 0), ("[1]", 0), ("{\"ips\": ", 0), ("hello", 3), ("", 1)];
    for (number, (text, status)) in replies.into_iter().enumerate() {
        lab.ipam()?.on("ADD", Reply::Text(text, status))?;
        lab.add(&lab.target(&format!("pod{number}"))?).run()?.refused()?;
    }
    Ok(())
}
