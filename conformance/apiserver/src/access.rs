//! Requests, and whether the rules allow them.

use std::collections::HashMap;
use std::time::Instant;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, USER_AGENT};
use serde_json::Value;

use crate::faults::Faults;
use crate::path::Target;
use crate::refusal::Refusal;

/// A request that has arrived.
#[derive(Clone, Debug)]
pub struct Request {
    /// When.
    pub at: Instant,
    /// The bearer token, if there is one.
    pub token: Option<String>,
    /// The header `User-Agent`.
    pub agent: String,
    /// The verb of RBAC: `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`.
    pub verb: &'static str,
    /// The path without the query.
    pub path: String,
    /// The query.
    pub query: HashMap<String, String>,
}

impl Request {
    pub(crate) fn new(method: &str, path: &str, query: &str, headers: &HeaderMap) -> Request {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let query: HashMap<_, _> = form_urlencoded::parse(query.as_bytes()).into_owned().collect();
        let named = Target::parse(path).is_ok_and(|target| target.name.is_some());
        let watches = query.get("watch").is_some_and(|value| ["1", "true"].contains(&&**value));
        let verb = match (method, named) {
            ("GET", _) if watches => "watch",
            ("GET", true) => "get",
            ("GET", false) => "list",
            ("POST", _) => "create",
            ("PUT", _) => "update",
            ("PATCH", _) => "patch",
            ("DELETE", true) => "delete",
            ("DELETE", false) => "deletecollection",
            _ => "unknown",
        };
        Request {
            at: Instant::now(),
            token: text(AUTHORIZATION).strip_prefix("Bearer ").map(str::to_owned),
            agent: text(USER_AGENT).to_owned(),
            verb,
            path: path.to_owned(),
            query,
        }
    }

    /// A value of the query, empty if it is absent.
    pub(crate) fn value(&self, name: &str) -> &str {
        self.query.get(name).map_or("", String::as_str)
    }

    pub(crate) fn is_set(&self, name: &str) -> bool {
        ["1", "true"].contains(&self.value(name))
    }

    /// Whether the server lets the request pass.
    pub(crate) fn admit(&self, faults: &Faults) -> Result<Target, Refusal> {
        if let Some(code) = faults.code {
            return Err(Refusal::by_code(code));
        }
        if faults.token.is_some() && faults.token != self.token {
            return Err(Refusal::new("Unauthorized", "Unauthorized"));
        }
        if faults.absent.iter().any(|start| self.path.starts_with(start)) {
            return Err(Refusal::new("NotFound", "the server could not find the requested resource"));
        }
        let target = Target::parse(&self.path)?;
        if faults
            .rules
            .as_ref()
            .is_some_and(|rules| !rules.iter().any(|rule| allows(rule, self.verb, &target)))
        {
            let text = format!("forbidden by the rules: {} {}", self.verb, self.path);
            return Err(Refusal::new("Forbidden", text));
        }
        Ok(target)
    }
}

/// Whether a PolicyRule of RBAC allows it.
fn allows(rule: &Value, verb: &str, target: &Target) -> bool {
    let has = |key: &str, value: &str| {
        rule[key].as_array().is_some_and(|list| list.iter().any(|item| *item == value || *item == "*"))
    };
    let resource = match &target.subresource {
        Some(subresource) => format!("{}/{subresource}", target.resource.plural),
        None => target.resource.plural.clone(),
    };
    let named = rule["resourceNames"].is_null()
        || target.name.as_ref().is_some_and(|name| has("resourceNames", name));
    has("verbs", verb) && has("apiGroups", &target.resource.group) && has("resources", &resource) && named
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rules() {
        let rules = [
            json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list"]}),
            json!({"apiGroups": [""], "resources": ["nodes/status"], "resourceNames": ["a"], "verbs": ["patch"]}),
        ];
        let faults = Faults { rules: Some(rules.to_vec()), ..Faults::default() };
        for (method, path, query, allowed) in [
            ("GET", "/api/v1/nodes", "", true),
            ("GET", "/api/v1/nodes/a", "", true),
            ("GET", "/api/v1/nodes", "watch=1", false),
            ("PATCH", "/api/v1/nodes/a", "", false),
            ("PATCH", "/api/v1/nodes/a/status", "", true),
            ("PATCH", "/api/v1/nodes/b/status", "", false),
            ("GET", "/apis/x/v1/nodes", "", false),
        ] {
            let request = Request::new(method, path, query, &HeaderMap::new());
            assert_eq!(request.admit(&faults).is_ok(), allowed, "{method} {path}?{query}");
        }
    }
}
