//! The sockets of journald and syslog. A datagram is sent, or dropped if the receiver is slow.

use std::io;
use std::os::unix::net::UnixDatagram;

/// The socket of journald's native protocol: <https://systemd.io/JOURNAL_NATIVE_PROTOCOL>.
pub(super) const JOURNALD: &str = "/run/systemd/journal/socket";
/// The socket of syslog.
pub(super) const SYSLOG: &str = "/dev/log";
/// The tag of the lines.
const TAG: &str = "ferrule";
/// The facility `daemon` in a syslog priority.
const DAEMON: u8 = 3 << 3;

/// # Errors
/// There is no receiver, or its queue is full.
pub(super) fn send(path: &str, datagram: &str) -> io::Result<()> {
    let socket = UnixDatagram::unbound()?;
    socket.set_nonblocking(true)?;
    socket.send_to(datagram.as_bytes(), path).map(drop)
}

/// The fields of an entry: a line each, because no value has a line break.
pub(super) fn for_journald(line: &str, is_error: bool) -> String {
    format!("SYSLOG_IDENTIFIER={TAG}\nPRIORITY={}\nMESSAGE={line}", severity(is_error))
}

/// A message as RFC 3164 describes it, without the time, which the daemon adds.
pub(super) fn for_syslog(line: &str, pid: u32, is_error: bool) -> String {
    format!("<{}>{TAG}[{pid}]: {}", DAEMON | severity(is_error), line.trim_end())
}

/// `LOG_ERR` or `LOG_INFO`.
fn severity(is_error: bool) -> u8 {
    if is_error { 3 } else { 6 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        assert_eq!(for_journald("{}\n", false), "SYSLOG_IDENTIFIER=ferrule\nPRIORITY=6\nMESSAGE={}\n");
        assert_eq!(for_syslog("{}\n", 7, true), "<27>ferrule[7]: {}");
    }
}
