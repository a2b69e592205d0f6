//! Sysctls. Those under `/proc/sys/net` belong to the network namespace of the calling thread.

use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::PathBuf;

/// [`read`] reads a value with fewer bytes at once. A number has at most 21.
const USUAL_SIZE: usize = 64;

/// The file of a sysctl. `name` has slashes as separators, as in `net/ipv4/ip_forward`, because interface
/// names may contain dots.
fn path(name: &str) -> PathBuf {
    PathBuf::from("/proc/sys").join(name)
}

/// Whether the setting exists.
pub fn exists(name: &str) -> bool {
    path(name).exists()
}

/// Reads a sysctl. The value has no trailing newline.
pub fn read(name: &str) -> io::Result<String> {
    let path = path(name);
    // The kernel returns the whole value at the first read, if it fits.
    let mut value = [0; USUAL_SIZE];
    let len = File::open(&path)?.read(&mut value)?;
    let text = match value.get(..len).and_then(|value| str::from_utf8(value).ok()) {
        Some(text) if len < USUAL_SIZE => text.to_owned(),
        _ => fs::read_to_string(path)?,
    };
    Ok(text.trim_end().to_owned())
}

/// The kernel's ID of this boot (random(4)); empty if it cannot be read.
pub fn boot_id() -> String {
    read("kernel/random/boot_id").unwrap_or_default()
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
