//! Makes the `:authority` of kubelets before 1.26 acceptable.
//!
//! They send the path of the socket, which h2 answers with RST_STREAM(PROTOCOL_ERROR); the plugin watcher of newer ones does
//! so too. [`Filter`] turns each `/` of the value into `.` before h2 sees it. Both are six bits in Huffman's code, so all
//! lengths stay the same, and h2's dynamic table of HPACK holds the changed value for the next request.

mod hpack;

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// `PRI * HTTP/2.0…` (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// Length, type, flags, stream (RFC 9113, section 4.1).
const HEAD: usize = 9;
/// The largest frame that h2 accepts without a setting that it does not make.
const MAX_FRAME: usize = 16_384;
const HEADERS: u8 = 1;
const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 32;

/// A connection whose client may send a path as `:authority`.
#[derive(Debug)]
pub struct Filter<S> {
    stream: S,
    /// Bytes from the client. The first `ready` of them may go on.
    buffer: Vec<u8>,
    ready: usize,
    /// Bytes that go on without a look, beyond those in the buffer.
    pass: usize,
}

impl<S> Filter<S> {
    /// Filters what comes from this new connection.
    pub fn new(stream: S) -> Filter<S> {
        Filter { stream, buffer: Vec::new(), ready: 0, pass: PREFACE }
    }

    /// Looks at whole frames of headers. Everything else goes on as it comes.
    fn advance(&mut self) {
        loop {
            let passed = self.pass.min(self.buffer.len() - self.ready);
            self.ready += passed;
            self.pass -= passed;
            let Some(head) = self.buffer.get(self.ready..self.ready + HEAD) else { return };
            let len = usize::from(head[0]) << 16 | usize::from(head[1]) << 8 | usize::from(head[2]);
            let (kind, flags) = (head[3], head[4]);
            if kind == HEADERS && flags & END_HEADERS != 0 && len <= MAX_FRAME {
                let start = self.ready + HEAD;
                let Some(payload) = self.buffer.get_mut(start..start + len) else { return };
                headers(payload, flags);
            }
            self.pass = HEAD + len;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Filter<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        out: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        while this.ready == 0 {
            let mut bytes = [0; 4096];
            let mut read = ReadBuf::new(&mut bytes);
            std::task::ready!(Pin::new(&mut this.stream).poll_read(cx, &mut read))?;
            if read.filled().is_empty() {
                // The end. A part of a frame is of no use.
                return Poll::Ready(Ok(()));
            }
            this.buffer.extend_from_slice(read.filled());
            this.advance();
        }
        let count = this.ready.min(out.remaining());
        out.put_slice(&this.buffer[..count]);
        this.buffer.drain(..count);
        this.ready -= count;
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Filter<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

impl<S> Connected for Filter<S> {
    type ConnectInfo = ();

    fn connect_info(&self) {}
}

/// Changes the payload of a HEADERS frame. A payload that is not well formed stays as it is from that point on.
fn headers(payload: &mut [u8], flags: u8) {
    let padded = flags & PADDED != 0;
    let padding = if padded { payload.first().map_or(0, |byte| usize::from(*byte)) } else { 0 };
    let start = usize::from(padded) + if flags & PRIORITY != 0 { 5 } else { 0 };
    let end = payload.len().saturating_sub(padding);
    if let Some(block) = payload.get_mut(start..end) {
        hpack::fields(block);
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    /// Huffman's code of a text of the characters that the tests use (RFC 7541, appendix B).
    fn huffman(text: &str) -> Vec<u8> {
        let code = |c| match c {
            '/' => "011000",
            '.' => "010111",
            'a' => "00011",
            'k' => "1110101",
            '_' => "100010",
            '|' => "111111111111100",
            _ => panic!("{c}"),
        };
        let mut bits: String = text.chars().map(code).collect();
        while !bits.len().is_multiple_of(8) {
            bits.push('1');
        }
        bits.as_bytes()
            .chunks(8)
            .map(|byte| u8::from_str_radix(std::str::from_utf8(byte).unwrap(), 2).unwrap())
            .collect()
    }

    fn text(huffman: bool, value: &[u8]) -> Vec<u8> {
        [&[u8::try_from(value.len()).unwrap() | if huffman { 0x80 } else { 0 }], value].concat()
    }

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let len = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&len[1..], &[HEADERS, flags, 0, 0, 0, 1], payload].concat()
    }

    async fn filtered(bytes: &[u8], step: usize) -> Vec<u8> {
        let mut input = tokio_test_chunks(bytes, step);
        let mut read = Vec::new();
        Filter::new(&mut input).read_to_end(&mut read).await.unwrap();
        read
    }

    /// A stream that gives `step` bytes at a time.
    fn tokio_test_chunks(bytes: &[u8], step: usize) -> impl AsyncRead + Unpin {
        struct Chunks(Vec<u8>, usize);
        impl AsyncRead for Chunks {
            fn poll_read(
                mut self: Pin<&mut Self>,
                _: &mut Context<'_>,
                out: &mut ReadBuf<'_>,
            ) -> Poll<io::Result<()>> {
                let count = self.1.min(self.0.len()).min(out.remaining());
                out.put_slice(&self.0[..count]);
                self.0.drain(..count);
                Poll::Ready(Ok(()))
            }
        }
        Chunks(bytes.to_vec(), step)
    }

    #[tokio::test]
    async fn paths_become_acceptable() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        let path = "/a.k/_|/a";
        let clean = ".a.k._|.a";
        let block = |authority: &str, other: &str| {
            [
                &[0x83, 0x86][..],
                // Literal without indexing, with a name of its own; then `:path` (4), which must keep its slashes.
                &[0x00],
                &text(false, b"x-a"),
                &text(false, other.as_bytes()),
                &[0x44],
                &text(true, &huffman(other)),
                // A new size of the table, and `:authority` with indexing.
                &[0x3f, 0x21, 0x41],
                &text(true, &huffman(authority)),
                &[0x01],
                &text(false, authority.as_bytes()),
                &[0xbe],
            ]
            .concat()
        };
        let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
        let data = [&[0, 0, 2, 0, 0, 0, 0, 0, 1][..], b"//"].concat();
        let stream = |authority| {
            let padded = [&[2, 0, 0, 0, 0, 16][..], &block(authority, path), b"//"].concat();
            let frames = [
                frame(END_HEADERS, &block(authority, path)),
                data.clone(),
                frame(END_HEADERS | PADDED | PRIORITY, &padded),
            ];
            [&preface[..], &settings, &frames.concat()].concat()
        };
        for step in [1, 7, 4096] {
            assert_eq!(filtered(&stream(path), step).await, stream(clean), "{step} bytes at a time");
        }
    }

    #[tokio::test]
    async fn nonsense_passes() {
        let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
        for payload in [
            &b""[..],
            &[0x41],
            &[0x41, 0x7f],
            &[0x7f, 0xff, 0xff, 0xff, 0xff],
            &[0x41, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ] {
            for flags in [END_HEADERS, END_HEADERS | PADDED, END_HEADERS | PRIORITY] {
                let bytes = [preface.clone(), frame(flags, payload)].concat();
                assert_eq!(filtered(&bytes, 3).await, bytes);
            }
        }
    }
}
