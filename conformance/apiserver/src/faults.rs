//! The faults of a server.

use std::time::Duration;

use serde_json::Value;

/// Faults of a server. They hold from the next request on; [`Faults::mute`] holds for running watches too.
#[derive(Clone, Debug)]
pub struct Faults {
    /// The faults are for the paths that begin so; token, rules and the times of watches for all.
    pub of: String,
    /// Each answer takes so long.
    pub delay: Duration,
    /// A list takes so long, after its first half was sent.
    pub slow_list: Duration,
    /// Requests get no answer.
    pub hang: bool,
    /// Watches stay open and say nothing.
    pub mute: bool,
    /// Each request is answered with this code, such as 500 or 429.
    pub code: Option<u16>,
    /// Requests with this verb get this code and body, as from a proxy that is in the way. A redirect leads nowhere.
    pub proxy: Option<(&'static str, u16, &'static str)>,
    /// The only bearer token that is accepted; another one, or none, is answered with 401.
    pub token: Option<String>,
    /// The rules of a ClusterRole. Every other request is answered with 403.
    pub rules: Option<Vec<Value>>,
    /// Paths that begin so do not exist, as `/apis/resource.k8s.io/v1/` on an old server.
    pub absent: Vec<String>,
    /// The fields of objects with these names are dropped, as by an old server or one without a feature.
    pub unknown: Vec<String>,
    /// How often a watch that allows bookmarks gets one.
    pub bookmarks: Duration,
    /// The server ends a watch after this time, or after `timeoutSeconds`, if that is shorter.
    pub longest_watch: Duration,
}

impl Default for Faults {
    fn default() -> Faults {
        Faults {
            of: String::new(),
            delay: Duration::ZERO,
            slow_list: Duration::ZERO,
            hang: false,
            mute: false,
            code: None,
            proxy: None,
            token: None,
            rules: None,
            absent: Vec::new(),
            unknown: Vec::new(),
            bookmarks: Duration::from_secs(60),
            longest_watch: Duration::from_secs(3600),
        }
    }
}

impl Faults {
    /// Those of a path.
    pub(crate) fn at(&self, path: &str) -> Faults {
        if path.starts_with(&self.of) {
            return self.clone();
        }
        let Faults { rules, token, bookmarks, longest_watch, .. } = self.clone();
        Faults { rules, token, bookmarks, longest_watch, ..Faults::default() }
    }

    /// The object without the fields that are unknown.
    pub(crate) fn drop_unknown(&self, object: &mut Value) {
        match object {
            Value::Object(fields) => {
                fields.retain(|name, _| !self.unknown.contains(name));
                fields.values_mut().for_each(|value| self.drop_unknown(value));
            }
            Value::Array(values) => values.iter_mut().for_each(|value| self.drop_unknown(value)),
            _ => {}
        }
    }
}
