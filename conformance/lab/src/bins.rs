//! The folders with the plugins.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail};

/// The folder with Ferrule's plugins: `FERRULE_BIN_DIR` if set, else the output of `./build.sh`, which runs
/// once per process.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(dir) = std::env::var_os("FERRULE_BIN_DIR") {
        return existing(PathBuf::from(dir)).context("FERRULE_BIN_DIR");
    }
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(|error| anyhow!(error))
}

/// The folder with the Go reference plugins: `FERRULE_GO_BIN_DIR` if set, else Debian's `/usr/lib/cni`.
pub fn go_bin_dir() -> anyhow::Result<PathBuf> {
    if let Some(dir) = std::env::var_os("FERRULE_GO_BIN_DIR") {
        return existing(PathBuf::from(dir)).context("FERRULE_GO_BIN_DIR");
    }
    let dir = Path::new("/usr/lib/cni");
    if !dir.join("bridge").is_file() {
        bail!(
            "the Go plugins are not in {}: install Debian's package containernetworking-plugins, or set FERRULE_GO_BIN_DIR",
            dir.display()
        );
    }
    Ok(dir.to_owned())
}

fn existing(dir: PathBuf) -> anyhow::Result<PathBuf> {
    // Absolute, because plugins are started from threads with other working directories.
    dir.canonicalize().with_context(|| format!("find the folder {}", dir.display()))
}

fn build() -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?;
    let stdout = run(Command::new("./build.sh").current_dir(&root))?;
    let last = stdout.lines().next_back().context("build.sh printed no folder")?;
    existing(PathBuf::from(last.trim())).context("the last line of build.sh")
}

fn run(command: &mut Command) -> anyhow::Result<String> {
    let output = command.output().with_context(|| format!("start {command:?}"))?;
    if !output.status.success() {
        bail!("{command:?}: {}\n{}", output.status, String::from_utf8_lossy(&output.stderr));
    }
    String::from_utf8(output.stdout).context("output is not UTF-8")
}
