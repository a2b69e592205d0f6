//! The attachment that an address is reserved for, and the content of the address's file.

use cni_common::spec::ident::{check_container_id, check_ifname};

/// An attachment: a container and its interface.
#[derive(Clone, Copy, Debug)]
pub struct Owner<'a> {
    /// CNI_CONTAINERID.
    pub container_id: &'a str,
    /// CNI_IFNAME.
    pub ifname: &'a str,
}

impl Owner<'_> {
    /// The content of the attachment's files. The reference compares all of it, so it must not contain
    /// anything else.
    pub fn content(&self) -> String {
        format!("{}\r\n{}", self.container_id, self.ifname)
    }

    /// The parsed content of the attachment's files.
    pub fn holder(&self) -> Holder {
        Holder::Attachment { container_id: self.container_id.to_owned(), ifname: self.ifname.to_owned() }
    }

    /// The parsed content of a file that a reference plugin before 0.7 wrote for the attachment's container.
    pub fn legacy_holder(&self) -> Holder {
        Holder::Container(self.container_id.to_owned())
    }
}

/// The parsed content of an address's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
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

impl Holder {
    /// Parses the content of a file. Ignores leading and trailing white space.
    pub fn parse(content: &[u8]) -> Self {
        let Ok(text) = str::from_utf8(content) else { return Holder::Foreign };
        let text = text.trim();
        if text.is_empty() {
            return Holder::Empty;
        }
        match text.split_once("\r\n") {
            Some((id, ifname)) if check_container_id(id).is_ok() && check_ifname(ifname).is_ok() => {
                Holder::Attachment { container_id: id.to_owned(), ifname: ifname.to_owned() }
            }
            None if check_container_id(text).is_ok() => Holder::Container(text.to_owned()),
            _ => Holder::Foreign,
        }
    }

    /// The holder's entry name in the index; `None` for placeholders. Neither a container ID nor an interface
    /// name can contain a colon.
    pub fn key(&self) -> Option<String> {
        match self {
            Holder::Attachment { container_id, ifname } => Some(format!("{container_id}:{ifname}")),
            Holder::Container(container_id) => Some(container_id.clone()),
            Holder::Empty | Holder::Foreign => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_content_is_parsed() {
        let owner = Owner { container_id: "abc.d", ifname: "eth0" };
        assert_eq!(owner.content(), "abc.d\r\neth0");
        assert_eq!(Holder::parse(owner.content().as_bytes()), owner.holder());
        assert_eq!(owner.holder().key().unwrap(), "abc.d:eth0");
        assert_eq!(Holder::parse(b" abc.d\r\neth0\n"), owner.holder());
        assert_eq!(Holder::parse(b"abc.d\n"), owner.legacy_holder());
        assert_eq!(owner.legacy_holder().key().unwrap(), "abc.d");
    }

    #[test]
    fn placeholders_have_no_owner() {
        for empty in ["", " \n", "\r\n"] {
            assert_eq!(Holder::parse(empty.as_bytes()), Holder::Empty);
        }
        for foreign in ["a b", "a\r\n", "a\neth0", "a\r\neth0\r\nx", "-a", "a\r\ne:0", "a/../b"] {
            let holder = Holder::parse(foreign.as_bytes());
            // White space after a container ID is ignored.
            let expected = if foreign == "a\r\n" { Holder::Container("a".into()) } else { Holder::Foreign };
            assert_eq!(holder, expected, "{foreign:?}");
        }
        assert_eq!(Holder::parse(b"\xff"), Holder::Foreign);
        assert_eq!((Holder::Empty.key(), Holder::Foreign.key()), (None, None));
    }
}
