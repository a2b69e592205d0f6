//! The folders with the plugins.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context as _, anyhow, bail};

/// The folder with Ferrule's plugins: `FERRULE_BIN_DIR` if set, else the output of `./build.sh`, which runs
/// once per process. An error if the programs in `FERRULE_BIN_DIR` are older than their source code.
pub fn bin_dir() -> anyhow::Result<PathBuf> {
    bin_dir_for(|_| true)
}

/// [`bin_dir`] for a test that uses only some plugins: the source code of the others may be newer.
pub fn bin_dir_for(is_used: impl Fn(&str) -> bool) -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    if let Some(dir) = std::env::var_os("FERRULE_BIN_DIR") {
        let dir = existing(PathBuf::from(dir)).context("FERRULE_BIN_DIR")?;
        fresh(&dir, is_used).context("FERRULE_BIN_DIR")?;
        return Ok(dir);
    }
    let built = BUILT.get_or_init(|| build().map_err(|error| format!("{error:#}")));
    built.clone().map_err(|error| anyhow!(error))
}

/// Fails if a source file of these plugins has changed since they were built.
fn fresh(dir: &Path, is_used: impl Fn(&str) -> bool) -> anyhow::Result<()> {
    let plugins = root()?.join("plugins");
    let program = dir.join("bridge");
    let modified = |path: &Path| fs::metadata(path).and_then(|meta| meta.modified());
    let built = modified(&program).with_context(|| format!("find {}", program.display()))?;
    for source in sources(dir)? {
        // A source file of one plugin is plugins/KIND/NAME/src/...; plugins share the others.
        let below = source.strip_prefix(&plugins).ok().and_then(|path| path.iter().nth(1));
        if below.and_then(|name| name.to_str()).is_some_and(|name| !is_used(name)) {
            continue;
        }
        // cargo also lists files that have been deleted or renamed since.
        if modified(&source).map_or(true, |changed| changed > built) {
            bail!(
                "the plugins in {} are older than {}: run ./build.sh again",
                dir.display(),
                source.display()
            );
        }
    }
    Ok(())
}

/// The source files of the plugins. cargo lists them beside the program that it has built; for a copy
/// elsewhere they are all files in the crates that the plugins consist of.
fn sources(dir: &Path) -> anyhow::Result<Vec<PathBuf>> {
    if let Ok(listed) = fs::read_to_string(dir.join("../ferrule.d")) {
        // cargo writes `PROGRAM: FILE FILE...`, with a backslash before a space in a name.
        let listed = listed.replace("\\ ", "\0");
        return Ok(listed.split_whitespace().skip(1).map(|file| file.replace('\0', " ").into()).collect());
    }
    let root = root()?;
    let mut files = Vec::new();
    let mut folders = [
        "cni-common/src",
        "kernel/src",
        "kit/src",
        "operator/install/src",
        "operator/ferrule/src",
        "plugins",
    ]
    .map(|name| root.join(name))
    .to_vec();
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).with_context(|| format!("list {}", folder.display()))? {
            let entry = entry?;
            match entry.file_type()?.is_dir() {
                true if entry.file_name() == "tests" => {}
                true => folders.push(entry.path()),
                false if entry.path().extension().is_some_and(|extension| extension == "rs") => {
                    files.push(entry.path())
                }
                false => {}
            }
        }
    }
    Ok(files)
}

/// The top folder of the source code.
fn root() -> anyhow::Result<PathBuf> {
    Ok(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize()?)
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
    let stdout = run(Command::new("./build.sh").current_dir(root()?))?;
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

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;

    #[test]
    fn programs_older_than_their_source_are_refused() {
        let built = tempfile::tempdir().unwrap();
        let (folder, source) = (built.path().join("cni"), built.path().join("main.rs"));
        fs::create_dir(&folder).unwrap();
        for file in [&folder.join("bridge"), &source] {
            fs::write(file, "").unwrap();
        }
        fs::write(built.path().join("ferrule.d"), format!("ferrule: {}\n", source.display())).unwrap();
        let changed = |path: &Path, ago: u64| {
            let time = SystemTime::now() - Duration::from_secs(ago);
            fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
        };
        changed(&source, 20);
        changed(&folder.join("bridge"), 10);
        fresh(&folder, |_| true).unwrap();
        changed(&source, 5);
        let error = fresh(&folder, |_| true).unwrap_err().to_string();
        assert!(error.contains("main.rs: run ./build.sh again"), "{error}");
        // A plugin that the test does not use has changed.
        let bridge = root().unwrap().join("plugins/main/bridge/src/main.rs");
        fs::write(built.path().join("ferrule.d"), format!("ferrule: {}\n", bridge.display())).unwrap();
        changed(&folder.join("bridge"), 1_000_000_000);
        fresh(&folder, |name| name != "bridge").unwrap();
        fresh(&folder, |name| name == "bridge").unwrap_err();
        fs::write(built.path().join("ferrule.d"), format!("ferrule: {}\n", source.display())).unwrap();
        changed(&folder.join("bridge"), 0);
        // A file that the program was built from has been deleted.
        fs::remove_file(&source).unwrap();
        fresh(&folder, |_| true).unwrap_err();
    }

    #[test]
    fn a_copy_is_compared_with_all_files_of_the_plugins() {
        let copy = tempfile::tempdir().unwrap();
        fs::write(copy.path().join("bridge"), "").unwrap();
        let files = sources(copy.path()).unwrap();
        for file in ["plugins/main/bridge/src/main.rs", "kernel/src/lib.rs", "operator/ferrule/src/main.rs"] {
            assert!(files.iter().any(|path| path.ends_with(file)), "{file}");
        }
        assert!(!files.iter().any(|path| path.components().any(|part| part.as_os_str() == "tests")));
        fresh(copy.path(), |_| true).unwrap();
    }
}
