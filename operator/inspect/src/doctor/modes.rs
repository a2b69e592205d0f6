//! Owners and modes of plugins and configurations: who can write them can become root, as runtimes start the plugins.

use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

use super::{Finding, Subject, WHOLE};

/// The permissions of group and others to write.
const WRITABLE: u32 = 0o022;
/// The permissions to execute.
const EXECUTABLE: u32 = 0o111;

/// Looks at the folders and their files.
pub fn judge(path: &[PathBuf], conf_dir: &Path) -> Subject {
    let (mut count, mut findings) = (0, Vec::new());
    for (folder, has_programs) in
        path.iter().map(|folder| (folder.as_path(), true)).chain([(conf_dir, false)])
    {
        let place = folder.display().to_string();
        let entries = match fs::read_dir(folder) {
            Ok(entries) => entries,
            // Without the folder, each network has its own finding.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            Err(error) => {
                findings.push(Finding::error(place, format!("cannot be read: {error}"), WHOLE));
                continue;
            }
        };
        let files = entries.flatten().map(|entry| entry.path()).filter(|file| !is_hidden(file));
        for file in [folder.to_owned()].into_iter().chain(files) {
            if let Ok(meta) = fs::metadata(&file)
                && (meta.is_file() || file == folder)
            {
                count += 1;
                findings.extend(of_file(&file, &meta, has_programs && meta.is_file()));
            }
        }
    }
    Subject::new("files", format!("{count} files and folders that only root can write"), findings)
}

/// The installer's own files have dots.
fn is_hidden(file: &Path) -> bool {
    file.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."))
}

fn of_file(file: &Path, meta: &Metadata, is_program: bool) -> Option<Finding> {
    let (place, user, mode) = (file.display().to_string(), meta.uid(), meta.mode() & 0o7777);
    let (problem, remedy) = if user != 0 || mode & WRITABLE != 0 {
        let who = "others than root can replace what runs as root";
        let problem = format!("belongs to user {user} and has mode {mode:04o}: {who}");
        (problem, format!("chown root:root {place}; chmod go-w {place}"))
    } else if is_program && mode & EXECUTABLE == 0 {
        ("is not executable".to_owned(), format!("chmod 0755 {place}"))
    } else {
        return None;
    };
    Some(Finding::error(place, problem, remedy))
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
            let found = judge(&[dir.path().to_owned()], Path::new("/nowhere")).findings;
            if is_root {
                assert_eq!(found.len(), usize::from(problem.is_some()), "{found:?}");
                assert!(problem.is_none_or(|problem| found[0].problem.contains(problem)), "{found:?}");
            }
        }
    }
}
