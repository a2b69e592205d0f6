//! Header compression of HTTP/2, as far as a client needs it that calls one method and switches the dynamic table off. Pure.
//!
//! # References
//! RFC 7541; numbers of the static table from its appendix A, lengths of the Huffman codes from appendix B.

/// The entries `:method: POST`, `:scheme: http`, and those whose names the request uses.
const POST: u8 = 3;
const HTTP: u8 = 6;
const AUTHORITY: u8 = 1;
const PATH: u8 = 4;
const CONTENT_TYPE: u8 = 31;
const STATIC_ENTRIES: usize = 61;

/// The header block of a gRPC request. The path has at most 126 bytes.
pub(super) fn request(path: &str) -> Vec<u8> {
    let mut block = vec![0x80 | POST, 0x80 | HTTP, PATH];
    put_text(&mut block, path);
    block.push(AUTHORITY);
    put_text(&mut block, "localhost");
    // The number does not fit into four bits.
    block.extend([0x0f, CONTENT_TYPE - 0x0f]);
    put_text(&mut block, "application/grpc");
    block.push(0);
    put_text(&mut block, "te");
    put_text(&mut block, "trailers");
    block
}

fn put_text(block: &mut Vec<u8>, text: &str) {
    block.push(text.len() as u8);
    block.extend(text.as_bytes());
}

/// Decodes a header block and passes each field on whose name is a text. The static table has no name that this client needs.
///
/// # Errors
/// The text says why the block cannot be decoded.
pub fn decode(block: &[u8], mut take: impl FnMut(&[u8], Vec<u8>)) -> Result<(), &'static str> {
    let mut rest = Reader(block);
    while let Some(&first) = rest.0.first() {
        let prefix = match first {
            0x80.. => 7,
            0x40.. => 6,
            0x20.. => 5,
            _ => 4,
        };
        match (prefix, rest.number(prefix)?) {
            // The size of the dynamic table.
            (5, _) => {}
            (7, 1..=STATIC_ENTRIES) => {}
            (7, _) => return Err("a field of the dynamic table"),
            (_, 0) => take(&rest.text()?, rest.text()?),
            (_, 1..=STATIC_ENTRIES) => drop(rest.text()?),
            _ => return Err("a name of the dynamic table"),
        }
    }
    Ok(())
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    /// An integer whose first byte has `prefix` bits of it.
    fn number(&mut self, prefix: u32) -> Result<usize, &'static str> {
        let mask = (1_usize << prefix) - 1;
        let mut number = usize::from(self.byte()?) & mask;
        if number < mask {
            return Ok(number);
        }
        // A block is far below 2^28 bytes.
        for shift in [0, 7, 14, 21] {
            let byte = self.byte()?;
            number += usize::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err("an endless number")
    }

    fn byte(&mut self) -> Result<u8, &'static str> {
        let (byte, rest) = self.0.split_first().ok_or(CUT_OFF)?;
        self.0 = rest;
        Ok(*byte)
    }

    fn text(&mut self) -> Result<Vec<u8>, &'static str> {
        let is_huffman = self.0.first().is_some_and(|first| first & 0x80 != 0);
        let len = self.number(7)?;
        let (text, rest) = self.0.split_at_checked(len).ok_or(CUT_OFF)?;
        self.0 = rest;
        if is_huffman { huffman(text) } else { Ok(text.to_vec()) }
    }
}

const CUT_OFF: &str = "a header block that is cut off";

/// Decodes a text. The code is canonical: codes of one length follow each other in the order of their symbols, and longer
/// ones follow shorter ones.
fn huffman(bytes: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut text = Vec::new();
    // The bits of an incomplete symbol, their number, and the first code of this length.
    let (mut code, mut len, mut first) = (0_usize, 0_u8, 0_usize);
    for bit in bytes.iter().flat_map(|byte| (0..8).rev().map(move |at| usize::from(byte >> at & 1))) {
        let of_len = |wanted: u8| LENGTHS.iter().enumerate().filter(move |(_, len)| **len == wanted);
        first = (first + of_len(len).count()) << 1;
        (code, len) = (code << 1 | bit, len + 1);
        if let Some((symbol, _)) = code.checked_sub(first).and_then(|nth| of_len(len).nth(nth)) {
            text.push(symbol as u8);
            (code, len, first) = (0, 0, 0);
        } else if len == 30 {
            return Err("a Huffman code that does not exist");
        }
    }
    // The padding is the begin of a code of ones only.
    if len > 7 || code + 1 != 1 << len {
        return Err("a Huffman code that is cut off");
    }
    Ok(text)
}

/// The length of each symbol's code in bits. The end of the text, which is never sent, has 30 ones.
const LENGTHS: [u8; 256] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 30, 28, 28, 28,
    28, 28, 28, 28, 28, 28, 6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6, 5, 5, 5, 6, 6, 6, 6, 6,
    6, 6, 7, 8, 15, 6, 12, 10, 13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 8, 7,
    8, 13, 19, 13, 14, 6, 15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5, 6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7,
    15, 11, 14, 13, 28, 20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23, 24, 24, 22, 23, 24,
    23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24, 22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23,
    23, 21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23, 26, 26, 20, 19, 22, 23, 22, 25, 26,
    26, 26, 27, 27, 26, 24, 25, 19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27, 20, 24, 20,
    21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23, 26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27,
    27, 27, 26,
];

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;

    fn fields(block: &[u8]) -> Result<Vec<(String, String)>, &'static str> {
        let mut fields = Vec::new();
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        decode(block, |name, value| fields.push((text(name), text(&value))))?;
        Ok(fields)
    }

    /// Examples C.4.1 and C.6.1 of the RFC, and the codes that are hard: the longest ones.
    #[test]
    fn huffman_codes() {
        for (bytes, text) in [
            (&b"\xf1\xe3\xc2\xe5\xf2\x3a\x6b\xa0\xab\x90\xf4\xff"[..], &b"www.example.com"[..]),
            (b"\xae\xc3\x77\x1a\x4b", b"private"),
            (
                b"\x9d\x29\xad\x17\x18\x63\xc7\x8f\x0b\x97\xc8\xe9\xae\x82\xae\x43\xd3",
                b"https://www.example.com",
            ),
            (b"\xff\xff\xff\xf3", b"\n"),
            (b"\xff\xff\xff\xfb", b"\x16"),
            (b"", b""),
        ] {
            assert_eq!(huffman(bytes).as_deref(), Ok(text));
        }
        // The code of the end; eight bits of padding; padding of zeros.
        for bytes in [&b"\xff\xff\xff\xff"[..], b"\x1f\xff", b"\x18"] {
            assert!(huffman(bytes).is_err(), "{bytes:?}");
        }
        let kraft: u64 = LENGTHS.iter().map(|len| 1 << (30 - len)).sum();
        assert_eq!(kraft + 1, 1 << 30);
    }

    /// Examples C.6.1 and C.3 of the RFC in parts, and what a gRPC server in Go sends.
    #[test]
    fn header_blocks() {
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        // `:status: 302` and `cache-control: private` with names of the static table.
        assert_eq!(fields(b"\x48\x82\x64\x02\x58\x85\xae\xc3\x77\x1a\x4b"), Ok(vec![]));
        // A new size of the dynamic table, `:status: 200`, a literal without index, one that is never indexed.
        assert_eq!(
            fields(b"\x20\x88\x00\x0bgrpc-status\x018\x10\x01a\x01b").unwrap(),
            [pair("grpc-status", "8"), pair("a", "b")]
        );
        let long = [b"\x00\x01a\x7f\xad\x01".as_slice(), &[b'x'; 300]].concat();
        assert_eq!(fields(&long).unwrap(), [pair("a", &"x".repeat(300))]);
        // An index of two bytes: `www-authenticate`.
        assert_eq!(fields(b"\x0f\x2e\x01x"), Ok(vec![]));
        for block in [
            &b"\x80"[..],
            b"\xbe",
            b"\x7e\x01a",
            b"\x00\x05a",
            b"\x48",
            b"\x00\x01a\x7f\xff\xff\xff\xff\xff\x01",
        ] {
            assert!(fields(block).is_err(), "{block:?}");
        }
    }

    #[test]
    fn the_request() {
        let block = request("/v1.X/List");
        assert_eq!(
            block,
            b"\x83\x86\x04\x0a/v1.X/List\x01\x09localhost\x0f\x10\x10application/grpc\x00\x02te\x08trailers"
        );
        assert!(fields(&block).unwrap().contains(&("te".to_owned(), "trailers".to_owned())));
    }

    proptest! {
        /// No bytes make the decoder panic.
        #[test]
        fn any_block(block in vec(any::<u8>(), 0..100)) {
            let _ = decode(&block, |_, _| {});
        }

        /// Lengths of one, two and three bytes.
        #[test]
        fn any_plain_text(text in "[a-z]{0,400}") {
            let mut block = b"\x00\x01a".to_vec();
            match text.len() {
                len @ 0..127 => block.push(len as u8),
                len => block.extend([127, (len - 127) as u8 & 0x7f | 0x80, ((len - 127) >> 7) as u8]),
            }
            block.extend(text.bytes());
            prop_assert_eq!(fields(&block), Ok(vec![("a".to_owned(), text)]));
        }
    }
}
