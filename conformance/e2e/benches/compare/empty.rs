//! A program that does nothing, which shows how long the start of any program takes.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, ensure};
use tempfile::TempDir;

const SOURCE: &str = "fn main() {}\n";
/// The profile `release` of Cargo.toml and the flags of .cargo/config.toml.
const FLAGS: [&str; 8] = [
    "-Copt-level=s",
    "-Clto=fat",
    "-Ccodegen-units=1",
    "-Cpanic=abort",
    "-Cstrip=symbols",
    "-Clinker=rust-lld",
    "-Crelocation-model=static",
    "-Crelro-level=off",
];

/// The program, compiled by rustc in a temporary folder.
pub(crate) struct Empty {
    folder: TempDir,
}

impl Empty {
    pub(crate) fn compile() -> anyhow::Result<Empty> {
        let empty = Empty { folder: tempfile::tempdir()? };
        let source = empty.folder.path().join("empty.rs");
        fs::write(&source, SOURCE)?;
        let target = format!("{}-unknown-linux-musl", std::env::consts::ARCH);
        let mut rustc = Command::new("rustc");
        rustc.args(["--edition=2024", "--target", &target]).args(FLAGS).arg("-o").arg(empty.program());
        let output = rustc.arg(source).output().context("start rustc")?;
        ensure!(output.status.success(), "rustc: {}", String::from_utf8_lossy(&output.stderr));
        Ok(empty)
    }

    pub(crate) fn program(&self) -> PathBuf {
        self.folder.path().join("empty")
    }
}
