//! Whether there is a log, and where it goes: CNI_FERRULE_LOG, or else the line `log = VALUE` of ferrule.conf.
//!
//! ```text
//! VALUE = off | journald | syslog | file [SIZE] | /PATH [SIZE]        SIZE = NUMBER[k|M|G]
//! ```

use std::path::PathBuf;

/// The configuration file. `ferrule log` reads it too.
pub const CONFIG: &str = "/etc/cni/ferrule.conf";
/// The variable that overrides the configuration file.
pub const VARIABLE: &str = "CNI_FERRULE_LOG";
/// The file of the value `file`.
pub const DEFAULT_FILE: &str = "/var/log/ferrule.log";
/// The size in bytes from which a file is rotated.
const DEFAULT_SIZE: u64 = 10 << 20;

/// Where the lines go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// The native socket of journald.
    Journald,
    /// The socket of syslog.
    Syslog,
    /// A file, which becomes `PATH.1` when it has this size in bytes.
    File(PathBuf, u64),
}

/// Reads a value. `None` for `off`.
///
/// # Errors
/// The value is another one.
pub fn destination(value: &str) -> Result<Option<Destination>, String> {
    let mut words = value.split_whitespace();
    let (word, size) = (words.next().unwrap_or("off"), words.next());
    let wrong = || format!("{value:?} is not off, journald, syslog, file [SIZE] or /PATH [SIZE]");
    let path = match word {
        _ if words.next().is_some() => return Err(wrong()),
        "off" | "journald" | "syslog" if size.is_some() => return Err(wrong()),
        "off" => return Ok(None),
        "journald" => return Ok(Some(Destination::Journald)),
        "syslog" => return Ok(Some(Destination::Syslog)),
        "file" => DEFAULT_FILE,
        path if path.starts_with('/') => path,
        _ => return Err(wrong()),
    };
    let size = size.map_or(Some(DEFAULT_SIZE), bytes).ok_or_else(wrong)?;
    Ok(Some(Destination::File(path.into(), size)))
}

/// The value of the last line `log = VALUE`. Lines with `#` are comments, and other keys are ignored.
pub fn value_in(config: &str) -> &str {
    let mut values = config.lines().filter_map(|line| {
        let (key, value) = line.split_once('=')?;
        (key.trim() == "log").then(|| value.trim())
    });
    values.next_back().unwrap_or("off")
}

fn bytes(text: &str) -> Option<u64> {
    let (number, shift) = match text.split_at_checked(text.len().checked_sub(1)?)? {
        (number, "k") => (number, 10),
        (number, "M") => (number, 20),
        (number, "G") => (number, 30),
        _ => (text, 0),
    };
    number.parse::<u64>().ok().filter(|number| *number > 0)?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values() {
        let file = |path: &str, size| Ok(Some(Destination::File(path.into(), size)));
        assert_eq!(destination("off"), Ok(None));
        assert_eq!(destination(""), Ok(None));
        assert_eq!(destination("journald"), Ok(Some(Destination::Journald)));
        assert_eq!(destination("syslog"), Ok(Some(Destination::Syslog)));
        assert_eq!(destination("file"), file(DEFAULT_FILE, DEFAULT_SIZE));
        assert_eq!(destination("file 64k"), file(DEFAULT_FILE, 64 << 10));
        assert_eq!(destination("/a/b 7"), file("/a/b", 7));
        for wrong in ["on", "file 0", "file x", "file 1T", "file 99999999999G", "/a 1 2", "syslog 1", "é"] {
            assert!(destination(wrong).unwrap_err().contains(wrong), "{wrong}");
        }
    }

    #[test]
    fn the_configuration_has_comments_and_other_keys() {
        assert_eq!(value_in("# log = syslog\n\nother = 1\n  log=file 1M \n"), "file 1M");
        assert_eq!(value_in("log = syslog\nlog = off\n"), "off");
        assert_eq!(value_in("nothing here"), "off");
    }
}
