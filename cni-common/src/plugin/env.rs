//! The `CNI_*` variables: which verb needs which, and what each must look like.

use std::ffi::OsString;

use super::Plugin;
use crate::spec::ident::{check_container_id, check_ifname};
use crate::spec::{CniError, Code};

/// What a runtime asks a plugin to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verb {
    /// Attach a container to the network.
    Add,
    /// Check that an attachment is as it was made.
    Check,
    /// Undo an attachment.
    Del,
    /// Remove what belongs to attachments that are no more.
    Gc,
    /// Say whether ADD could be served.
    Status,
    /// Say which versions are supported.
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

    /// The verb as CNI_COMMAND has it; case counts.
    pub fn parse(text: &str) -> Option<Verb> {
        Verb::ALL.iter().find(|(name, _)| *name == text).map(|(_, verb)| *verb)
    }

    /// The verb as CNI_COMMAND has it.
    pub fn as_str(self) -> &'static str {
        Verb::ALL.iter().find(|(_, verb)| *verb == self).map_or("", |(name, _)| name)
    }
}

/// The variables, each empty if it is not set: libcni always sets all of them.
#[derive(Clone, Default)]
pub struct Environment {
    /// CNI_COMMAND.
    pub command: String,
    /// CNI_CONTAINERID.
    pub container_id: String,
    /// CNI_NETNS: the path of the container's network namespace.
    pub netns: String,
    /// CNI_IFNAME: the interface to make in the container.
    pub ifname: String,
    /// CNI_ARGS, see [`crate::spec::args`].
    pub args: String,
    /// CNI_PATH: where delegates are looked for, separated by colons.
    pub path: String,
    /// CNI_NETNS_OVERRIDE is `1` or `true`: CNI_NETNS may be the plugin's own namespace.
    pub netns_override: bool,
    /// The plugins that this program is, if it is several; no variable, but known by how it was started as well.
    pub siblings: &'static [&'static dyn Plugin],
}

/// For each variable: which verbs cannot do without it. CNI_PATH is optional where a plugin has no delegate, so the
/// delegation asks for it, and only GC demands it always.
const REQUIRED: [(&str, &[Verb]); 5] = [
    ("CNI_COMMAND", &[]),
    ("CNI_CONTAINERID", &[Verb::Add, Verb::Check, Verb::Del]),
    ("CNI_NETNS", &[Verb::Add, Verb::Check]),
    ("CNI_IFNAME", &[Verb::Add, Verb::Check, Verb::Del]),
    ("CNI_PATH", &[Verb::Gc]),
];

impl Environment {
    /// Reads the variables through `var`; bytes that are no UTF-8 are replaced, and then refused where they matter.
    pub fn read(var: impl Fn(&str) -> Option<OsString>) -> Self {
        let text =
            |name: &str| var(name).map(|value| value.to_string_lossy().into_owned()).unwrap_or_default();
        Environment {
            command: text("CNI_COMMAND"),
            container_id: text("CNI_CONTAINERID"),
            netns: text("CNI_NETNS"),
            ifname: text("CNI_IFNAME"),
            args: text("CNI_ARGS"),
            path: text("CNI_PATH"),
            netns_override: matches!(text("CNI_NETNS_OVERRIDE").to_ascii_lowercase().as_str(), "1" | "true"),
            siblings: &[],
        }
    }

    fn value(&self, name: &str) -> &str {
        match name {
            "CNI_COMMAND" => &self.command,
            "CNI_CONTAINERID" => &self.container_id,
            "CNI_NETNS" => &self.netns,
            "CNI_IFNAME" => &self.ifname,
            _ => &self.path,
        }
    }

    /// Checks what `verb` needs, in the reference's order: the first malformed variable ends it, missing ones are collected.
    ///
    /// # Errors
    /// Code 4, naming the variables.
    pub fn validate(&self, verb: Verb) -> Result<(), CniError> {
        let mut missing = Vec::new();
        for (name, verbs) in REQUIRED {
            if !verbs.contains(&verb) {
                continue;
            }
            match (name, self.value(name)) {
                (name, "") => missing.push(name),
                ("CNI_CONTAINERID", id) => check_container_id(id)?,
                ("CNI_IFNAME", ifname) => check_ifname(ifname)?,
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
    fn missing_ones_are_all_named() {
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
    fn attachment_variables_do_not_matter_to_gc() {
        let junk = environment(&[("CNI_CONTAINERID", "a/b"), ("CNI_IFNAME", "a/b"), ("CNI_PATH", "/x")]);
        assert!(junk.validate(Verb::Gc).is_ok());
        assert!(junk.validate(Verb::Status).is_ok());
        assert_eq!(junk.validate(Verb::Del).unwrap_err().msg, "invalid characters in containerID");
    }

    #[test]
    fn verbs_are_upper_case() {
        assert_eq!(Verb::parse("ADD"), Some(Verb::Add));
        assert_eq!(Verb::parse("add"), None);
        assert_eq!(Verb::Status.as_str(), "STATUS");
    }

    #[test]
    fn override_in_any_case() {
        assert!(environment(&[("CNI_NETNS_OVERRIDE", "TRUE")]).netns_override);
        assert!(!environment(&[("CNI_NETNS_OVERRIDE", "yes")]).netns_override);
    }
}
