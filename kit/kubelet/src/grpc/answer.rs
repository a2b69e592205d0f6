//! Puts the answer of a server together from HTTP/2 frames. Pure.
//!
//! # References
//! RFC 9113; <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use super::{Error, hpack};

/// The stream of the call.
pub(super) const STREAM: u32 = 1;
/// The length of a frame's header.
pub const HEADER: usize = 9;
/// `SETTINGS_MAX_FRAME_SIZE` of a peer that does not set it.
pub(super) const LONGEST_FRAME: usize = 16384;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;

const ACK: u8 = 1;
pub(super) const END_STREAM: u8 = 1;
pub(super) const END_HEADERS: u8 = 4;
const PADDED: u8 = 8;
const PRIORITY: u8 = 0x20;

/// Appends a frame.
pub(super) fn put_frame(bytes: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    // All of ours are short.
    bytes.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    bytes.extend([kind, flags]);
    bytes.extend(stream.to_be_bytes());
    bytes.extend(payload);
}

/// The header of a frame.
#[derive(Clone, Copy, Debug)]
pub struct Frame {
    /// The length of the payload.
    pub len: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    /// Decodes the header.
    ///
    /// # Errors
    /// The frame is longer than this client allows.
    pub fn parse([a, b, c, kind, flags, stream @ ..]: [u8; HEADER]) -> Result<Self, Error> {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > LONGEST_FRAME {
            return Err(Error::Protocol("a frame that is too long"));
        }
        Ok(Frame { len, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }
}

/// What the server has answered so far.
#[derive(Debug, Default)]
pub struct Answer {
    /// The longest message in bytes.
    longest: usize,
    status: Vec<u8>,
    message: Vec<u8>,
    body: Vec<u8>,
    is_complete: bool,
}

impl Answer {
    /// The answer before the first frame. Its message may have so many bytes.
    pub fn new(longest: usize) -> Self {
        Answer { longest, ..Answer::default() }
    }

    /// Takes a frame. Returns what the client has to reply, which may be nothing.
    ///
    /// A server in Go neither pads frames nor sends priorities, and its headers fit into one frame.
    ///
    /// # Errors
    /// The server refuses the call, breaks the protocol, or sends what no kubelet sends.
    pub fn take(&mut self, frame: Frame, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let mut reply = Vec::new();
        match frame.kind {
            SETTINGS if !frame.has(ACK) => put_frame(&mut reply, SETTINGS, ACK, 0, &[]),
            PING if !frame.has(ACK) => put_frame(&mut reply, PING, ACK, 0, payload),
            GOAWAY if number(payload, 0) & 0x7fff_ffff < STREAM => {
                return Err(Error::Protocol("the end of the connection"));
            }
            RST_STREAM | HEADERS | DATA if frame.stream != STREAM => {}
            // 8 is CANCEL; the rest says how the server has understood the request.
            RST_STREAM => return Err(Error::Reset(number(payload, 0))),
            HEADERS | DATA if frame.has(PADDED) => return Err(Error::Protocol("a padded frame")),
            HEADERS if frame.has(PRIORITY) || !frame.has(END_HEADERS) => {
                return Err(Error::Protocol("headers in several parts"));
            }
            HEADERS => {
                hpack::decode(payload, |name, value| match name {
                    b"grpc-status" => self.status = value,
                    b"grpc-message" => self.message = value,
                    _ => {}
                })
                .map_err(Error::Protocol)?;
                self.is_complete |= frame.has(END_STREAM);
            }
            DATA => {
                self.body.extend(payload);
                if self.message_len().max(self.body.len().saturating_sub(PREFIX)) > self.longest {
                    return Err(Error::TooLong(self.longest));
                }
                self.is_complete |= frame.has(END_STREAM);
            }
            _ => {}
        }
        Ok(reply)
    }

    /// The length of the message, from its prefix; 0 if that is incomplete.
    fn message_len(&self) -> usize {
        number(&self.body, 1) as usize
    }

    /// Whether the stream has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The message.
    ///
    /// # Errors
    /// The status of the call, or the server is no gRPC server.
    pub fn into_message(mut self) -> Result<Vec<u8>, Error> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        match text(&self.status).parse() {
            Ok(0) => {}
            Ok(code) => return Err(Error::Status { code, message: percent_decoded(&text(&self.message)) }),
            Err(_) => return Err(Error::Protocol("no status of gRPC")),
        }
        if self.body.len() < PREFIX || self.body[0] != 0 || self.message_len() != self.body.len() - PREFIX {
            return Err(Error::Protocol("no message of gRPC, or several"));
        }
        Ok(self.body.split_off(PREFIX))
    }
}

/// The length of the prefix of a message: whether it is compressed, and its length.
const PREFIX: usize = 5;

/// The number of four bytes at an offset; 0 beyond the end.
fn number(bytes: &[u8], offset: usize) -> u32 {
    let bytes = bytes.get(offset..).and_then(|bytes| bytes.first_chunk());
    u32::from_be_bytes(bytes.copied().unwrap_or_default())
}

/// Decodes `%41`. Leaves other text as it is.
fn percent_decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(b'%'));
        bytes.extend(part[if byte.is_some() { 2 } else { 0 }..].bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
