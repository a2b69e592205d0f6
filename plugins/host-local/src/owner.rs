//! Whom an address is reserved for: what the file of that address holds.

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
    /// The content of the attachment's files. The reference compares all of it, so nothing may be added.
    pub fn content(&self) -> String {
        format!("{}\r\n{}", self.container_id, self.ifname)
    }

    /// What a file of this attachment holds, once it is read.
    pub fn holder(&self) -> Holder {
        Holder::Attachment { container_id: self.container_id.to_owned(), ifname: self.ifname.to_owned() }
    }

    /// What a file of this attachment's container holds that a reference plugin before 0.7 wrote.
    pub fn legacy_holder(&self) -> Holder {
        Holder::Container(self.container_id.to_owned())
    }
}

/// What the file of an address holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Holder {
    /// `<container ID>\r\n<ifname>`.
    Attachment {
        /// The container.
        container_id: String,
        /// The interface in it.
        ifname: String,
    },
    /// `<container ID>` alone, as reference plugins before 0.7 wrote it: any interface of that container.
    Container(String),
    /// Nothing: a placeholder of the administrator, or what a crash has left of a reservation.
    Empty,
    /// Something that no plugin wrote: a placeholder.
    Foreign,
}

impl Holder {
    /// Reads the content of a file; white space around it does not count.
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

    /// The name under which the index knows the holder; `None` for what nobody looks for. A colon occurs neither in a
    /// container ID nor in an interface name.
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
    fn what_is_written_is_read() {
        let owner = Owner { container_id: "abc.d", ifname: "eth0" };
        assert_eq!(owner.content(), "abc.d\r\neth0");
        assert_eq!(Holder::parse(owner.content().as_bytes()), owner.holder());
        assert_eq!(owner.holder().key().unwrap(), "abc.d:eth0");
        assert_eq!(Holder::parse(b" abc.d\r\neth0\n"), owner.holder());
        assert_eq!(Holder::parse(b"abc.d\n"), owner.legacy_holder());
        assert_eq!(owner.legacy_holder().key().unwrap(), "abc.d");
    }

    #[test]
    fn placeholders_belong_to_nobody() {
        for empty in ["", " \n", "\r\n"] {
            assert_eq!(Holder::parse(empty.as_bytes()), Holder::Empty);
        }
        for foreign in ["a b", "a\r\n", "a\neth0", "a\r\neth0\r\nx", "-a", "a\r\ne:0", "a/../b"] {
            let holder = Holder::parse(foreign.as_bytes());
            // An ID with nothing but white space behind it is that ID.
            let expected = if foreign == "a\r\n" { Holder::Container("a".into()) } else { Holder::Foreign };
            assert_eq!(holder, expected, "{foreign:?}");
        }
        assert_eq!(Holder::parse(b"\xff"), Holder::Foreign);
        assert_eq!((Holder::Empty.key(), Holder::Foreign.key()), (None, None));
    }
}
