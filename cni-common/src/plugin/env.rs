//! The `CNI_*` environment variables, and their validation for each verb.

use std::ffi::OsString;

use super::{Opened, Plugin};
use crate::spec::ident::{check_container_id, check_ifname};
use crate::spec::{CniError, Code};

/// The command in CNI_COMMAND.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach a container to the network.
    Add,
    /// Check that an attachment is as ADD made it.
    Check,
    /// Detach a container from the network.
    Del,
    /// Remove all objects of attachments that no longer exist.
    Gc,
    /// Report whether the plugin can serve ADD.
    Status,
    /// Report the supported specification versions.
    Version,
}

impl Verb {
    const ALL: [(&'static str, Verb); 6] = [
        ("ADD", Verb::Add),
        ("CHECK", Verb::Check),
        ("DEL", Verb::Del),
        ("GC", Verb::Gc),
        ("STATUS", Verb::Status),
        ("VERSION", Verb::Version),
    ];

    /// Parses CNI_COMMAND. Case-sensitive.
    pub fn parse(text: &str) -> Option<Verb> {
        Verb::ALL.iter().find(|(name, _)| *name == text).map(|(_, verb)| *verb)
    }

    /// The text of CNI_COMMAND.
    pub fn as_str(self) -> &'static str {
        Verb::ALL.iter().find(|(_, verb)| *verb == self).map_or("", |(name, _)| name)
    }
}

/// The variables. An unset variable equals an empty one, because libcni always sets all of them.
#[derive(Clone, Default)]
pub struct Environment {
    /// CNI_COMMAND.
    pub command: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_NETNS: the path of the container's network namespace.
    pub netns: String,
    /// CNI_IFNAME: the name of the interface in the container.
    pub ifname: String,
    /// CNI_ARGS, see [`crate::spec::args`].
    pub args: String,
    /// CNI_PATH: the directories to search for delegates, separated by colons.
    pub path: String,
    /// CNI_NETNS_OVERRIDE is `1` or `true`: CNI_NETNS may be the plugin's own namespace.
    pub netns_override: bool,
    /// All plugins of this program if it contains several (not an environment variable), see
    /// [`super::run_one_of`].
    pub siblings: &'static [&'static Plugin],
    /// The namespace of CNI_NETNS, once it is open (not an environment variable).
    pub opened: Opened,
}

impl Environment {
    /// Reads the variables with `var`. Bytes that are not UTF-8 become U+FFFD, which the validation of names
    /// rejects.
    pub fn read(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let lossy = |value: OsString| value.to_string_lossy().into_owned();
        let text =
            |name: &str| var(name).map(|value| value.into_string().unwrap_or_else(lossy)).unwrap_or_default();
        Environment {
            command: text("CNI_COMMAND"),
            container_id: text("CNI_CONTAINERID"),
            netns: text("CNI_NETNS"),
            ifname: text("CNI_IFNAME"),
            args: text("CNI_ARGS"),
            path: text("CNI_PATH"),
            netns_override: matches!(text("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true"),
            siblings: &[],
            opened: Opened::default(),
        }
    }

    /// Checks the variables that `verb` requires, in the reference's order: collects all missing variables,
    /// but stops at the first invalid one.
    ///
    /// # Errors
    /// Code 4 with the names of the variables.
    pub fn validate(&self, verb: Verb) -> Result<(), CniError> {
        use Verb::{Add, Check, Del, Gc};
        // A plugin without a delegate does not need CNI_PATH, and `Delegate::find` reports an empty one.
        let variables: [(&str, &str, &[Verb]); 4] = [
            ("CNI_CONTAINERID", &self.container_id, &[Add, Check, Del]),
            ("CNI_NETNS", &self.netns, &[Add, Check]),
            ("CNI_IFNAME", &self.ifname, &[Add, Check, Del]),
            ("CNI_PATH", &self.path, &[Gc]),
        ];
        let mut missing = Vec::new();
        for (name, value, _) in variables.into_iter().filter(|(.., verbs)| verbs.contains(&verb)) {
            match name {
                _ if value.is_empty() => missing.push(name),
                "CNI_CONTAINERID" => check_container_id(value)?,
                "CNI_IFNAME" => check_ifname(value)?,
                _ => {}
            }
        }
        if missing.is_empty() {
            return Ok(());
        }
        Err(CniError::new(
            Code::InvalidEnvironment,
            format!("required env variables [{}] missing", missing.join(",")),
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(pairs: &[(&str, &str)]) -> Environment {
        Environment::read(|name| pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).into()))
    }

    #[test]
    fn all_missing_variables_are_named() {
        let nothing = environment(&[]);
        for (verb, names) in [
            (Verb::Add, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
            (Verb::Check, "CNI_CONTAINERID,CNI_NETNS,CNI_IFNAME"),
            (Verb::Del, "CNI_CONTAINERID,CNI_IFNAME"),
            (Verb::Gc, "CNI_PATH"),
        ] {
            let error = nothing.validate(verb).unwrap_err();
            assert_eq!(error.msg, format!("required env variables [{names}] missing"));
            assert_eq!(error.code, Code::InvalidEnvironment);
        }
        assert!(nothing.validate(Verb::Status).is_ok());
        assert!(nothing.validate(Verb::Version).is_ok());
    }

    #[test]
    fn gc_and_status_ignore_attachment_variables() {
        let junk = environment(&[("CNI_CONTAINERID", "a/b"), ("CNI_IFNAME", "a/b"), ("CNI_PATH", "/x")]);
        assert!(junk.validate(Verb::Gc).is_ok());
        assert!(junk.validate(Verb::Status).is_ok());
        assert_eq!(junk.validate(Verb::Del).unwrap_err().msg, "invalid characters in containerID");
    }

    #[test]
    fn verbs_are_case_sensitive() {
        assert_eq!(Verb::parse("ADD"), Some(Verb::Add));
        assert_eq!(Verb::parse("add"), None);
        assert_eq!(Verb::Status.as_str(), "STATUS");
    }

    #[test]
    fn netns_override_is_case_insensitive() {
        assert!(environment(&[("CNI_NETNS_OVERRIDE", "TRUE")]).netns_override);
        assert!(!environment(&[("CNI_NETNS_OVERRIDE", "yes")]).netns_override);
    }
}
