//! CNI_ARGS: `K=V;K2=V2`, which the caller of the runtime passes to the plugin.

use super::error::{CniError, Code};

/// The key that allows unknown keys.
const IGNORE_UNKNOWN: &str = "IgnoreUnknown";

/// The pairs of CNI_ARGS in their order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CniArgs<'a>(Vec<(&'a str, &'a str)>);

impl<'a> CniArgs<'a> {
    /// Splits `text` into pairs. Keys that are not in `known` are errors unless `IgnoreUnknown=1` is set.
    /// Empty pairs, for example after a trailing `;`, are skipped.
    ///
    /// # Errors
    /// Code 4 with the reference's texts: a pair without exactly one `=`, an `IgnoreUnknown` that is not a
    /// boolean, or unknown keys.
    pub fn parse(text: &'a str, known: &[&str]) -> Result<Self, CniError> {
        let mut pairs = Vec::new();
        let mut ignore_unknown = false;
        for piece in text.split(';').filter(|piece| !piece.is_empty()) {
            match piece.split_once('=') {
                Some((key, value)) if !value.contains('=') => {
                    if key == IGNORE_UNKNOWN {
                        ignore_unknown = parse_bool(value).ok_or_else(|| {
                            bad_pair(piece, &format!("boolean unmarshal error: invalid input {value}"))
                        })?;
                    }
                    pairs.push((key, value));
                }
                _ => return Err(error(format!("ARGS: invalid pair {piece:?}"))),
            }
        }
        let is_unknown = |key: &str| !ignore_unknown && key != IGNORE_UNKNOWN && !known.contains(&key);
        let unknown = pairs.iter().filter(|(key, _)| is_unknown(key));
        let unknown: Vec<_> = unknown.map(|(key, value)| format!("{:?}", format!("{key}={value}"))).collect();
        if !unknown.is_empty() {
            return Err(error(format!("ARGS: unknown args [{}]", unknown.join(" "))));
        }
        Ok(CniArgs(pairs))
    }

    /// The value of `key`, or of its last occurrence. `None` if the key is absent or its value is empty.
    pub fn get(&self, key: &str) -> Option<&'a str> {
        let last = self.0.iter().rev().find(|(k, _)| *k == key);
        last.map(|(_, value)| *value).filter(|value| !value.is_empty())
    }
}

/// The error for a pair with an invalid value: `ARGS: error parsing value of pair "K=V": why`.
pub fn bad_pair(pair: &str, why: &str) -> CniError {
    error(format!("ARGS: error parsing value of pair {pair:?}: {why}"))
}

fn error(msg: String) -> CniError {
    CniError::new(Code::InvalidEnvironment, msg).with_details("in CNI_ARGS")
}

fn parse_bool(text: &str) -> Option<bool> {
    match text.to_ascii_lowercase().as_str() {
        "1" | "true" => Some(true),
        "0" | "false" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignore_unknown_may_follow_unknown_keys() {
        let text = "K8S_POD_NAME=web-0;IP=10.1.2.3;IgnoreUnknown=1;K8S_POD_UID=1";
        let args = CniArgs::parse(text, &["IP"]).unwrap();
        assert_eq!(args.get("IP"), Some("10.1.2.3"));
        assert_eq!(args.get("MAC"), None);
    }

    #[test]
    fn empty_pairs_and_values_are_skipped() {
        assert_eq!(CniArgs::parse("", &[]).unwrap(), CniArgs::default());
        assert_eq!(CniArgs::parse("IP=1.2.3.4;", &["IP"]).unwrap().get("IP"), Some("1.2.3.4"));
        assert_eq!(CniArgs::parse("IP=", &["IP"]).unwrap().get("IP"), None);
    }

    #[test]
    fn the_last_value_wins_and_keys_are_case_sensitive() {
        assert_eq!(CniArgs::parse("IP=a;IP=b", &["IP"]).unwrap().get("IP"), Some("b"));
        assert!(CniArgs::parse("ip=a", &["IP"]).is_err());
    }

    #[test]
    fn errors_have_the_references_texts() {
        for (text, msg) in [
            ("FOO", r#"ARGS: invalid pair "FOO""#),
            ("A=B=C", r#"ARGS: invalid pair "A=B=C""#),
            ("K8S_POD_NAME=x;A=b", r#"ARGS: unknown args ["K8S_POD_NAME=x" "A=b"]"#),
            ("A=b;IgnoreUnknown=0", r#"ARGS: unknown args ["A=b"]"#),
            (
                "IgnoreUnknown=x",
                r#"ARGS: error parsing value of pair "IgnoreUnknown=x": boolean unmarshal error: invalid input x"#,
            ),
        ] {
            let error = CniArgs::parse(text, &["IP"]).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (Code::InvalidEnvironment, msg));
        }
    }
}
