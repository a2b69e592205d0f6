//! Errors as the API server sends them: a `Status` object.

use serde_json::{Value, json};

/// Why a request fails.
#[derive(Clone, Debug)]
pub(crate) struct Refusal {
    pub(crate) code: u16,
    reason: &'static str,
    message: String,
    /// The object that it is about.
    about: Option<String>,
}

/// The code of each reason that we use.
const CODES: [(&str, u16); 11] = [
    ("BadRequest", 400),
    ("Unauthorized", 401),
    ("Forbidden", 403),
    ("NotFound", 404),
    ("MethodNotAllowed", 405),
    ("AlreadyExists", 409),
    ("Conflict", 409),
    ("Expired", 410),
    ("UnsupportedMediaType", 415),
    ("TooManyRequests", 429),
    ("Timeout", 504),
];

impl Refusal {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Refusal {
        let code = CODES.iter().find(|(name, _)| *name == reason).map_or(500, |(_, code)| *code);
        Refusal { code, reason, message: message.into(), about: None }
    }

    /// There is no object of this name.
    pub(crate) fn no_object(plural: &str, name: &str) -> Refusal {
        let refusal = Refusal::new("NotFound", format!("{plural} {name:?} not found"));
        Refusal { about: Some(name.to_owned()), ..refusal }
    }

    /// The fault of a server that answers each request with this code.
    pub(crate) fn by_code(code: u16) -> Refusal {
        let reason =
            CODES.iter().find(|(_, known)| *known == code).map_or("InternalError", |(name, _)| *name);
        Refusal { code, reason, message: format!("the test wants {code}"), about: None }
    }

    pub(crate) fn to_json(&self) -> Value {
        let details = self.about.as_ref().map(|name| json!({"name": name}));
        json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code, "details": details})
    }
}
