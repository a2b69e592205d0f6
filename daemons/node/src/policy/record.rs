//! The file of isolated namespaces, which the plugin reads at ADD.

use std::fs;
use std::path::{Path, PathBuf};

use ferrule_node_policy::Compiler;
use ferrule_policy_kit::isolated::Isolated;

/// What the file should have.
pub(super) fn wanted(compiler: &Compiler) -> Isolated {
    let mut wanted = Isolated::new(compiler.isolated_elsewhere());
    for (namespace, directions) in compiler.isolated() {
        wanted.add(namespace, directions);
    }
    wanted
}

/// The file, and what is in it.
pub(super) struct Record {
    path: PathBuf,
    /// `None`: unknown.
    written: Option<Isolated>,
    /// Why the file could not be written.
    problem: Option<String>,
}

impl Record {
    pub(super) fn open(path: &Path) -> Record {
        Record { path: path.to_owned(), written: Isolated::read(path).ok(), problem: None }
    }

    pub(super) fn problem(&self) -> Option<&String> {
        self.problem.as_ref()
    }

    /// Another program may have changed the file, or the disk may have lost it: the next [`Record::narrow`] writes it again.
    pub(super) fn look(&mut self) {
        self.written = Isolated::read(&self.path).ok();
    }

    /// Before the transaction: the file names all that is or will be isolated.
    pub(super) fn widen(&mut self, wanted: &Isolated) {
        if self.written.as_ref().is_some_and(|written| written.covers(wanted)) {
            return;
        }
        let mut all = wanted.clone();
        if let Some(written) = &self.written {
            all.merge(written);
        }
        self.write(all);
    }

    /// After it.
    pub(super) fn narrow(&mut self, wanted: Isolated) {
        if self.written.as_ref() != Some(&wanted) {
            self.write(wanted);
        }
    }

    /// Without the file the plugin isolates every pod. So a disk that takes no file is no reason to enforce nothing.
    fn write(&mut self, isolated: Isolated) {
        let outcome = isolated.write(&self.path);
        if outcome.is_err() {
            let _ = fs::remove_file(&self.path);
        }
        self.written = outcome.is_ok().then_some(isolated);
        // A disk that has become read-only keeps the former file.
        let effect = || match Isolated::read(&self.path) {
            Err(_) => "every new pod is isolated until it is decided",
            Ok(_) => "a new pod of a namespace that it lacks is open until the API has its address",
        };
        let problem = outcome.err().map(|error| format!("{}: {error}; {}", self.path.display(), effect()));
        if let Some(problem) = problem.as_ref().filter(|now| self.problem.as_ref() != Some(now)) {
            log!("policy: {problem}");
        }
        self.problem = problem;
    }
}

#[cfg(test)]
mod tests {
    use ferrule_policy_kit::Directions;

    use super::*;

    fn isolated(namespaces: &[&str]) -> Isolated {
        let mut isolated = Isolated::default();
        namespaces.iter().for_each(|name| assert!(isolated.add(name, Directions::BOTH)));
        isolated
    }

    #[test]
    fn the_file_names_both_states_until_the_change_is_made() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy/isolated");
        let mut record = Record::open(&path);
        let read = || Isolated::read(&path).unwrap();
        record.narrow(isolated(&["a"]));
        record.widen(&isolated(&["b"]));
        assert_eq!(read(), isolated(&["a", "b"]));
        record.narrow(isolated(&["b"]));
        assert_eq!(read(), isolated(&["b"]));
        // What others have done to it is mended.
        fs::write(&path, "ferrule-policy 1\nend\n").unwrap();
        record.look();
        record.narrow(isolated(&["b"]));
        assert_eq!(read(), isolated(&["b"]));
        // A later daemon knows what an earlier one has written.
        Record::open(&path).widen(&isolated(&[]));
        assert_eq!(read(), isolated(&["b"]));
    }

    #[test]
    fn a_file_that_cannot_be_written_is_no_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("isolated");
        let mut record = Record::open(&path);
        record.narrow(isolated(&["a"]));
        fs::remove_file(&path).unwrap();
        fs::create_dir_all(path.join("in the way")).unwrap();
        record.widen(&isolated(&["b"]));
        let says = |record: &Record, what| {
            assert!(record.problem().unwrap().ends_with(what), "{:?}", record.problem())
        };
        says(&record, "; every new pod is isolated until it is decided");
        fs::remove_dir_all(&path).unwrap();
        record.narrow(isolated(&["b"]));
        assert_eq!((record.problem(), Isolated::read(&path).unwrap()), (None, isolated(&["b"])));
    }
}
