//! A client of D-Bus that calls methods whose arguments are texts.
//!
//! That is all that firewalld needs. A library costs more than the whole firewall plugin: zbus 6.2.1 adds 545 kB to the program
//! and runs threads, its wire format alone 151 kB, rustbus 0.19.3 102 kB, and that one waits without limit while it
//! authenticates. Every exchange here has a time limit.
//!
//! # References
//! D-Bus Specification 0.43, "Message Protocol" and "Authentication Protocol".

use std::io::{self, ErrorKind, Read as _, Write as _};
use std::os::linux::net::SocketAddrExt as _;
use std::time::Duration;

use ferrule_kernel::observer;
use ferrule_kernel::unix_stream::{SocketAddr, TimedStream};

/// The limit of one exchange. A bus that hangs must not stop all containers of the node.
const LIMIT: Duration = Duration::from_secs(2);
/// The longest answer in bytes. Answers are a boolean, a name or an error.
const LONGEST: usize = 64 * 1024;
const HEADER: usize = 16;
const CALL: u8 = 1;
const RETURN: u8 = 2;
const ERROR: u8 = 3;

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The bus cannot be reached, or does not answer in time.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The answer is an error with this text.
    #[error("{0}")]
    Refused(String),
}

/// A method of an object.
#[derive(Clone, Copy, Debug)]
pub struct Method<'a> {
    /// The name of the service.
    pub service: &'a str,
    /// The path of the object.
    pub path: &'a str,
    /// The interface.
    pub interface: &'a str,
    /// The method's name.
    pub name: &'a str,
}

/// A connection to the system bus.
pub struct Bus {
    stream: TimedStream,
    serial: u32,
}

impl Bus {
    /// Connects to the system bus as root: at `DBUS_SYSTEM_BUS_ADDRESS`, or at the usual socket.
    ///
    /// # Errors
    /// There is no bus, it refuses the connection, or it does not answer in time.
    pub fn connect() -> Result<Self, Error> {
        let given = std::env::var("DBUS_SYSTEM_BUS_ADDRESS").unwrap_or_default();
        let address = if given.is_empty() { "unix:path=/run/dbus/system_bus_socket" } else { given.as_str() };
        let socket = socket_of(address).ok_or_else(|| {
            io::Error::new(ErrorKind::InvalidInput, format!("unsupported bus address {address:?}"))
        })?;
        let stream = TimedStream::connect(socket, LIMIT)
            .map_err(|error| io::Error::new(error.kind(), format!("connect to {address}: {error}")))?;
        let mut bus = Bus { stream, serial: 0 };
        // The user ID 0 as hexadecimal digits of its decimal digits.
        bus.stream.write_all(b"\0AUTH EXTERNAL 30\r\n")?;
        let mut line = Vec::new();
        while !line.ends_with(b"\r\n") {
            line.extend(bus.read(1)?);
            if line.len() > 512 {
                return Err(invalid("endless answer to the authentication").into());
            }
        }
        if !line.starts_with(b"OK ") {
            return Err(Error::Refused(String::from_utf8_lossy(&line).trim_end().to_owned()));
        }
        bus.stream.write_all(b"BEGIN\r\n")?;
        let (service, path) = ("org.freedesktop.DBus", "/org/freedesktop/DBus");
        bus.call(Method { service, path, interface: service, name: "Hello" }, &[])?;
        Ok(bus)
    }

    /// Calls a method with these arguments. Returns the body of the answer's first value: see [`is_true`].
    ///
    /// # Errors
    /// The text of an error that the service answers; an error of the connection, or the time limit.
    pub fn call(&mut self, method: Method<'_>, arguments: &[&str]) -> Result<Vec<u8>, Error> {
        self.serial += 1;
        self.stream.set_limit(LIMIT);
        self.stream.write_all(&encode(method, arguments, self.serial))?;
        loop {
            let header = self.read(HEADER)?;
            let number = Numbers { is_big_endian: header[0] == b'B' };
            let body = number.at(&header, 4) as usize;
            let fields = number.at(&header, 12) as usize;
            if body > LONGEST || fields > LONGEST {
                return Err(invalid("an answer that is too long").into());
            }
            let rest = self.read(fields.next_multiple_of(8) + body)?;
            let (fields, body) = (&rest[..fields], &rest[fields.next_multiple_of(8)..]);
            if number.reply_serial(fields) != Some(self.serial) {
                continue;
            }
            match header[1] {
                RETURN => return Ok(body.to_vec()),
                ERROR => return Err(Error::Refused(number.text(body))),
                _ => {}
            }
        }
    }

    fn read(&mut self, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        let read = observer::step("D-Bus", || self.stream.read_exact(&mut bytes));
        read.map(|()| bytes).map_err(|error| match error.kind() {
            ErrorKind::TimedOut => io::Error::new(
                ErrorKind::TimedOut,
                format!("no answer from the system bus within {} s", LIMIT.as_secs()),
            ),
            _ => error,
        })
    }
}

/// Whether the answer is the boolean `true`.
pub fn is_true(body: &[u8]) -> bool {
    body.len() >= 4 && body[..4] != [0; 4]
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, format!("the system bus sent {what}"))
}

/// The first socket of a bus address such as `unix:path=/run/dbus/system_bus_socket,guid=0123`.
fn socket_of(address: &str) -> Option<SocketAddr> {
    address.split(';').find_map(|one| {
        let keys = one.strip_prefix("unix:")?;
        keys.split(',').find_map(|pair| match pair.split_once('=')? {
            ("path", path) => SocketAddr::from_pathname(path).ok(),
            ("abstract", name) => SocketAddr::from_abstract_name(name).ok(),
            _ => None,
        })
    })
}

/// The bytes of a method call.
fn encode(method: Method<'_>, arguments: &[&str], serial: u32) -> Vec<u8> {
    let mut body = Vec::new();
    for argument in arguments {
        put_text(&mut body, argument);
    }
    let signature = "s".repeat(arguments.len());
    let mut fields = Vec::new();
    // PATH, INTERFACE, MEMBER, DESTINATION
    for (code, kind, value) in [
        (1, b'o', method.path),
        (2, b's', method.interface),
        (3, b's', method.name),
        (6, b's', method.service),
    ] {
        pad(&mut fields, 8);
        fields.extend([code, 1, kind, 0]);
        put_text(&mut fields, value);
    }
    if !signature.is_empty() {
        pad(&mut fields, 8);
        fields.extend([8, 1, b'g', 0, u8::try_from(signature.len()).unwrap_or(u8::MAX)]);
        fields.extend(signature.bytes().chain([0]));
    }
    let mut message = vec![b'l', CALL, 0, 1];
    for number in [body.len(), serial as usize, fields.len()] {
        // No message has 4 GiB.
        message.extend(u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes());
    }
    message.extend(fields);
    pad(&mut message, 8);
    message.extend(body);
    message
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    pad(bytes, 4);
    bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend(text.bytes().chain([0]));
}

/// Decodes numbers in the byte order of a message.
pub struct Numbers {
    /// The order of the bytes.
    pub is_big_endian: bool,
}

impl Numbers {
    /// The number of four bytes at an offset; 0 beyond the end.
    pub fn at(&self, bytes: &[u8], offset: usize) -> u32 {
        let bytes = bytes.get(offset..).and_then(|bytes| bytes.first_chunk()).copied().unwrap_or_default();
        if self.is_big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) }
    }

    /// The text at the start of a body; empty if the body has no text.
    pub fn text(&self, body: &[u8]) -> String {
        let text = body.get(4..).and_then(|text| text.get(..self.at(body, 0) as usize));
        String::from_utf8_lossy(text.unwrap_or_default()).into_owned()
    }

    /// The value of the header field REPLY_SERIAL.
    pub fn reply_serial(&self, fields: &[u8]) -> Option<u32> {
        let mut at = 0_usize;
        while let [code, 1, kind, 0, ..] = fields.get(at..)? {
            at += 4;
            match (code, kind) {
                (5, b'u') => return Some(self.at(fields, at)),
                (_, b'u') => at += 4,
                (_, b'g') => at += 2 + usize::from(*fields.get(at)?),
                (_, b's' | b'o') => at += 5 + self.at(fields, at) as usize,
                _ => return None,
            }
            at = at.next_multiple_of(8);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::thread;

    use super::*;

    const QUERY: Method<'_> = Method { service: "a.b", path: "/a/b", interface: "a.b.c", name: "q" };

    #[test]
    fn a_call_has_the_layout_of_the_specification() {
        let message = encode(QUERY, &["trusted", "10.1.2.3/32"], 7);
        assert_eq!(message[..16], [b'l', 1, 0, 1, 28, 0, 0, 0, 7, 0, 0, 0, 72, 0, 0, 0]);
        assert_eq!(message[16..32], *b"\x01\x01o\0\x04\0\0\0/a/b\0\0\0\0");
        assert_eq!(message[80..88], *b"\x08\x01g\0\x02ss\0");
        let body = &message[message.len() - 28..];
        assert_eq!(body, b"\x07\0\0\0trusted\0\x0b\0\0\x0010.1.2.3/32\0");
        assert_eq!((message.len() - 28) % 8, 0);
    }

    #[test]
    fn answers_of_both_byte_orders() {
        let little = Numbers { is_big_endian: false };
        let fields = b"\x06\x01s\0\x02\0\0\0:1\0\0\0\0\0\0\x08\x01g\0\x01b\0\0\x05\x01u\0\x09\0\0\0";
        assert_eq!(little.reply_serial(fields), Some(9));
        assert_eq!(little.reply_serial(&fields[..16]), None);
        assert_eq!(little.text(b"\x02\0\0\0no\0"), "no");
        let big = Numbers { is_big_endian: true };
        assert_eq!(big.reply_serial(b"\x05\x01u\0\0\0\0\x09"), Some(9));
        assert_eq!(big.text(b"\0\0\0\x02no\0"), "no");
        // A length beyond the end is not followed.
        assert_eq!(little.text(b"\xff\0\0\0no\0"), "");
        assert!(is_true(&[1, 0, 0, 0]) && !is_true(&[0; 4]) && !is_true(&[]));
    }

    #[test]
    fn an_answer_has_at_most_64_kib() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bus");
        let listener = UnixListener::bind(&path).unwrap();
        let answered = |length: usize| {
            let socket = SocketAddr::from_pathname(&path).unwrap();
            let mut bus = Bus { stream: TimedStream::connect(socket, LIMIT).unwrap(), serial: 0 };
            let (mut peer, _) = listener.accept().unwrap();
            let length = u32::try_from(length).unwrap().to_le_bytes();
            let header = [&[b'l', RETURN, 0, 1], &length[..], &[1, 0, 0, 0, 8, 0, 0, 0]].concat();
            let fields = b"\x05\x01u\0\x01\0\0\0";
            let body = vec![7; LONGEST + 1];
            thread::spawn(move || {
                // A peer that ends with unread bytes resets the connection.
                let _ = peer.read(&mut [0; 4096]);
                let _ = peer.write_all(&[&header[..], fields, &body].concat());
                let _ = io::copy(&mut peer, &mut io::sink());
            });
            bus.call(QUERY, &[])
        };
        assert_eq!(answered(LONGEST).unwrap().len(), LONGEST);
        assert!(answered(LONGEST + 1).unwrap_err().to_string().contains("too long"));
    }

    #[test]
    fn addresses_of_buses() {
        let path = |address: &str| socket_of(address)?.as_pathname().map(|path| path.display().to_string());
        assert_eq!(path("unix:path=/run/bus,guid=01").as_deref(), Some("/run/bus"));
        assert_eq!(path("tcp:host=a;unix:guid=1,path=/b").as_deref(), Some("/b"));
        assert_eq!(socket_of("unix:abstract=/c").unwrap().as_abstract_name(), Some(&b"/c"[..]));
        assert!(socket_of("tcp:host=a").is_none());
    }
}
