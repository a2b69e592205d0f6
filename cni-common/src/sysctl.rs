//! Settings under `/proc/sys/net`, which are those of the calling thread's network namespace.

use std::fs;
use std::io;
use std::path::PathBuf;

/// A setting by its path below `/proc/sys`, its parts between slashes: a dot may be part of an interface's name.
fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Whether the setting exists. `net/ipv4/conf/NAME` exists exactly as long as a link of that name does, so this finds a
/// link with a single system call.
pub fn exists(name: &str) -> bool {
    path(name).exists()
}

/// The value, without the line's end.
///
/// # Errors
/// What the kernel said.
pub fn read(name: &str) -> io::Result<String> {
    fs::read_to_string(path(name)).map(|value| value.trim_end().to_owned())
}

/// Sets the value.
///
/// # Errors
/// What the kernel said, with the setting's name.
pub fn write(name: &str, value: &str) -> io::Result<()> {
    fs::write(path(name), value)
        .map_err(|error| io::Error::new(error.kind(), format!("set {name} to {value}: {error}")))
}

/// Sets the value unless it is set already: a read-only `/proc/sys` then does no harm.
///
/// # Errors
/// As [`write()`].
pub fn ensure(name: &str, value: &str) -> io::Result<()> {
    match read(name) {
        Ok(current) if current == value => Ok(()),
        _ => write(name, value),
    }
}
