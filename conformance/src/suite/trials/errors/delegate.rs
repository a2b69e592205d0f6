//! What becomes of the errors and the logs of a plugin that is delegated to.

use serde_json::json;

use super::codes::is_allowed;
use crate::runner::Version;
use crate::suite::call::{Answer, Refusal};
use crate::suite::lab::Lab;
use crate::suite::outcome::{Stop, Trialled, skip};
use crate::suite::stub::Reply;

/// What a stub's error says.
const MESSAGE: &str = "the pool is being moved";
/// A code of the specification, and one of the delegate's own.
const CODES: [u64; 2] = [11, 142];

fn crashed(lab: &Lab<'_>) -> Result<(Answer, Refusal), Stop> {
    lab.ipam()?.on("ADD", Reply::Crash)?;
    let answer = lab.add(&lab.target("pod1")?).run()?;
    let refusal = answer.refused()?;
    Ok((answer, refusal))
}

pub(super) fn crash(lab: &Lab<'_>) -> Trialled {
    crashed(lab)?;
    Ok(())
}

pub(super) fn code_of_a_crash(lab: &Lab<'_>) -> Trialled {
    let (answer, refusal) = crashed(lab)?;
    answer.ensure(is_allowed(refusal.code), "a code of the specification, or one from 100 on", answer.shown())
}

fn unchanged(answer: &Answer, code: u64) -> Trialled {
    let refusal = answer.refused()?;
    let is_same = refusal.code == code && refusal.msg == MESSAGE && refusal.details == "from the stub";
    answer.ensure(
        is_same,
        format!("code {code}, message {MESSAGE:?}, details \"from the stub\""),
        answer.shown(),
    )
}

pub(super) fn error_at_add(lab: &Lab<'_>) -> Trialled {
    for code in CODES {
        lab.ipam()?.on("ADD", Reply::Error { code, msg: MESSAGE, status: 3 })?;
        unchanged(&lab.add(&lab.target(&format!("pod{code}"))?).run()?, code)?;
    }
    Ok(())
}

pub(super) fn error_at_check(lab: &Lab<'_>) -> Trialled {
    if lab.version < Version::V0_4_0 {
        return skip("CHECK begins with version 0.4.0");
    }
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    for code in CODES {
        lab.ipam()?.on("CHECK", Reply::Error { code, msg: MESSAGE, status: 3 })?;
        unchanged(&lab.check(&target, &result).run()?, code)?;
    }
    Ok(())
}

pub(super) fn logs(lab: &Lab<'_>) -> Trialled {
    lab.ipam()?.on("ADD", Reply::Talkative("{\"level\": \"info\"}", lab.ipam_result()))?;
    lab.attached(&lab.target("pod1")?)?;
    Ok(())
}

pub(super) fn missing(lab: &Lab<'_>) -> Trialled {
    let call = lab.add(&lab.target("pod1")?).key("ipam", json!({"type": "no-such-ipam"}));
    call.run()?.refused()?.mentions("no-such-ipam")?;
    Ok(())
}
