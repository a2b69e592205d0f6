//! A client of gRPC that makes one call over a Unix socket.
//!
//! A question to the kubelet needs only that. A connection serves one call, so there are no streams to tell apart. The dynamic table of
//! header compression is switched off, and the window is as long as the longest answer, so the client keeps no state of them. See
//! docs/decisions/an-own-grpc-client.md for the sizes of libraries.

pub mod answer;
pub mod hpack;

use std::io::{self, BufReader, Read as _, Write as _};
use std::path::Path;
use std::time::Duration;

use ferrule_kernel::observer;
use ferrule_kernel::unix_stream::{SocketAddr, TimedStream};

use self::answer::{
    Answer, DATA, END_HEADERS, END_STREAM, Frame, HEADER, HEADERS, LONGEST_FRAME, SETTINGS, STREAM,
    WINDOW_UPDATE, put_frame,
};

/// The status of a call that came too soon: `RESOURCE_EXHAUSTED`.
pub const RESOURCE_EXHAUSTED: u32 = 8;
/// The longest answer in bytes, as Multus has it. A node of 250 pods has 100 KB.
const LONGEST: usize = 16 << 20;
/// `SETTINGS_HEADER_TABLE_SIZE` and others.
const HEADER_TABLE_SIZE: u8 = 1;
const ENABLE_PUSH: u8 = 2;
const INITIAL_WINDOW_SIZE: u8 = 4;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The server cannot be reached, closes the connection, or does not answer in time.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server breaks the protocol.
    #[error("the server sent {0}")]
    Protocol(&'static str),
    /// The server refuses the request; the error code of HTTP/2.
    #[error("the server reset the stream with error {0} of HTTP/2")]
    Reset(u32),
    /// The answer is longer than this.
    #[error("the server sent an answer of more than {0} bytes")]
    TooLong(usize),
    /// The status of the call.
    #[error("{message} (code {code} of gRPC)")]
    Status {
        /// Its number.
        code: u32,
        /// Its text.
        message: String,
    },
}

/// Calls a method, such as `/v1.PodResourcesLister/List`, with an encoded message. Returns the answer's.
///
/// # Errors
/// See [`Error`]. The call ends within the limit.
pub fn call(socket: &Path, method: &str, message: &[u8], limit: Duration) -> Result<Vec<u8>, Error> {
    observer::step("gRPC", || {
        let stream = TimedStream::connect(SocketAddr::from_pathname(socket)?, limit)?;
        exchange(stream, &request(method, message))
    })
}

fn exchange(mut stream: TimedStream, request: &[u8]) -> Result<Vec<u8>, Error> {
    // A server may refuse and close the connection before it has read everything. Its answer says more than this error.
    let _ = stream.write_all(request);
    let mut stream = BufReader::with_capacity(HEADER + LONGEST_FRAME, stream);
    let mut answer = Answer::new(LONGEST);
    let mut payload = Vec::new();
    while !answer.is_complete() {
        let mut header = [0; HEADER];
        stream.read_exact(&mut header)?;
        let frame = Frame::parse(header)?;
        payload.resize(frame.len, 0);
        stream.read_exact(&mut payload)?;
        let reply = answer.take(frame, &payload)?;
        if !reply.is_empty() {
            // As above.
            let _ = stream.get_mut().write_all(&reply);
        }
    }
    answer.into_message()
}

/// Everything that the client sends, except replies.
fn request(method: &str, message: &[u8]) -> Vec<u8> {
    let window = (LONGEST + 65_535) as u32;
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    let settings = [(HEADER_TABLE_SIZE, 0), (ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, window)];
    let settings: Vec<u8> = { settings.iter() }
        .flat_map(|(key, value)| [&[0, *key], &value.to_be_bytes()[..]].concat())
        .collect();
    put_frame(&mut bytes, SETTINGS, 0, 0, &settings);
    // Of the connection, which begins with 65,535 bytes.
    put_frame(&mut bytes, WINDOW_UPDATE, 0, 0, &(LONGEST as u32).to_be_bytes());
    put_frame(&mut bytes, HEADERS, END_HEADERS, STREAM, &hpack::request(method));
    let prefixed = [&[0], &(message.len() as u32).to_be_bytes()[..], message].concat();
    put_frame(&mut bytes, DATA, END_STREAM, STREAM, &prefixed);
    bytes
}
