//! The administrator's list of permitted sysctls.

use std::io;

use cni_common::spec::{CniError, Code};
use ferrule_kernel::file;
use regex_lite::Regex;

use crate::sysctl::Sysctl;

/// One regular expression a line. If the file does not exist, all sysctls are permitted.
const FILE: &str = "/etc/cni/tuning/allowlist.conf";

/// Checks that the list permits all sysctls. Does not look for the list without a sysctl.
///
/// # Errors
/// Code 7 with the reference's text for the first sysctl that is not permitted. Code 5 if the list cannot be read.
pub fn check(sysctls: &[Sysctl]) -> Result<(), CniError> {
    if sysctls.is_empty() {
        return Ok(());
    }
    match file::read_named_text(FILE.as_ref()) {
        Ok(list) => sysctls.iter().try_for_each(|sysctl| permit(&list, &sysctl.key)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(CniError::new(Code::Io, format!("failed to read the allowlist {FILE}: {error}"))),
    }
}

/// Compares the key as the configuration spells it, like the reference: an expression may match any part of it.
fn permit(list: &str, key: &str) -> Result<(), CniError> {
    let lines = || list.lines().map(str::trim).filter(|line| !line.is_empty());
    for line in lines() {
        let expression = Regex::new(line).map_err(|error| {
            CniError::invalid_config(format!("error parsing regexp: {error}: `{line}`"))
                .with_details(format!("in {FILE}"))
        })?;
        if expression.is_match(key) {
            return Ok(());
        }
    }
    let permitted = lines().collect::<Vec<_>>().join(" ");
    Err(CniError::invalid_config(format!(
        "Sysctl {key} is not allowed. Only the following sysctls are allowed: [{permitted}]"
    ))
    .with_details(format!("{FILE} has the list")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "^net.core.somaxconn$\n\n  ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$  \n";

    #[test]
    fn expressions_match_the_key_as_written() {
        for key in ["net.core.somaxconn", "net/core/somaxconn", "net.ipv4.conf.IFNAME.arp_filter"] {
            permit(LIST, key).unwrap();
        }
        for key in ["net.ipv4.ip_forward", "net.ipv4.conf.eth0.arp_filter", "net.ipv4.conf.IFNAME.Arp"] {
            let msg = permit(LIST, key).unwrap_err().msg;
            let expected = format!(
                "Sysctl {key} is not allowed. Only the following sysctls are allowed: \
                 [^net.core.somaxconn$ ^net\\.ipv4\\.conf\\.IFNAME\\.[a-z_]*$]"
            );
            assert_eq!(msg, expected);
        }
        // Not anchored.
        permit("somax", "net.core.somaxconn").unwrap();
        permit("(?i)^NET\\.[[:alpha:]]+\\.\\w+$", "net.core.somaxconn").unwrap();
    }

    #[test]
    fn an_empty_list_permits_nothing() {
        assert!(permit("", "net.core.somaxconn").unwrap_err().msg.ends_with("allowed: []"));
    }

    #[test]
    fn an_invalid_expression_is_an_error_once_it_is_reached() {
        permit("core\n[", "net.core.somaxconn").unwrap();
        let error = permit("[\ncore", "net.core.somaxconn").unwrap_err();
        assert!(error.msg.starts_with("error parsing regexp: ") && error.msg.ends_with(": `[`"), "{error}");
    }
}
