//! A folder on a private tmpfs, because a disk would have to sync, and calls of `ferrule`.

use std::fmt::Write as _;
use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use cni_lab::{Node, Place as _};
use nix::mount::{MsFlags, mount};
use sha2::{Digest as _, Sha256};

/// The program under test.
pub(crate) const PROGRAM: &str = env!("CARGO_BIN_EXE_ferrule");

/// The plugins in the folders `v1` and `v2`.
pub(crate) const ALL: [&str; 3] = ["bridge", "host-local", "loopback"];

/// Two versions of three plugins, and a folder to install into, which does not exist yet.
pub(crate) struct Fixture {
    pub(crate) dir: PathBuf,
    pub(crate) bin: PathBuf,
}

/// What a call of `ferrule` printed.
pub(crate) struct Said {
    pub(crate) status: i32,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Said {
    /// Fails unless the output has these words.
    #[track_caller]
    pub(crate) fn says(&self, words: &str) {
        let all = format!("{}{}", self.stdout, self.stderr);
        assert!(all.contains(words), "does not say {words:?} but: {all}");
    }
}

impl From<Output> for Said {
    fn from(output: Output) -> Said {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Said {
            status: output.status.code().unwrap_or(-1),
            stdout: text(output.stdout),
            stderr: text(output.stderr),
        }
    }
}

/// Runs a test in mount and network namespaces of its own.
pub(crate) fn in_a_folder(test: impl FnOnce(&Fixture) + Send) {
    let node = Node::new().unwrap();
    let work = || {
        let dir = PathBuf::from("/run/test");
        fs::create_dir(&dir).unwrap();
        let fixture = Fixture { bin: dir.join("bin"), dir };
        fixture.fake("v1", "1.0.0", &ALL);
        fixture.fake("v2", "2.0.0", &ALL);
        test(&fixture);
    };
    node.run(work).unwrap();
}

impl Fixture {
    /// A path in the test's folder.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// The same test with another folder to install into.
    pub(crate) fn with_bin(&self, name: &str) -> Fixture {
        Fixture { dir: self.dir.clone(), bin: self.path(name) }
    }

    /// Creates programs that answer VERSION like a plugin if they are called as a runtime calls them.
    pub(crate) fn fake(&self, folder: &str, version: &str, names: &[&str]) {
        for name in names {
            let script = format!(
                "#!/bin/sh\n\
                 [ -n \"$CNI_COMMAND\" ] || {{ echo \"CNI {name} plugin v{version}\" >&2; exit; }}\n\
                 [ \"$CNI_COMMAND\" = VERSION ] && [ \"$(cat)\" = '{{\"cniVersion\":\"1.0.0\"}}' ] || exit 9\n\
                 echo '{{\"cniVersion\": \"1.0.0\",'\n\
                 echo ' \"supportedVersions\": [\"0.4.0\", \"1.0.0\"]}}'\n"
            );
            self.script(&format!("{folder}/{name}"), &script);
        }
    }

    /// Writes an executable file.
    pub(crate) fn script(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
    }

    /// A call of `ferrule`: the words of `command`, then --bin-dir. Paths are relative to the test's folder.
    pub(crate) fn command(&self, command: &str) -> Command {
        let mut words = command.split(' ').filter(|word| !word.is_empty());
        let mut ferrule = Command::new(PROGRAM);
        ferrule.args(words.next()).arg("--bin-dir").arg(&self.bin).args(words);
        ferrule.current_dir(&self.dir).stdin(Stdio::null()).env_remove("CNI_COMMAND");
        ferrule
    }

    /// Runs `ferrule` to its end.
    pub(crate) fn run(&self, command: &str) -> Said {
        self.command(command).output().unwrap().into()
    }

    /// Runs `ferrule`, which has to end with this exit status.
    #[track_caller]
    pub(crate) fn ends(&self, status: i32, command: &str) -> Said {
        let said = self.run(command);
        assert_eq!(said.status, status, "{command}: {}{}", said.stdout, said.stderr);
        said
    }

    #[track_caller]
    pub(crate) fn succeeds(&self, command: &str) -> Said {
        self.ends(0, command)
    }

    /// `ferrule` fails with this status, prints these words to stderr, in one line unless it explains its usage, and changes
    /// nothing.
    #[track_caller]
    pub(crate) fn refuses(&self, status: i32, words: &str, command: &str) {
        let before = snapshot(&self.dir);
        let said = self.ends(status, command);
        assert!(said.stderr.contains(words), "{command}: does not say {words:?} but: {}", said.stderr);
        assert!(status == 2 || said.stderr.lines().count() == 1, "{command}: {}", said.stderr);
        assert_eq!(snapshot(&self.dir), before, "{command}: refused and changed something");
    }

    /// Fails unless the files under these names are those of the folder.
    #[track_caller]
    pub(crate) fn has(&self, folder: &str, names: &[&str]) {
        for name in names {
            self.same(&format!("{folder}/{name}"), name);
        }
    }

    /// Fails unless a file of the test's folder and an installed one have the same content.
    #[track_caller]
    pub(crate) fn same(&self, file: &str, name: &str) {
        let installed = fs::read(self.bin.join(name)).unwrap();
        assert!(fs::read(self.path(file)).unwrap() == installed, "{name} is not {file}");
    }

    /// Whether there is something under this name, even a dangling link.
    pub(crate) fn exists(&self, name: &str) -> bool {
        fs::symlink_metadata(self.bin.join(name)).is_ok()
    }

    pub(crate) fn manifest(&self) -> String {
        fs::read_to_string(self.bin.join(".ferrule/manifest")).unwrap()
    }

    /// Fails if an installation has left incomplete files.
    #[track_caller]
    pub(crate) fn has_no_leftovers(&self) {
        let all = snapshot(&self.bin);
        for bad in [".ferrule-new", "journal", ".part"] {
            assert!(!all.contains(bad), "left behind: {bad} in\n{all}");
        }
    }

    /// Runs a shell command in the test's folder.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) {
        let output = Command::new("sh").args(["-ec", script]).current_dir(&self.dir).output().unwrap();
        assert!(output.status.success(), "{script}: {output:?}");
    }

    /// Mounts the folder over itself with these flags.
    pub(crate) fn remount(&self, flags: MsFlags) {
        let none = None::<&str>;
        mount(Some(&self.bin), &self.bin, none, MsFlags::MS_BIND, none).unwrap();
        mount(none, &self.bin, none, MsFlags::MS_REMOUNT | MsFlags::MS_BIND | flags, none).unwrap();
    }

    /// Makes rename(2) onto a plugin fail with EBUSY: it becomes a mount point.
    pub(crate) fn pin(&self, name: &str) {
        let file = self.bin.join(name);
        mount(Some(&file), &file, None::<&str>, MsFlags::MS_BIND, None::<&str>).unwrap();
    }
}

/// The state of a folder: type, mode, owner, name, and content or link target of each entry.
pub(crate) fn snapshot(dir: &Path) -> String {
    let mut lines = String::new();
    describe(dir, "", &|_| true, &mut lines);
    lines
}

/// The files that a runtime can find in a folder.
pub(crate) fn visible(dir: &Path) -> String {
    let mut lines = String::new();
    describe(dir, "", &|name| !name.starts_with("/."), &mut lines);
    lines
}

fn describe(path: &Path, name: &str, is_wanted: &dyn Fn(&str) -> bool, lines: &mut String) {
    let meta = fs::symlink_metadata(path).unwrap();
    let content = match meta.file_type() {
        kind if kind.is_symlink() => fs::read_link(path).unwrap().display().to_string(),
        kind if kind.is_file() => format!("{:x}", Sha256::digest(fs::read(path).unwrap())),
        _ => String::new(),
    };
    writeln!(lines, "{name} {:o} {} {content}", meta.mode(), meta.uid()).unwrap();
    if meta.is_dir() {
        let mut entries: Vec<String> = fs::read_dir(path)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        entries.sort();
        for entry in entries {
            let below = format!("{name}/{entry}");
            if is_wanted(&below) {
                describe(&path.join(&entry), &below, is_wanted, lines);
            }
        }
    }
}
