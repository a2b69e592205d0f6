//! The owner of an address: name and content of the address's file.

use std::net::IpAddr;

use cni_common::plugin::Attachment;
use cni_common::spec::ident::{check_container_id, check_ifname};

/// The content of the attachment's files. The reference compares all of it, so it must not contain anything else.
pub fn content(attachment: &Attachment<'_>) -> String {
    format!("{}\r\n{}", attachment.container_id, attachment.ifname)
}

/// The address that a file is named after. Accepts only the canonical spelling, because plugins use no other.
pub fn address_of(name: &str) -> Option<IpAddr> {
    name.parse().ok().filter(|ip: &IpAddr| ip.to_string() == name)
}

/// Whose an address is: the parsed content of its file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// `<container ID>\r\n<ifname>`.
    Attachment {
        /// CNI_CONTAINERID.
        container_id: String,
        /// CNI_IFNAME.
        ifname: String,
    },
    /// `<container ID>` alone, as reference plugins before 0.7 wrote it. Stands for any interface of the
    /// container.
    Container(String),
    /// No content: an administrator's placeholder, or a reservation that a crash cut off.
    Empty,
    /// Content that no plugin writes: a placeholder.
    Foreign,
}

impl Owner {
    /// The attachment.
    pub fn of(attachment: &Attachment<'_>) -> Owner {
        let Attachment { container_id, ifname, .. } = *attachment;
        Owner::Attachment { container_id: container_id.to_owned(), ifname: ifname.to_owned() }
    }

    /// What a reference plugin before 0.7 wrote for the attachment's container.
    pub fn legacy(attachment: &Attachment<'_>) -> Owner {
        Owner::Container(attachment.container_id.to_owned())
    }

    /// Parses the content of a file. Ignores leading and trailing white space.
    pub fn parse(content: &[u8]) -> Self {
        let Ok(text) = str::from_utf8(content) else { return Owner::Foreign };
        let text = text.trim();
        if text.is_empty() {
            return Owner::Empty;
        }
        match text.split_once("\r\n") {
            Some((id, ifname)) if check_container_id(id).is_ok() && check_ifname(ifname).is_ok() => {
                Owner::Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() }
            }
            None if check_container_id(text).is_ok() => Owner::Container(text.to_owned()),
            _ => Owner::Foreign,
        }
    }

    /// The owner's entry name in the index; `None` for placeholders. Neither a container ID nor an interface
    /// name can contain a colon.
    pub fn key(&self) -> Option<String> {
        match self {
            Owner::Attachment { container_id, ifname } => Some(format!("{container_id}:{ifname}")),
            Owner::Container(container_id) => Some(container_id.clone()),
            Owner::Empty | Owner::Foreign => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_content_is_parsed() {
        let one = Attachment { network: "net", container_id: "abc.d", ifname: "eth0" };
        let (owner, legacy) = (Owner::of(&one), Owner::legacy(&one));
        assert_eq!(content(&one), "abc.d\r\neth0");
        assert_eq!(Owner::parse(content(&one).as_bytes()), owner);
        assert_eq!(owner.key().unwrap(), "abc.d:eth0");
        assert_eq!(Owner::parse(b" abc.d\r\neth0\n"), owner);
        assert_eq!(Owner::parse(b"abc.d\n"), legacy);
        assert_eq!(legacy.key().unwrap(), "abc.d");
    }

    #[test]
    fn placeholders_have_no_owner() {
        for empty in ["", " \n", "\r\n"] {
            assert_eq!(Owner::parse(empty.as_bytes()), Owner::Empty);
        }
        for foreign in ["a b", "a\r\n", "a\neth0", "a\r\neth0\r\nx", "-a", "a\r\ne:0", "a/../b"] {
            let owner = Owner::parse(foreign.as_bytes());
            // White space after a container ID is ignored.
            let expected = if foreign == "a\r\n" { Owner::Container("a".into()) } else { Owner::Foreign };
            assert_eq!(owner, expected, "{foreign:?}");
        }
        assert_eq!(Owner::parse(b"\xff"), Owner::Foreign);
        assert_eq!((Owner::Empty.key(), Owner::Foreign.key()), (None, None));
    }
}
