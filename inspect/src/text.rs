//! Short texts for tables. Pure.

use std::time::SystemTime;

/// The number at the start of a fact.
pub fn first(fact: &str) -> String {
    fact.split(' ').next().unwrap_or_default().to_owned()
}

/// A rate in bits per second, short.
pub fn bits(fact: &str) -> String {
    let number = first(fact).parse().ok();
    number.map_or(String::new(), |number: u64| format!("{}bit/s", scaled(number, 1000)))
}

/// A number of bytes, short.
pub fn bytes(fact: &str) -> String {
    let number = first(fact).parse().ok();
    number.map_or(String::new(), |number: u64| format!("{}B", scaled(number, 1024)))
}

/// The number with a prefix, rounded down to a tenth.
fn scaled(number: u64, step: u64) -> String {
    let (mut tenths, mut prefix) = (number.saturating_mul(10), "");
    for next in ["k", "M", "G", "T", "P"] {
        if tenths < step * 10 {
            break;
        }
        (tenths, prefix) = (tenths / step, next);
    }
    match tenths % 10 {
        0 => format!("{}{prefix}", tenths / 10),
        tenth => format!("{}.{tenth}{prefix}", tenths / 10),
    }
}

/// The first 12 characters of a long container ID, as other tools show it.
pub fn short(container: &str) -> String {
    let is_hash = container.len() >= 32 && container.bytes().all(|byte| byte.is_ascii_hexdigit());
    if is_hash { container[..12].to_owned() } else { container.to_owned() }
}

/// The time since then in its largest unit.
pub fn age(since: Option<SystemTime>, now: SystemTime) -> String {
    let Some(seconds) = since.and_then(|since| now.duration_since(since).ok()).map(|age| age.as_secs())
    else {
        return "-".to_owned();
    };
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn numbers_are_short() {
        for (number, step, text) in [
            (0, 1000, "0"),
            (999, 1000, "999"),
            (1500, 1000, "1.5k"),
            (10_000_000, 1000, "10M"),
            (1024, 1024, "1k"),
        ] {
            assert_eq!(scaled(number, step), text);
        }
        assert_eq!(bits("8000000 bit/s"), "8Mbit/s");
        assert_eq!(bytes(""), "");
    }

    #[test]
    fn ages_and_containers() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        for (seconds, text) in [(5, "5s"), (61, "1m"), (7200, "2h"), (200_000, "2d")] {
            assert_eq!(age(Some(now - Duration::from_secs(seconds)), now), text);
        }
        assert_eq!((age(None, now), age(Some(now + Duration::from_secs(1)), now)), ("-".into(), "-".into()));
        assert_eq!(short(&"0123456789ab".repeat(4)), "0123456789ab");
        assert_eq!(short("web"), "web");
    }
}
