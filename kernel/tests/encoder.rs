//! The encoder: a decoder reads its output back, and a value that does not fit is an error.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use ferrule_kernel::netlink::Message;
use ferrule_kernel::netlink::message::{HEADER, attrs};
use nix::errno::Errno;
use proptest::prelude::*;

/// An attribute: a value of some bytes, or a list of attributes.
#[derive(Clone, Debug)]
enum Attr {
    Value(usize),
    List(Vec<Attr>),
}

/// Values and lists that often have a length near the limit.
fn attr() -> impl Strategy<Value = Attr> {
    let len = prop_oneof![0..100_usize, 65_500..65_600_usize, 0..33_000_usize];
    let value = len.prop_map(Attr::Value);
    value.prop_recursive(3, 12, 4, |inner| prop::collection::vec(inner, 0..4).prop_map(Attr::List))
}

fn add(message: Message, kind: u16, attr: &Attr) -> Message {
    match attr {
        Attr::Value(len) => message.attr(kind, &vec![kind as u8; *len]),
        Attr::List(list) => message.nest(kind, |message| add_all(message, list)),
    }
}

fn add_all(message: Message, list: &[Attr]) -> Message {
    list.iter().zip(1..).fold(message, |message, (attr, kind)| add(message, kind, attr))
}

/// The length of an attribute with its header, without padding at its end.
fn length(attr: &Attr) -> usize {
    let content = match attr {
        Attr::Value(len) => *len,
        Attr::List(list) => list.iter().map(|attr| length(attr).next_multiple_of(4)).sum(),
    };
    4 + content
}

fn fits(attr: &Attr) -> bool {
    let does_content_fit = match attr {
        Attr::Value(_) => true,
        Attr::List(list) => list.iter().all(fits),
    };
    does_content_fit && length(attr) <= 65_535
}

fn assert_read_back(bytes: &[u8], wanted: &[Attr]) {
    let found: Vec<(u16, &[u8])> = attrs(bytes).collect();
    assert_eq!(found.len(), wanted.len());
    for ((kind, value), (wanted, number)) in found.into_iter().zip(wanted.iter().zip(1..)) {
        assert_eq!(kind, number);
        match wanted {
            Attr::Value(len) => assert!(value.len() == *len && value.iter().all(|byte| *byte == kind as u8)),
            Attr::List(list) => assert_read_back(value, list),
        }
    }
}

proptest! {
    #[test]
    fn a_message_is_complete_or_an_error(list in prop::collection::vec(attr(), 0..4)) {
        match add_all(Message::new(1, 0, &[]), &list).finish(1, 0) {
            Ok(bytes) => {
                prop_assert!(list.iter().all(fits));
                prop_assert_eq!(bytes.len(), u32::from_ne_bytes(bytes[..4].try_into().unwrap()) as usize);
                assert_read_back(&bytes[HEADER..], &list);
            }
            Err(error) => {
                prop_assert!(!list.iter().all(fits));
                prop_assert_eq!(error.errno, Errno::EMSGSIZE);
                prop_assert!(error.explanation.contains("the limit is 65535"));
            }
        }
    }
}
