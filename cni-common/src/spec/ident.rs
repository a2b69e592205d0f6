//! Validation of names from the runtime: container IDs, network names, interface names.

use super::error::{CniError, Code};

/// The longest interface name in bytes: IFNAMSIZ minus the terminating zero (linux/if.h).
pub const MAX_IFNAME: usize = 15;

/// The rule for container IDs and network names: an ASCII letter or digit, then ASCII letters, digits, `_`,
/// `.` and `-`.
fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

/// Checks a container ID (specification, section "Parameters"); code 4 if it is invalid.
pub fn check_container_id(id: &str) -> Result<(), CniError> {
    if is_identifier(id) {
        return Ok(());
    }
    Err(bad_environment("invalid characters in containerID", "CNI_CONTAINERID", id))
}

/// Checks a network name (specification, section "Network configuration format"); code 7 if it is invalid.
pub fn check_network_name(name: &str) -> Result<(), CniError> {
    if name.is_empty() {
        return Err(CniError::invalid_config("missing network name"));
    }
    if is_identifier(name) {
        return Ok(());
    }
    Err(CniError::invalid_config("invalid characters found in network name").with_details(name))
}

/// Checks an interface name against the kernel's rules (`dev_valid_name`); code 4 if it is invalid.
///
/// `%` is an error too: the kernel treats the name as a template and would create an interface with another
/// name. So is U+FFFD, which replaces bytes that are not UTF-8.
pub fn check_ifname(name: &str) -> Result<(), CniError> {
    let reason = if name.len() > MAX_IFNAME {
        "interface name is too long"
    } else if name == "." || name == ".." {
        "interface name is . or .."
    } else if name.contains(|c: char| c == '/' || c == ':' || c.is_whitespace()) {
        "interface name contains / or : or whitespace characters"
    } else if name.contains('%') {
        "interface name contains %, which the kernel takes for a template"
    } else if name.contains(char::REPLACEMENT_CHARACTER) {
        "interface name is not UTF-8"
    } else {
        return Ok(());
    };
    Err(bad_environment(reason, "CNI_IFNAME", name))
}

/// The specification requires that an error of code 4 names the variable, but the reference's tests expect
/// exactly the text in `reason`. So the variable and its value go into `details`, which every runtime prints
/// after the message.
fn bad_environment(reason: &str, variable: &str, value: &str) -> CniError {
    CniError::new(Code::InvalidEnvironment, reason).with_details(format!("{variable}={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn container_ids() {
        for good in ["a", "A0", "a-b_c.d", &"f".repeat(300)] {
            assert!(check_container_id(good).is_ok(), "{good}");
        }
        for bad in ["", "-a", "_a", ".a", "a b", "a/b", "a:b", "é", "a\n"] {
            let error = check_container_id(bad).unwrap_err();
            assert_eq!(error.code, Code::InvalidEnvironment, "{bad}");
            assert!(error.details.contains("CNI_CONTAINERID"));
        }
    }

    #[test]
    fn network_names() {
        assert!(check_network_name("cbr0").is_ok());
        assert_eq!(check_network_name("").unwrap_err().msg, "missing network name");
        for bad in ["-n", "_n", ".n", "n/x", "n x", "ñ"] {
            assert_eq!(check_network_name(bad).unwrap_err().code, Code::InvalidConfig, "{bad}");
        }
    }

    #[test]
    fn interface_names_are_counted_in_bytes() {
        for good in ["e", "eth0", "ééééééé", &"x".repeat(15), "-x", "a\u{7f}"] {
            assert!(check_ifname(good).is_ok(), "{good}");
        }
        for bad in
            ["éééééééé", &"x".repeat(16), ".", "..", "a/b", "a:b", "a b", "a\u{a0}b", "a%d", "a\u{fffd}"]
        {
            let error = check_ifname(bad).unwrap_err();
            assert_eq!(error.code, Code::InvalidEnvironment, "{bad}");
            assert!(error.details.contains("CNI_IFNAME"));
        }
    }
}
