//! JSON as Go writes it after libcni has decoded a configuration into a generic map: keys are sorted, every
//! number has been converted to float64, and `<`, `>` and `&` are escaped. A plugin under test gets the same
//! bytes as from libcni.

use serde_json::{Number, Value};

/// 2^63 - 1. Go prints larger integers with an exponent, and only integers below it fit an i64.
const LARGEST_INTEGER: f64 = 9_223_372_036_854_775_807.0;

/// The value as JSON on one line.
pub(super) fn to_bytes(value: &Value) -> Vec<u8> {
    let text = through_float64(value.clone()).to_string();
    // These characters occur in JSON only within strings, so a plain replacement is safe.
    let escaped = text
        .replace('<', "\\u003c")
        .replace('>', "\\u003e")
        .replace('&', "\\u0026")
        .replace('\u{2028}', "\\u2028")
        .replace('\u{2029}', "\\u2029");
    escaped.into_bytes()
}

fn through_float64(value: Value) -> Value {
    match value {
        Value::Number(number) => Value::Number(round(number)),
        Value::Array(items) => items.into_iter().map(through_float64).collect(),
        Value::Object(members) => {
            members.into_iter().map(|(key, value)| (key, through_float64(value))).collect()
        }
        other => other,
    }
}

fn round(number: Number) -> Number {
    match number.as_f64() {
        #[expect(clippy::cast_possible_truncation, reason = "integral and in range")]
        Some(float) if float.fract() == 0.0 && float.abs() < LARGEST_INTEGER => Number::from(float as i64),
        Some(float) => Number::from_f64(float).unwrap_or(number),
        None => number,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_float64() {
        let value: Value = serde_json::from_str(
            r#"{"f": 1.0, "big": 9007199254740993, "half": 0.5, "burst": 34359738359, "n": null}"#,
        )
        .unwrap();
        let expected = r#"{"big":9007199254740992,"burst":34359738359,"f":1,"half":0.5,"n":null}"#;
        assert_eq!(to_bytes(&value), expected.as_bytes());
    }

    #[test]
    fn html_is_escaped() {
        assert_eq!(to_bytes(&Value::from("a<b>&c")), br#""a\u003cb\u003e\u0026c""#);
    }
}
