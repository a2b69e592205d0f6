//! The fingerprint of a file: how the manifest names contents.

use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::failure::{Failure, Step};

/// What a path leads to: "none", the SHA-256 of a file's content, or that of a symbolic link's target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// There is no file.
    pub fn none() -> Self {
        Fingerprint("none".to_owned())
    }

    /// Whether there is no file.
    pub fn is_none(&self) -> bool {
        self.0 == "none"
    }

    /// Whether it is a symbolic link's.
    pub fn is_link(&self) -> bool {
        self.0.starts_with("link-")
    }

    /// Reads a word of the manifest. `None` if it is no fingerprint.
    pub fn parse(word: &str) -> Option<Self> {
        let digits = word.strip_prefix("link-").unwrap_or(word);
        let is_sum =
            digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (word == "none" || is_sum).then(|| Fingerprint(word.to_owned()))
    }

    /// The fingerprint of a file with this content.
    pub fn of_content(content: &[u8]) -> Self {
        Fingerprint(hex(Sha256::digest(content)))
    }

    /// The fingerprint of an open file.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn of_file(mut file: impl Read) -> io::Result<Self> {
        let mut sum = Sha256::new();
        let mut chunk = vec![0; 1 << 16];
        loop {
            match file.read(&mut chunk) {
                Ok(0) => return Ok(Fingerprint(hex(sum.finalize()))),
                Ok(length) => sum.update(chunk.get(..length).unwrap_or_default()),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// The fingerprint of a path, without following a link.
    ///
    /// # Errors
    /// The path leads to something else than a file or a link, or cannot be read.
    pub fn of_path(path: &Path) -> Result<Self, Failure> {
        let cannot_read = || format!("cannot read {}", path.display());
        let kind = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::none()),
            outcome => outcome.step(cannot_read)?.file_type(),
        };
        if kind.is_symlink() {
            let target = fs::read_link(path).step(cannot_read)?;
            // With the newline of readlink(1), as in existing manifests.
            let text = [target.as_os_str().as_bytes(), b"\n"].concat();
            return Ok(Fingerprint(format!("link-{}", hex(Sha256::digest(text)))));
        }
        if !kind.is_file() {
            return Err(Failure::new(format!("{} is neither a file nor a link", path.display())));
        }
        File::open(path).and_then(Self::of_file).step(cannot_read)
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn hex(sum: impl AsRef<[u8]>) -> String {
    sum.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn equal_those_of_the_script() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        assert!(Fingerprint::of_path(&path).unwrap().is_none());
        fs::write(&path, "abc").unwrap();
        // printf abc | sha256sum
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(Fingerprint::of_path(&path).unwrap().to_string(), sum);
        assert_eq!(Fingerprint::of_content(b"abc").to_string(), sum);
        let link = dir.path().join("link");
        symlink("abc", &link).unwrap();
        // echo abc | sha256sum
        let sum = "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb";
        let print = Fingerprint::of_path(&link).unwrap();
        assert_eq!(print.to_string(), format!("link-{sum}"));
        assert!(print.is_link() && !print.is_none());
        assert!(
            Fingerprint::of_path(dir.path()).unwrap_err().message.unwrap().contains("neither a file nor")
        );
    }

    #[test]
    fn words() {
        let sum = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        for good in ["none", sum, &format!("link-{sum}")] {
            assert_eq!(Fingerprint::parse(good).unwrap().to_string(), good);
        }
        for bad in ["", "-", "None", "link-", "link-none", &sum[1..], &sum.to_uppercase(), "../../etc/passwd"]
        {
            assert_eq!(Fingerprint::parse(bad), None, "{bad}");
        }
    }
}
