//! Owners and modes of plugins and configurations: who can write them can become root, as runtimes start the plugins.

use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::Finding;

/// The permissions of group and others to write.
const WRITABLE: u32 = 0o022;
/// The permissions to execute.
const EXECUTABLE: u32 = 0o111;

/// Looks at the folders and their files.
pub fn judge(path: &[PathBuf], conf_dir: &Path) -> Vec<Finding> {
    let of = |folder: &Path, is_program: bool| {
        let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
        let files: Vec<PathBuf> = files.filter(|file| file.is_file() && !is_hidden(file)).collect();
        let files = files.into_iter().map(move |file| (file, is_program));
        [(folder.to_owned(), false)].into_iter().chain(files).collect::<Vec<_>>()
    };
    let all = path.iter().flat_map(|folder| of(folder, true)).chain(of(conf_dir, false));
    all.filter_map(|(file, is_program)| of_file(&file, &fs::metadata(&file).ok()?, is_program)).collect()
}

/// The installer's records have dots.
fn is_hidden(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn of_file(file: &Path, meta: &Metadata, is_program: bool) -> Option<Finding> {
    let place = file.display().to_string();
    if meta.uid() != 0 || meta.mode() & WRITABLE != 0 {
        let problem = format!(
            "belongs to user {} and has mode {:04o}: others than root can replace what runs as root",
            meta.uid(),
            meta.mode() & 0o7777
        );
        let remedy = format!("chown root:root {place}; chmod go-w {place}");
        return Some(Finding::error(place, problem, remedy));
    }
    (is_program && meta.mode() & EXECUTABLE == 0).then(|| {
        let remedy = format!("chmod 0755 {place}");
        Finding::error(place, "is not executable", remedy)
    })
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn modes() {
        let dir = tempfile::tempdir().unwrap();
        let [file, hidden] = ["bridge", ".ferrule"].map(|name| dir.path().join(name));
        fs::write(&file, "").unwrap();
        fs::write(&hidden, "").unwrap();
        fs::set_permissions(&hidden, fs::Permissions::from_mode(0o666)).unwrap();
        let is_root = fs::metadata(&file).unwrap().uid() == 0;
        for (mode, problem) in [(0o755, None), (0o644, Some("is not executable")), (0o775, Some("mode 0775"))]
        {
            fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
            let found = judge(&[dir.path().to_owned()], Path::new("/nowhere"));
            if is_root {
                assert_eq!(found.len(), usize::from(problem.is_some()), "{found:?}");
                assert!(problem.is_none_or(|problem| found[0].problem.contains(problem)), "{found:?}");
            }
        }
    }
}
