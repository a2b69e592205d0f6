//! An archive of regular files, as every `tar` reads it. Pure.
//!
//! # References
//! "ustar Interchange Format" in pax(1) of POSIX.

/// The size of a block in bytes.
const BLOCK: usize = 512;
/// The longest name of a file.
const NAME: usize = 100;

/// The archive of these files, which all were made at `time`, in seconds since 1970. Longer names are cut.
pub(super) fn archive<'f>(files: impl Iterator<Item = (String, &'f str)>, time: u64) -> Vec<u8> {
    let mut archive = Vec::new();
    for (name, content) in files {
        archive.extend(header(&name, content.len(), time));
        archive.extend_from_slice(content.as_bytes());
        archive.resize(archive.len().next_multiple_of(BLOCK), 0);
    }
    archive.resize(archive.len() + 2 * BLOCK, 0);
    archive
}

fn header(name: &str, size: usize, time: u64) -> [u8; BLOCK] {
    let mut header = [0; BLOCK];
    let mut put = |at: usize, text: &[u8]| header[at..at + text.len()].copy_from_slice(text);
    put(0, &name.as_bytes()[..name.len().min(NAME)]);
    put(100, b"0000600\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{size:011o}\0").as_bytes());
    put(136, format!("{time:011o}\0").as_bytes());
    // The sum counts its own field as blanks.
    put(148, b"        ");
    put(156, b"0");
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().copied().map(u32::from).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn tar_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        let long = "x".repeat(1500);
        let files = [("r/empty", ""), ("r/one", "text\n"), ("r/long", long.as_str())];
        let path = folder.path().join("a.tar");
        std::fs::write(&path, archive(files.iter().map(|(name, text)| ((*name).to_owned(), *text)), 86400))
            .unwrap();
        let tar =
            Command::new("tar").current_dir(&folder).args(["--utc", "-xvvf"]).arg(&path).output().unwrap();
        let said = String::from_utf8(tar.stdout.clone()).unwrap();
        assert!(tar.status.success() && tar.stderr.is_empty(), "{tar:?}");
        assert!(said.contains("-rw------- 0/0            1500 1970-01-02 00:00 r/long"), "{said}");
        for (name, text) in files {
            assert_eq!(std::fs::read_to_string(folder.path().join(name)).unwrap(), text, "{name}");
        }
    }
}
