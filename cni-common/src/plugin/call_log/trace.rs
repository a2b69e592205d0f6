//! The trace that a call belongs to: the runtime names its span in the environment, as libcni does. Pure.
//!
//! # References
//! <https://www.w3.org/TR/trace-context/>, <https://opentelemetry.io/docs/specs/otel/context/env-carriers/>

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::time::Duration;

use serde::Serialize;

/// The variable that names the trace and the parent span.
pub(super) const TRACEPARENT: &str = "TRACEPARENT";
const TRACESTATE: &str = "TRACESTATE";
const BAGGAGE: &str = "BAGGAGE";
/// Each text is cut after this many characters, as much as the standards let a peer drop.
const LONGEST: usize = 512;

/// The span of a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Trace {
    id: String,
    parent: String,
    span: String,
    flags: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    state: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    baggage: String,
}

impl Trace {
    /// The trace that the variables name, with a new span of this process; `None` if they name none.
    pub(super) fn read(
        var: impl Fn(&str) -> Option<String>,
        pid: u32,
        since_epoch: Duration,
    ) -> Option<Self> {
        let parent = var(TRACEPARENT)?;
        let [version, id, span, flags] = parent.splitn(4, '-').collect::<Vec<_>>().try_into().ok()?;
        // A later version may have more fields.
        let (flags, rest) = flags.split_at_checked(2)?;
        let is_known =
            if version == "00" { rest.is_empty() } else { rest.is_empty() || rest.starts_with('-') };
        let is_sound = is_hex(version, 2) && version != "ff" && is_hex(flags, 2) && is_known;
        if !is_sound || !is_id(id, 32) || !is_id(span, 16) {
            return None;
        }
        let mut hasher = DefaultHasher::new();
        (&parent, pid, since_epoch).hash(&mut hasher);
        let cut = |name| var(name).map(|text| text.chars().take(LONGEST).collect());
        Some(Trace {
            id: id.to_owned(),
            parent: span.to_owned(),
            span: format!("{:016x}", hasher.finish().max(1)),
            flags: flags.to_owned(),
            state: cut(TRACESTATE).unwrap_or_default(),
            baggage: cut(BAGGAGE).unwrap_or_default(),
        })
    }

    /// A span of a member, inside of this one.
    pub(super) fn of_member(&self, plugin: &str, number: usize, at: Duration) -> Trace {
        let mut hasher = DefaultHasher::new();
        (&self.span, plugin, number, at).hash(&mut hasher);
        Trace { parent: self.span.clone(), span: format!("{:016x}", hasher.finish().max(1)), ..self.clone() }
    }

    /// The value of the variable for a process that this one starts.
    pub(super) fn of_child(&self) -> String {
        format!("00-{}-{}-{}", self.id, self.span, self.flags)
    }
}

fn is_hex(text: &str, len: usize) -> bool {
    text.len() == len && text.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}

fn is_id(text: &str, len: usize) -> bool {
    is_hex(text, len) && text.bytes().any(|byte| byte != b'0')
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARENT: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn read(parent: &str, pid: u32) -> Option<Trace> {
        let var = |name: &str| match name {
            TRACEPARENT => Some(parent.to_owned()),
            BAGGAGE => Some("é".repeat(2 * LONGEST)),
            _ => None,
        };
        Trace::read(var, pid, Duration::from_nanos(1))
    }

    #[test]
    fn the_span_of_a_call() {
        let trace = read(PARENT, 7).unwrap();
        assert_eq!((&trace.id[..4], &trace.parent[..], &trace.flags[..]), ("4bf9", "00f067aa0ba902b7", "01"));
        assert_eq!((trace.baggage.chars().count(), trace.state.len()), (LONGEST, 0));
        let child = read(&trace.of_child(), 7).unwrap();
        assert_eq!((&child.id, &child.parent), (&trace.id, &trace.span));
        let member = trace.of_member("bridge", 1, Duration::ZERO);
        assert_eq!((&member.id, &member.parent), (&trace.id, &trace.span));
        assert_ne!(member.span, trace.of_member("portmap", 1, Duration::ZERO).span);
        assert_ne!(read(PARENT, 8).unwrap().span, trace.span);
    }

    #[test]
    fn values_that_name_no_span() {
        assert!(read(&PARENT.replacen("00", "01", 1), 7).is_some());
        assert!(read(&(PARENT.replacen("00", "01", 1) + "-more"), 7).is_some());
        let zeros = "0".repeat(32);
        for wrong in [
            String::new(),
            "00-é".to_owned(),
            PARENT[..54].to_owned(),
            PARENT.to_uppercase(),
            format!("{PARENT}-more"),
            PARENT.replacen("00", "ff", 1),
            PARENT.replace("4bf92f3577b34da6a3ce929d0e0e4736", &zeros),
            PARENT.replace("00f067aa0ba902b7", &zeros[..16]),
        ] {
            assert_eq!(read(&wrong, 7), None, "{wrong}");
        }
        assert_eq!(Trace::read(|_| None, 7, Duration::ZERO), None);
    }
}
