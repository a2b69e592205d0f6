//! Puts the answer of a server together from HTTP/2 frames. Pure.
//!
//! # References
//! RFC 9113; <https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md>

use super::{Error, hpack};

/// The stream of the call.
pub(super) const STREAM: u32 = 1;
/// The length of a frame's header.
pub(crate) const HEADER: usize = 9;
/// `SETTINGS_MAX_FRAME_SIZE` of a peer that does not set it.
const LONGEST_FRAME: usize = 16384;
/// A kubelet sends less than 200 bytes of headers.
const LONGEST_BLOCK: usize = 64 * 1024;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
const PUSH_PROMISE: u8 = 5;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

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
pub(crate) struct Frame {
    /// The length of the payload.
    pub(crate) len: usize,
    kind: u8,
    flags: u8,
    stream: u32,
}

impl Frame {
    pub(crate) fn parse([a, b, c, kind, flags, stream @ ..]: [u8; HEADER]) -> Result<Self, Error> {
        let len = u32::from_be_bytes([0, a, b, c]) as usize;
        if len > LONGEST_FRAME {
            return Err(Error::Protocol("a frame that is too long"));
        }
        Ok(Frame { len, kind, flags, stream: u32::from_be_bytes(stream) & 0x7fff_ffff })
    }

    fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// The payload without padding and priority.
    fn content(self, mut payload: &[u8]) -> Result<&[u8], Error> {
        if self.has(PADDED) {
            let (&padding, rest) = payload.split_first().ok_or(BAD_PADDING)?;
            let len = rest.len().checked_sub(usize::from(padding)).ok_or(BAD_PADDING)?;
            payload = &rest[..len];
        }
        match self.kind == HEADERS && self.has(PRIORITY) {
            true => payload.get(5..).ok_or(BAD_PADDING),
            false => Ok(payload),
        }
    }
}

const BAD_PADDING: Error = Error::Protocol("a frame that is shorter than its padding");

/// What the server has answered so far.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// The longest message in bytes.
    longest: usize,
    /// An incomplete header block, and whether the stream ends with it.
    block: Option<(Vec<u8>, bool)>,
    http_status: Vec<u8>,
    grpc_status: Vec<u8>,
    grpc_message: Vec<u8>,
    body: Vec<u8>,
    is_complete: bool,
}

impl Answer {
    pub(crate) fn new(longest: usize) -> Self {
        Answer { longest, ..Answer::default() }
    }

    /// Takes a frame. Returns what the client has to reply, which may be nothing.
    ///
    /// # Errors
    /// The server refuses the call, or breaks the protocol.
    pub(crate) fn take(&mut self, frame: Frame, payload: &[u8]) -> Result<Vec<u8>, Error> {
        let mut reply = Vec::new();
        if (frame.kind == CONTINUATION) != self.block.is_some() {
            return Err(Error::Protocol("headers that are interrupted"));
        }
        match frame.kind {
            SETTINGS if !frame.has(ACK) => put_frame(&mut reply, SETTINGS, ACK, 0, &[]),
            PING if !frame.has(ACK) && payload.len() == 8 => put_frame(&mut reply, PING, ACK, 0, payload),
            GOAWAY if number(payload, 0) & 0x7fff_ffff < STREAM => {
                return Err(Error::Protocol("the end of the connection"));
            }
            PUSH_PROMISE => return Err(Error::Protocol("a request")),
            _ if frame.stream != STREAM => {}
            // 8 is CANCEL; the rest tells how the server has understood the request.
            RST_STREAM => return Err(Error::Reset(number(payload, 0))),
            HEADERS => {
                let content = frame.content(payload)?.to_vec();
                self.block = Some((content, frame.has(END_STREAM)));
                self.end_block(frame)?;
            }
            CONTINUATION => {
                if let Some((block, _)) = &mut self.block {
                    block.extend(payload);
                    if block.len() > LONGEST_BLOCK {
                        return Err(Error::Protocol("endless headers"));
                    }
                }
                self.end_block(frame)?;
            }
            DATA => {
                self.body.extend(frame.content(payload)?);
                if self.message_len().max(self.body.len().saturating_sub(PREFIX)) > self.longest {
                    return Err(Error::TooLong(self.longest));
                }
                self.is_complete |= frame.has(END_STREAM);
            }
            _ => {}
        }
        Ok(reply)
    }

    fn end_block(&mut self, frame: Frame) -> Result<(), Error> {
        if !frame.has(END_HEADERS) {
            return Ok(());
        }
        let Some((block, is_last)) = self.block.take() else { return Ok(()) };
        hpack::decode(&block, |name, value| match name {
            b":status" => self.http_status = value.to_vec(),
            b"grpc-status" => self.grpc_status = value.to_vec(),
            b"grpc-message" => self.grpc_message = value.to_vec(),
            _ => {}
        })
        .map_err(Error::Protocol)?;
        self.is_complete |= is_last;
        Ok(())
    }

    /// The length of the message, from its prefix; 0 if that is incomplete.
    fn message_len(&self) -> usize {
        if self.body.len() < PREFIX { 0 } else { number(&self.body, 1) as usize }
    }

    /// Whether the stream has ended.
    pub(super) fn is_complete(&self) -> bool {
        self.is_complete
    }

    /// The message.
    ///
    /// # Errors
    /// The status of the call, or the server is no gRPC server.
    pub(crate) fn into_message(mut self) -> Result<Vec<u8>, Error> {
        let text = String::from_utf8_lossy(&self.grpc_status);
        match text.parse() {
            Ok(0) => {}
            Ok(code) => return Err(Error::Status { code, message: percent_decoded(&self.grpc_message) }),
            Err(_) if self.http_status == b"200" => return Err(Error::Protocol("no status of gRPC")),
            Err(_) => {
                return Err(Error::Http(String::from_utf8_lossy(&self.http_status).into_owned()));
            }
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

/// Decodes `%41`.
fn percent_decoded(text: &[u8]) -> String {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let [first, after @ ..] = rest {
        let coded = after.get(..2).filter(|_| *first == b'%').and_then(|two| std::str::from_utf8(two).ok());
        match coded.and_then(|two| u8::from_str_radix(two, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests;
