//! The devices that host-device moves. Each container has one of its own: the veth end `uplinkN`, whose other end
//! `peerN` stays on the node.

/// The device with a number that is higher by `by`; `None` if the name does not end in a number.
pub fn numbered(device: &str, by: usize) -> Option<String> {
    let stem = device.trim_end_matches(|c: char| c.is_ascii_digit());
    let number: usize = device[stem.len()..].parse().ok()?;
    Some(format!("{stem}{}", number + by))
}

/// The changes of a node without the devices that have ended with their container: the kernel deletes virtual links with
/// the namespace. A device that was only not given back still has its other end on the node.
pub fn without_ended(changes: &str) -> String {
    let has_ended = |line: &&str| {
        let number = line.strip_prefix("- ").and_then(number_of);
        number.is_some_and(|number| is_lost(changes, "uplink", number) && is_lost(changes, "peer", number))
    };
    changes.lines().filter(|line| !has_ended(line)).map(|line| format!("{line}\n")).collect()
}

/// Whether a device is lost, but not its other end. So it is while the kernel deletes them.
pub fn is_any_ending(changes: &str) -> bool {
    changes.lines().any(|line| line.starts_with("- link: uplink")) && !without_ended(changes).is_empty()
}

fn is_lost(changes: &str, stem: &str, number: &str) -> bool {
    let start = format!("- link: {stem}{number} ");
    changes.lines().any(|line| line.starts_with(&start))
}

/// The number of the device or other end that a line is about.
fn number_of(line: &str) -> Option<&str> {
    let mut words = line.split([' ', '=']);
    words.find_map(|word| word.strip_prefix("uplink").or_else(|| word.strip_prefix("peer")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_device_that_ended_with_its_other_end_is_no_change() {
        assert_eq!(numbered("uplink0", 12).as_deref(), Some("uplink12"));
        let kept = "- link: uplink4 kind=veth\n- qdisc: dev=uplink4 handle=0:\n+ file: /x\n";
        let ended = "- link: peer3 kind=veth\n- link: uplink3 kind=veth\n- qdisc: dev=peer3 handle=0:\n";
        assert_eq!(without_ended(&format!("{ended}{kept}")), kept);
        assert!(is_any_ending(kept) && !is_any_ending(ended));
    }
}
