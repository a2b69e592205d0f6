//! Short texts for tables.

use std::time::SystemTime;

/// The number at the start of a fact.
pub fn first(fact: &str) -> &str {
    fact.split(' ').next().unwrap_or_default()
}

/// The number at the start of a fact with a prefix of the unit, rounded down to a tenth; empty without a number.
pub fn scaled(fact: &str, step: u64, unit: &str) -> String {
    let Ok(number) = first(fact).parse::<u64>() else { return String::new() };
    let (mut tenths, mut prefix) = (number.saturating_mul(10), "");
    for next in ["k", "M", "G", "T", "P"] {
        if tenths < step * 10 {
            break;
        }
        (tenths, prefix) = (tenths / step, next);
    }
    match tenths % 10 {
        0 => format!("{}{prefix}{unit}", tenths / 10),
        tenth => format!("{}.{tenth}{prefix}{unit}", tenths / 10),
    }
}

/// The first 12 characters of a long container ID, as other tools show it.
pub fn short(container: &str) -> &str {
    let is_hash = container.len() >= 32 && container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { &container[..12] } else { container }
}

/// The first characters of a text, in at most `most` bytes.
pub fn beginning(text: &str, most: usize) -> &str {
    let mut end = text.len().min(most);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}

/// The time since then in its largest unit.
pub fn age(since: Option<SystemTime>) -> String {
    let Some(age) = since.and_then(|since| since.elapsed().ok()) else { return "-".to_owned() };
    match age.as_secs() {
        seconds @ 0..60 => format!("{seconds}s"),
        seconds @ 60..3600 => format!("{}m", seconds / 60),
        seconds @ 3600..86400 => format!("{}h", seconds / 3600),
        seconds => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_short() {
        for (fact, step, text) in [
            ("0", 1000, "0B"),
            ("999 B", 1000, "999B"),
            ("1500", 1000, "1.5kB"),
            ("10000000 B", 1000, "10MB"),
            ("1024", 1024, "1kB"),
            ("", 1024, ""),
        ] {
            assert_eq!(scaled(fact, step, "B"), text);
        }
    }

    #[test]
    fn ages_and_containers() {
        let now = SystemTime::now();
        for (seconds, text) in [(61, "1m"), (7200, "2h"), (200_000, "2d")] {
            assert_eq!(age(Some(now - Duration::from_secs(seconds))), text);
        }
        assert_eq!((age(None), age(Some(now + Duration::from_secs(1000)))), ("-".into(), "-".into()));
        assert_eq!(short(&"0123456789ab".repeat(4)), "0123456789ab");
        assert_eq!(short("web"), "web");
        assert_eq!((beginning("aé", 2), beginning("aé", 3)), ("a", "aé"));
    }
}
