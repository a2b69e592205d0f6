//! Folders of plugins for `CNI_PATH`.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tempfile::TempDir;

use crate::{bin_dir_for, go_bin_dir};

/// Whose program a plugin is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Ours.
    Ours,
    /// The reference's, written in Go.
    Reference,
}

/// A folder with the plugin under test and the plugins that it needs. Clones share the folder.
#[derive(Debug, Clone)]
pub struct PluginDir {
    dir: Arc<TempDir>,
    plugin: PathBuf,
}

impl PluginDir {
    /// A folder with one plugin. `built` is our program as cargo has just built it,
    /// `env!("CARGO_BIN_EXE_...")`; its name is the plugin's.
    pub fn new(built: &str, origin: Origin) -> PluginDir {
        let name = Path::new(built).file_name().unwrap();
        let program = match origin {
            Origin::Ours => PathBuf::from(built),
            Origin::Reference => go_bin_dir().unwrap().join(name),
        };
        let dir = PluginDir::empty(name);
        symlink(program, &dir.plugin).unwrap();
        dir
    }

    /// A folder with one plugin from [`bin_dir`](crate::bin_dir) or from [`go_bin_dir`].
    pub fn installed(origin: Origin, name: &str) -> PluginDir {
        PluginDir::empty(name).with(origin, &[name])
    }

    fn empty(name: impl AsRef<Path>) -> PluginDir {
        let dir = tempfile::tempdir().unwrap();
        let plugin = dir.path().join(name);
        PluginDir { dir: Arc::new(dir), plugin }
    }

    /// Adds plugins from [`bin_dir`](crate::bin_dir) or from [`go_bin_dir`].
    #[must_use]
    pub fn with(self, origin: Origin, names: &[&str]) -> PluginDir {
        let from = match origin {
            Origin::Ours => bin_dir_for(|plugin| names.contains(&plugin)),
            Origin::Reference => go_bin_dir(),
        };
        let from = from.unwrap();
        for name in names {
            symlink(from.join(name), self.path().join(name)).unwrap();
        }
        self
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The plugin under test in this folder.
    pub fn plugin(&self) -> &Path {
        &self.plugin
    }
}
