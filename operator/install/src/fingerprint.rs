//! The fingerprint of a file: how the manifest names contents.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::{Context, Result, bail};
use sha2::{Digest, Sha256};

/// What a path leads to: "none", the SHA-256 of a file's content, or that of a symbolic link's target.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
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

    /// Reads a word of the manifest. `None` if it is no fingerprint.
    pub fn parse(word: &str) -> Option<Self> {
        let digits = word.strip_prefix("link-").unwrap_or(word);
        let is_sum =
            digits.len() == 64 && digits.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (word == "none" || is_sum).then(|| Fingerprint(word.to_owned()))
    }

    /// The fingerprint of a file with this content.
    pub fn of_content(content: impl AsRef<[u8]>) -> Self {
        Fingerprint(format!("{:x}", Sha256::digest(content)))
    }

    /// The fingerprint of a path, without following a link.
    ///
    /// # Errors
    /// The path leads to something else than a file or a link, or cannot be read.
    pub fn of_path(path: &Path) -> Result<Self> {
        let cannot_read = || format!("cannot read {}", path.display());
        let kind = match fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::none()),
            outcome => outcome.with_context(cannot_read)?.file_type(),
        };
        if kind.is_symlink() {
            let target = fs::read_link(path).with_context(cannot_read)?;
            // With the newline of readlink(1), as in existing manifests.
            let Fingerprint(sum) = Self::of_content([target.as_os_str().as_bytes(), b"\n"].concat());
            return Ok(Fingerprint(format!("link-{sum}")));
        }
        if !kind.is_file() {
            bail!("{} is neither a file nor a link", path.display());
        }
        fs::read(path).map(Self::of_content).with_context(cannot_read)
    }

    /// What the fingerprint is of, as `ferrule status` prints it.
    pub fn kind(&self) -> &'static str {
        match self.0.as_str() {
            "none" => "none",
            link if link.starts_with("link-") => "link",
            _ => "file",
        }
    }
}

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
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
        assert_eq!(Fingerprint::of_content("abc").to_string(), sum);
        let link = dir.path().join("link");
        symlink("abc", &link).unwrap();
        // echo abc | sha256sum
        let sum = "edeaaff3f1774ad2888673770c6d64097e391bc362d7d6fb34982ddf0efd18cb";
        let print = Fingerprint::of_path(&link).unwrap();
        assert_eq!(print.to_string(), format!("link-{sum}"));
        assert_eq!([print.kind(), Fingerprint::of_content("").kind()], ["link", "file"]);
        let error = Fingerprint::of_path(dir.path()).unwrap_err().to_string();
        assert!(error.contains("neither a file nor"), "{error}");
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
