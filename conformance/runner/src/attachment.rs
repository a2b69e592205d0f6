//! One interface of one container on one network.

use serde_json::{Map, Value};

use super::Error;

/// The runtime's parameters of one attachment, which every plugin of the network gets.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Attachment {
    /// `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`; empty if the namespace is gone or unknown.
    pub netns: String,
    /// `CNI_IFNAME`.
    pub ifname: String,
    /// `CNI_ARGS`: `KEY=value` pairs, separated by semicolons.
    pub args: String,
    /// Capability values by name; each plugin gets those that its configuration declares.
    pub capabilities: Map<String, Value>,
}

impl Attachment {
    /// An attachment without arguments and capability values.
    pub fn new(
        container_id: impl Into<String>,
        netns: impl Into<String>,
        ifname: impl Into<String>,
    ) -> Attachment {
        Attachment {
            container_id: container_id.into(),
            netns: netns.into(),
            ifname: ifname.into(),
            ..Attachment::default()
        }
    }

    /// The same attachment with `CNI_ARGS`.
    #[must_use]
    pub fn with_args(mut self, args: impl Into<String>) -> Attachment {
        self.args = args.into();
        self
    }

    /// The same attachment with a value for one capability.
    #[must_use]
    pub fn with_capability(mut self, name: impl Into<String>, value: impl Into<Value>) -> Attachment {
        self.capabilities.insert(name.into(), value.into());
        self
    }

    /// `CNI_ARGS` as pairs of key and value.
    pub(super) fn arg_pairs(&self) -> Vec<[String; 2]> {
        let pairs = self.args.split(';').filter_map(|pair| pair.split_once('='));
        pairs.map(|(key, value)| [key.to_owned(), value.to_owned()]).collect()
    }

    /// The checks of libcni before ADD.
    pub(super) fn validate(&self, network: &str) -> Result<(), Error> {
        if !is_identifier(&self.container_id) {
            return Err(Error::runner(format!("invalid container ID {:?}", self.container_id)));
        }
        if !is_identifier(network) {
            return Err(Error::runner(format!("invalid network name {network:?}")));
        }
        let name = self.ifname.as_str();
        let forbidden = |c: char| c == '/' || c == ':' || c.is_whitespace();
        if name.is_empty() || name.len() > 15 || name == "." || name == ".." || name.contains(forbidden) {
            return Err(Error::runner(format!("invalid interface name {name:?}")));
        }
        Ok(())
    }
}

fn is_identifier(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric())
        && text.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.' | '-'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_names_are_refused() {
        let valid = Attachment::new("a-1_b.c", "", "eth0");
        assert!(valid.validate("net").is_ok());
        assert!(valid.validate("-net").is_err());
        for (container_id, ifname) in [
            ("", "eth0"),
            ("a b", "eth0"),
            ("a", ""),
            ("a", "eth0/1"),
            ("a", "sixteen-letters-"),
            ("a", ".."),
            ("a", "e:0"),
        ] {
            assert!(Attachment::new(container_id, "", ifname).validate("net").is_err());
        }
    }

    #[test]
    fn args_are_split_into_pairs() {
        let attachment = Attachment::new("a", "", "eth0").with_args("IgnoreUnknown=1;IP=10.0.0.1");
        assert_eq!(attachment.arg_pairs(), [["IgnoreUnknown", "1"], ["IP", "10.0.0.1"]]);
    }
}
