//! Encoding and decoding of netlink messages: the netlink header, the header of the family, attributes.
//!
//! # References
//! linux/netlink.h; netlink(7).

use nix::errno::Errno;

use super::error::Error;

/// Length of `struct nlmsghdr`.
pub const HEADER: usize = 16;
/// Length of an attribute's header, `struct nlattr`.
const ATTR_HEADER: usize = 4;
/// `NLA_TYPE_MASK`: the attribute type without flags.
const TYPE_MASK: u16 = 0x3fff;
/// `NLA_F_NESTED`.
const NESTED: u16 = 1 << 15;

/// `NLM_F_REQUEST`.
pub const F_REQUEST: u16 = 0x1;
/// `NLM_F_ACK`: acknowledge success too.
pub const F_ACK: u16 = 0x4;
/// `NLM_F_ECHO`: send the notification of the change to the requester too.
pub const F_ECHO: u16 = 0x8;
/// `NLM_F_DUMP`: return all objects.
pub const F_DUMP: u16 = 0x300;
/// `NLM_F_REPLACE`: replace an existing object.
pub const F_REPLACE: u16 = 0x100;
/// `NLM_F_EXCL`: fail if the object exists.
pub const F_EXCL: u16 = 0x200;
/// `NLM_F_CREATE`: create the object if it does not exist.
pub const F_CREATE: u16 = 0x400;
/// `NLM_F_APPEND`: add the object after the existing ones.
pub const F_APPEND: u16 = 0x800;

/// `NLM_F_CAPPED`: the error contains only the header of the failed request.
const F_CAPPED: u16 = 0x100;
/// `NLM_F_ACK_TLVS`: attributes follow, see [`ATTR_MSG`].
const F_ACK_TLVS: u16 = 0x200;
/// `NLMSGERR_ATTR_MSG`: the kernel's explanation.
const ATTR_MSG: u16 = 1;

const fn align(len: usize) -> usize {
    (len + 3) & !3
}

/// A request. Numbers are in host byte order unless a method states otherwise.
///
/// An attribute, and so also a list of attributes, has at most 65,535 bytes. A message with a longer one cannot
/// be sent: [`Message::finish`] fails.
#[derive(Clone, Debug)]
pub struct Message {
    bytes: Vec<u8>,
    /// See [`Message::one_answer`].
    pub(super) has_one_answer: bool,
    /// Type and length of the first attribute that is too long.
    too_long: Option<(u16, usize)>,
}

impl Message {
    /// A request of type `kind` with `flags` (`NLM_F_REQUEST` is always set) and the header of the family,
    /// such as `struct ifinfomsg`.
    pub fn new(kind: u16, flags: u16, family_header: &[u8]) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&[0; 4]); // the length, set by `finish`
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&(flags | F_REQUEST).to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]); // sequence number, set by `finish`, and port ID, set by the kernel
        bytes.extend_from_slice(family_header);
        bytes.resize(align(bytes.len()), 0);
        Message { bytes, has_one_answer: false, too_long: None }
    }

    /// Marks a request to which the kernel sends exactly one message if it succeeds, so that it needs no
    /// acknowledgement.
    #[must_use]
    pub fn one_answer(self) -> Self {
        Message { has_one_answer: true, ..self }
    }

    /// Adds an attribute.
    #[must_use]
    pub fn attr(mut self, kind: u16, value: &[u8]) -> Self {
        let len = self.attr_len(kind, ATTR_HEADER + value.len());
        self.bytes.extend_from_slice(&len.to_ne_bytes());
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        self.bytes.extend_from_slice(value);
        self.bytes.resize(align(self.bytes.len()), 0);
        self
    }

    /// Adds an attribute if there is a value.
    #[must_use]
    pub fn attr_if(self, kind: u16, value: Option<impl AsRef<[u8]>>) -> Self {
        match value {
            Some(value) => self.attr(kind, value.as_ref()),
            None => self,
        }
    }

    /// Adds the attributes in `bytes`, such as those of a message of the kernel, except those of the types `without`.
    #[must_use]
    pub fn attrs_in(self, bytes: &[u8], without: &[u16]) -> Self {
        let kept = attrs(bytes).filter(|(kind, _)| !without.contains(kind));
        kept.fold(self, |message, (kind, value)| message.attr(kind, value))
    }

    /// The length field of an attribute. Remembers an attribute that is too long.
    fn attr_len(&mut self, kind: u16, len: usize) -> u16 {
        u16::try_from(len).unwrap_or_else(|_| {
            self.too_long.get_or_insert((kind, len));
            u16::MAX
        })
    }

    /// Adds a text attribute with a terminating zero.
    #[must_use]
    pub fn attr_text(self, kind: u16, text: &str) -> Self {
        let mut bytes = Vec::with_capacity(text.len() + 1);
        bytes.extend_from_slice(text.as_bytes());
        bytes.push(0);
        self.attr(kind, &bytes)
    }

    /// Adds a 32-bit number in host byte order.
    #[must_use]
    pub fn attr_u32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_ne_bytes())
    }

    /// Adds a 32-bit number in network byte order, which nf_tables uses.
    #[must_use]
    pub fn attr_be32(self, kind: u16, value: u32) -> Self {
        self.attr(kind, &value.to_be_bytes())
    }

    /// Adds an attribute that contains the attributes that `fill` adds.
    #[must_use]
    pub fn nest(self, kind: u16, fill: impl FnOnce(Message) -> Message) -> Self {
        self.nest_behind(kind, &[], fill)
    }

    /// As [`Message::nest`], with a header before the nested attributes, as in `VETH_INFO_PEER`.
    #[must_use]
    pub fn nest_behind(mut self, kind: u16, header: &[u8], fill: impl FnOnce(Message) -> Message) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&(kind | NESTED).to_ne_bytes());
        self.bytes.extend_from_slice(header);
        self.bytes.resize(align(self.bytes.len()), 0);
        let mut filled = fill(self);
        let len = filled.attr_len(kind, filled.bytes.len() - start);
        filled.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        filled
    }

    /// Whether the request is a dump.
    pub(super) fn is_dump(&self) -> bool {
        u16::from_ne_bytes([self.bytes[6], self.bytes[7]]) & F_DUMP == F_DUMP
    }

    /// The bytes of the message, with this sequence number and these additional flags.
    ///
    /// # Errors
    /// `EMSGSIZE` if an attribute is too long.
    pub fn finish(self, sequence: u32, flags: u16) -> Result<Vec<u8>, Error> {
        if let Some((kind, len)) = self.too_long {
            let explanation = format!("attribute {kind} has {len} bytes, the limit is {}", u16::MAX);
            return Err(Error::new(Errno::EMSGSIZE, explanation));
        }
        let mut bytes = self.bytes;
        let len = u32::try_from(bytes.len()).map_err(|_| Error::from(Errno::EMSGSIZE))?;
        let flags = u16::from_ne_bytes([bytes[6], bytes[7]]) | flags;
        bytes[0..4].copy_from_slice(&len.to_ne_bytes());
        bytes[6..8].copy_from_slice(&flags.to_ne_bytes());
        bytes[8..12].copy_from_slice(&sequence.to_ne_bytes());
        Ok(bytes)
    }
}

/// The number at `offset` in host byte order; 0 if `bytes` is too short.
pub fn u16_at(bytes: &[u8], offset: usize) -> u16 {
    bytes.get(offset..offset + 2).map_or(0, |b| u16::from_ne_bytes([b[0], b[1]]))
}

/// The number at `offset` in host byte order; 0 if `bytes` is too short.
pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    bytes.get(offset..offset + 4).map_or(0, |b| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]))
}

/// The number at `offset` in host byte order; 0 if `bytes` is too short.
pub fn u64_at(bytes: &[u8], offset: usize) -> u64 {
    bytes.get(offset..offset + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_ne_bytes)
}

/// A message from the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// `NLMSG_*`, or the type of the object.
    pub kind: u16,
    /// `NLM_F_*`.
    pub flags: u16,
    /// The number of the request that it answers.
    pub sequence: u32,
    /// In a message about a change: the port ID of the socket that has asked for it; 0 if the kernel does not say it.
    pub port: u32,
    /// What follows the header.
    pub body: &'a [u8],
}

/// The messages of one datagram.
pub fn messages(mut bytes: &[u8]) -> impl Iterator<Item = Received<'_>> {
    std::iter::from_fn(move || {
        let len = usize::try_from(u32_at(bytes, 0)).ok()?;
        let message = bytes.get(..len).filter(|message| message.len() >= HEADER)?;
        bytes = bytes.get(align(len)..).unwrap_or_default();
        Some(Received {
            kind: u16_at(message, 4),
            flags: u16_at(message, 6),
            sequence: u32_at(message, 8),
            port: u32_at(message, 12),
            body: &message[HEADER..],
        })
    })
}

/// The attributes in `bytes` as pairs of type (without flags) and value. Ends at the first truncated
/// attribute.
pub fn attrs(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let len = usize::from(u16_at(bytes, 0));
        let attr = bytes.get(..len).filter(|attr| attr.len() >= ATTR_HEADER)?;
        bytes = bytes.get(align(len)..).unwrap_or_default();
        Some((u16_at(attr, 2) & TYPE_MASK, &attr[ATTR_HEADER..]))
    })
}

/// The value of the first attribute of type `kind` in `bytes`.
pub fn find_attr(bytes: &[u8], kind: u16) -> Option<&[u8]> {
    attrs(bytes).find(|(k, _)| *k == kind).map(|(_, value)| value)
}

/// The text in the value of an attribute, without the terminating zero.
pub fn text(value: &[u8]) -> String {
    let end = value.iter().position(|byte| *byte == 0).unwrap_or(value.len());
    String::from_utf8_lossy(&value[..end]).into_owned()
}

/// The error in the body of an `NLMSG_ERROR` or `NLMSG_DONE`. `None` if errno is 0.
pub fn failure(flags: u16, body: &[u8]) -> Option<Error> {
    let errno = i32::from_ne_bytes(u32_at(body, 0).to_ne_bytes());
    if errno == 0 {
        return None;
    }
    let mut explanation = String::new();
    if flags & F_ACK_TLVS != 0 {
        // After errno the body has the failed request: its header if capped, otherwise all of it.
        let request = if flags & F_CAPPED != 0 { HEADER } else { u32_at(body, 4) as usize };
        let tlvs = body.get(4 + request..).unwrap_or_default();
        explanation = find_attr(tlvs, ATTR_MSG).map(text).unwrap_or_default();
    }
    Some(Error::new(Errno::from_raw(errno.wrapping_neg()), explanation))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_are_padded_and_found() {
        let message = Message::new(16, F_ACK, &[1, 2, 3, 4])
            .attr_text(3, "eth0")
            .attr_u32(4, 1500)
            .nest(18, |m| m.attr_text(1, "veth").nest_behind(2, &[9; 8], |m| m.attr_u32(7, 7)));
        let bytes = message.finish(5, 0).unwrap();
        assert_eq!(bytes.len() % 4, 0);
        let received: Vec<_> = messages(&bytes).collect();
        assert_eq!(received.len(), 1);
        assert_eq!((received[0].kind, received[0].sequence), (16, 5));
        assert_eq!(received[0].flags, F_REQUEST | F_ACK);
        let body = &received[0].body[4..];
        assert_eq!(text(find_attr(body, 3).unwrap()), "eth0");
        assert_eq!(u32_at(find_attr(body, 4).unwrap(), 0), 1500);
        let nested = find_attr(body, 18).unwrap();
        let inner = &find_attr(nested, 2).unwrap()[8..];
        assert_eq!(u32_at(find_attr(inner, 7).unwrap(), 0), 7);
        assert_eq!(find_attr(body, 5), None);
    }

    #[test]
    fn truncated_input_ends_the_iteration() {
        assert_eq!(attrs(&[]).count(), 0);
        assert_eq!(attrs(&[3, 0, 1, 0]).count(), 0);
        assert_eq!(attrs(&[200, 0, 1, 0, 1]).count(), 0);
        assert_eq!(messages(&[8, 0, 0, 0, 0, 0, 0, 0]).count(), 0);
        assert_eq!(u32_at(&[1, 2], 0), 0);
    }
}
