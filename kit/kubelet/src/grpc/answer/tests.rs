//! Frames that servers send.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

/// Frames: type, flags, stream, payload.
type Sent<'a> = (u8, u8, u32, &'a [u8]);
const OK: Sent<'static> = (HEADERS, END_HEADERS, 1, b"\x88");
const END: Sent<'static> = (HEADERS, END_HEADERS | END_STREAM, 1, b"\x00\x0bgrpc-status\x010");

fn answer(frames: &[Sent<'_>]) -> Result<Vec<u8>, Error> {
    let mut answer = Answer::new(100);
    for (kind, flags, stream, payload) in frames {
        let mut bytes = Vec::new();
        put_frame(&mut bytes, *kind, *flags, *stream, payload);
        let (header, payload) = bytes.split_first_chunk().unwrap();
        answer.take(Frame::parse(*header)?, payload)?;
    }
    assert!(answer.is_complete());
    answer.into_message()
}

#[test]
fn a_message_in_several_frames() {
    let sent = [
        (SETTINGS, 0, 0, &b""[..]),
        (SETTINGS, ACK, 0, b""),
        OK,
        (WINDOW_UPDATE, 0, 0, b"\0\0\0\x01"),
        (0xee, 0xff, 1, b"unknown"),
        (DATA, 0, 1, b"\0\0\0\0"),
        (DATA, 0, 1, b"\x04ab"),
        (DATA, 0, 3, b"another stream"),
        (GOAWAY, 0, 0, b"\0\0\0\x01\0\0\0\0"),
        (DATA, 0, 1, b"cd"),
        END,
    ];
    assert_eq!(answer(&sent).unwrap(), b"abcd");
    assert_eq!(answer(&[OK, (DATA, 0, 1, b"\0\0\0\0\0"), END]).unwrap(), b"");
}

#[test]
fn replies() {
    let mut answer = Answer::default();
    let mut reply = |kind, flags, payload: &[u8]| {
        answer.take(Frame { len: payload.len(), kind, flags, stream: 0 }, payload).unwrap()
    };
    assert_eq!(reply(SETTINGS, 0, b""), b"\0\0\0\x04\x01\0\0\0\0");
    assert_eq!(reply(PING, 0, b"12345678"), b"\0\0\x08\x06\x01\0\0\0\x0012345678");
    assert!(reply(SETTINGS, ACK, b"").is_empty() && reply(PING, ACK, b"12345678").is_empty());
}

#[test]
fn errors() {
    let refused = b"\x88\x00\x0bgrpc-status\x018\x00\x0cgrpc-message\x0arate%20%zz";
    for (frames, text) in [
        (&[(HEADERS, END_HEADERS | END_STREAM, 1, &refused[..])][..], "rate %zz"),
        (&[(HEADERS, END_HEADERS | END_STREAM, 1, b"\x88")], "sent no status of gRPC"),
        (&[(RST_STREAM, 0, 1, b"\0\0\0\x01")], "reset the stream with error 1"),
        (&[(GOAWAY, 0, 0, b"\0\0\0\0\0\0\0\0")], "sent the end of the connection"),
        (&[OK, END], "sent no message of gRPC, or several"),
        (&[OK, (DATA, 0, 1, b"\x01\0\0\0\0"), END], "sent no message of gRPC, or several"),
        (&[OK, (DATA, 0, 1, b"\0\0\0\0\x02a"), END], "sent no message of gRPC, or several"),
        (&[OK, (DATA, 0, 1, b"\0\0\0\0\x65")], "an answer of more than 100 bytes"),
        (&[OK, (DATA, 0, 1, &[0; 106])], "an answer of more than 100 bytes"),
        (&[OK, (DATA, PADDED, 1, b"\x02a")], "sent a padded frame"),
        (&[(HEADERS, PRIORITY | END_HEADERS, 1, b"\0\0\0\0\0\x88")], "headers in several parts"),
        (&[(HEADERS, END_HEADERS, 1, b"\xbe")], "sent a field of the dynamic table"),
        (&[(HEADERS, 0, 1, b"")], "headers in several parts"),
    ] {
        let error = answer(frames).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
    assert!(Frame::parse([0, 0x40, 1, 0, 0, 0, 0, 0, 1]).is_err());
}

proptest! {
    /// A server may send anything, half of it on the stream of the call: no panic, and at most the memory of the longest answer.
    #[test]
    fn any_frames(frames in vec((0..12_u8, any::<u8>(), 0..3_u32, vec(any::<u8>(), 0..200)), 0..9)) {
        let mut answer = Answer::new(100);
        for (kind, flags, stream, payload) in frames {
            let frame = Frame { len: payload.len(), kind, flags, stream: stream.min(1) };
            if answer.take(frame, &payload).is_err() {
                return Ok(());
            }
            prop_assert!(answer.body.len() <= 100 + PREFIX);
        }
        let _ = answer.into_message();
    }

    #[test]
    fn any_header_of_a_frame(header: [u8; HEADER]) {
        if let Ok(frame) = Frame::parse(header) {
            prop_assert!(frame.len <= LONGEST_FRAME);
        }
    }
}
