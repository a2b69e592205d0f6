//! The kubelet's rule for names of extended resources: `IsExtendedResourceName` in pkg/apis/core/v1/helper of Kubernetes.

/// The most bytes of the domain: the kubelet puts `requests.` in front, and a DNS name has at most 253.
const MAX_DOMAIN: usize = 244;
/// The most bytes of the part after the slash.
const MAX_NAME: usize = 63;

/// Checks that the kubelet accepts the name of a resource, such as `ferrule.dev/nic`.
///
/// # Errors
/// The rule that the name breaks.
pub fn check(resource: &str) -> Result<(), &'static str> {
    let Some((domain, name)) = resource.split_once('/') else {
        return Err("must be a domain, a slash and a name");
    };
    let is_label = |label: &str| is_word(label, b"-") && !label.bytes().any(|byte| byte.is_ascii_uppercase());
    if domain.len() > MAX_DOMAIN || !domain.split('.').all(is_label) {
        return Err("the part before the slash must be a domain of at most 244 characters, in lower case");
    }
    if domain.ends_with("kubernetes.io") || domain.starts_with("requests.") {
        return Err("the domain belongs to Kubernetes");
    }
    if name.len() > MAX_NAME || !is_word(name, b"-_.") {
        return Err("the part after the slash must have 1 to 63 letters, digits, '-', '_' or '.'");
    }
    Ok(())
}

/// Whether the text has only letters, digits and these other characters, and begins and ends with a letter or digit.
fn is_word(text: &str, others: &[u8]) -> bool {
    let is_letter = |byte: &u8| byte.is_ascii_alphanumeric();
    let bytes = text.as_bytes();
    bytes.first().is_some_and(is_letter)
        && bytes.last().is_some_and(is_letter)
        && bytes.iter().all(|byte| is_letter(byte) || others.contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kubelet_refuses() {
        for name in ["ferrule.dev/nic", "a/b", "x-1.y/A_b.c-9", &format!("a/{}", "b".repeat(63))] {
            assert_eq!(check(name), Ok(()), "{name}");
        }
        for name in [
            "nic",
            "/nic",
            "a/",
            "a/b/c",
            "kubernetes.io/nic",
            "x.kubernetes.io/nic",
            "requests.x/nic",
            "X.dev/nic",
            "x..dev/nic",
            "x.dev/-nic",
            &format!("a/{}", "b".repeat(64)),
            &format!("{}/b", "a".repeat(245)),
        ] {
            assert!(check(name).is_err(), "{name}");
        }
    }
}
