//! A gRPC client in raw frames, for an `:authority` that no Rust client sends: the path of the socket.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;

use anyhow::{bail, ensure};

/// The `:authority` of a kubelet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Authority {
    /// `localhost` (1.26 and later).
    Localhost,
    /// The path of the socket, in Huffman's code (before).
    Huffman,
    /// The path of the socket, in plain bytes.
    Plain,
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// One connection.
#[derive(Debug)]
pub struct RawClient {
    stream: UnixStream,
    authority: Option<Vec<u8>>,
    next: u32,
    /// Bytes of messages of the current call.
    data: Vec<u8>,
}

impl RawClient {
    /// Connects to a plugin. The first call puts the authority into the dynamic table, the later ones take it from there.
    pub fn connect(socket: &Path, authority: Authority) -> anyhow::Result<RawClient> {
        let mut stream = UnixStream::connect(socket)?;
        stream.write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")?;
        let path = socket.to_str().unwrap_or_default();
        let authority = match authority {
            Authority::Localhost => text(b"localhost", false),
            Authority::Plain => text(path.as_bytes(), false),
            Authority::Huffman => text(&huffman(path)?, true),
        };
        let mut client = RawClient { stream, authority: Some(authority), next: 1, data: Vec::new() };
        client.send(SETTINGS, 0, 0, &[])?;
        // Room for large lists.
        client.send(WINDOW_UPDATE, 0, 0, &[0x3f, 0, 0, 0])?;
        Ok(client)
    }

    /// Another handle of the connection.
    pub fn stream(&self) -> anyhow::Result<UnixStream> {
        Ok(self.stream.try_clone()?)
    }

    /// Starts a call with this request.
    pub fn call(&mut self, method: &str, request: &[u8]) -> anyhow::Result<()> {
        // :method POST and :scheme http of the static table; :path (4) as text.
        let mut block = vec![0x83, 0x86, 0x04];
        block.extend(text(method.as_bytes(), false));
        match self.authority.take() {
            Some(authority) => {
                block.push(0x41);
                block.extend(authority);
            }
            // The first entry of the dynamic table.
            None => block.push(0x80 | 62),
        }
        for (name, value) in [("content-type", "application/grpc"), ("te", "trailers")] {
            block.push(0x00);
            block.extend(text(name.as_bytes(), false));
            block.extend(text(value.as_bytes(), false));
        }
        let id = self.next;
        self.next += 2;
        self.data.clear();
        self.send(HEADERS, END_HEADERS, id, &block)?;
        self.send(WINDOW_UPDATE, 0, id, &[0x3f, 0, 0, 0])?;
        let len = u32::try_from(request.len())?.to_be_bytes();
        self.send(DATA, END_STREAM, id, &[&[0], &len[..], request].concat())
    }

    /// The next message of the call.
    pub fn message(&mut self) -> anyhow::Result<Vec<u8>> {
        let id = self.next - 2;
        loop {
            if let Some(len) = self.data.get(1..5) {
                let end = 5 + usize::try_from(u32::from_be_bytes(len.try_into()?))?;
                if self.data.len() >= end {
                    let message = self.data[5..end].to_vec();
                    self.data.drain(..end);
                    return Ok(message);
                }
            }
            let mut head = [0; 9];
            self.stream.read_exact(&mut head)?;
            let [l0, l1, l2, kind, flags, s0, s1, s2, s3] = head;
            let mut payload = vec![0; usize::try_from(u32::from_be_bytes([0, l0, l1, l2]))?];
            self.stream.read_exact(&mut payload)?;
            let of_call = u32::from_be_bytes([s0, s1, s2, s3]) == id;
            match kind {
                SETTINGS if flags & 1 == 0 => self.send(SETTINGS, 1, 0, &[])?,
                PING if flags & 1 == 0 => self.send(PING, 1, 0, &payload)?,
                DATA if of_call => self.data.extend(payload),
                RST_STREAM if of_call => bail!("the plugin has reset the stream: {payload:?}"),
                GOAWAY => bail!("the plugin has gone away"),
                _ => {}
            }
            ensure!(!(of_call && kind == HEADERS && flags & END_STREAM != 0), "the call is over");
        }
    }

    fn send(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) -> anyhow::Result<()> {
        let len = u32::try_from(payload.len())?.to_be_bytes();
        let head = [&len[1..], &[kind, flags], &stream.to_be_bytes()].concat();
        self.stream.write_all(&[&head, payload].concat())?;
        Ok(())
    }
}

/// A text of HPACK. Its length has up to two bytes here.
fn text(bytes: &[u8], is_huffman: bool) -> Vec<u8> {
    let bit = if is_huffman { 0x80 } else { 0 };
    let mut text = match u8::try_from(bytes.len()) {
        Ok(len) if len < 0x7f => vec![bit | len],
        Ok(len) => vec![bit | 0x7f, len - 0x7f],
        Err(_) => panic!("{} bytes", bytes.len()),
    };
    text.extend(bytes);
    text
}

/// Huffman's code of a path (RFC 7541, appendix B).
fn huffman(path: &str) -> anyhow::Result<Vec<u8>> {
    let mut bits = String::new();
    for c in path.chars() {
        let (five, six, seven) =
            ("012aceiost", " %-./3456789=A_bdfghlmnpru", ":BCDEFGHIJKLMNOPQRSTUVWYjkqvwxyz");
        let place = |list: &str| list.find(c);
        bits += &match (place(five), place(six), place(seven)) {
            (Some(at), ..) => format!("{at:05b}"),
            (_, Some(at), _) => format!("{:06b}", 0x14 + at),
            (.., Some(at)) => format!("{:07b}", 0x5c + at),
            _ => match c {
                'X' => "11111100".to_owned(),
                'Z' => "11111101".to_owned(),
                _ => bail!("no code for {c:?} here"),
            },
        };
    }
    bits.extend(std::iter::repeat_n('1', bits.len().wrapping_neg() % 8));
    let byte = |bits: &[u8]| bits.iter().fold(0, |byte, bit| byte << 1 | (bit - b'0'));
    Ok(bits.as_bytes().chunks(8).map(byte).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_example_of_the_rfc() {
        // RFC 7541, appendix C.4.1.
        let expected = [0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff];
        assert_eq!(huffman("www.example.com").unwrap(), expected);
    }
}
