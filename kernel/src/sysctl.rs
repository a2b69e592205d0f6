//! Sysctls under `/proc/sys/net`. They belong to the network namespace of the calling thread.

use std::fs;
use std::io;
use std::path::PathBuf;

/// The file of a sysctl. `name` has slashes as separators, as in `net/ipv4/ip_forward`, because interface
/// names may contain dots.
fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Whether the setting exists. `net/ipv4/conf/NAME` exists exactly as long as a link of that name does, so this finds a
/// link with a single system call.
pub fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Reads a sysctl. The value has no trailing newline.
pub fn read(name: &str) -> io::Result<String> {
    fs::read_to_string(path(name)).map(|value| value.trim_end().to_owned())
}

/// Sets a sysctl.
///
/// # Errors
/// The message names the sysctl and the value.
pub fn write(name: &str, value: &str) -> io::Result<()> {
    fs::write(path(name), value)
        .map_err(|error| io::Error::new(error.kind(), format!("set {name} to {value}: {error}")))
}

/// Sets a sysctl if it has another value. So a read-only `/proc/sys` is not an error if the value is already
/// set.
pub fn ensure(name: &str, value: &str) -> io::Result<()> {
    match read(name) {
        Ok(current) if current == value => Ok(()),
        _ => write(name, value),
    }
}
