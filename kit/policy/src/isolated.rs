//! The file of isolated namespaces: in which directions some policy may select a pod of each.
//!
//! ```text
//! ferrule-policy 1
//! shop both
//! tools ingress
//! end
//! ```
//!
//! `* both` stands for namespaces without a line, for policies of the whole cluster, and only beside it there is a line such as `tools none`.
//! The daemon replaces the file before the transaction that enforces a policy. A file that is missing, damaged, another user's or no regular
//! file isolates every pod in both directions until the daemon has decided.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::DirBuilder;
use std::io::{self, ErrorKind, Read as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;

use ferrule_kernel::file;

use crate::comment::NAMESPACE_MAX;
use crate::{Direction, Directions};

/// The file.
pub const PATH: &str = "/var/lib/ferrule/policy/isolated";

const HEAD: &str = "ferrule-policy 1\n";
const END: &str = "end\n";
/// Stands for all namespaces without a line.
const ELSEWHERE: &str = "*";
const WORDS: [(&str, Directions); 4] = [
    ("none", Directions { ingress: false, egress: false }),
    ("ingress", Directions { ingress: true, egress: false }),
    ("egress", Directions { ingress: false, egress: true }),
    ("both", Directions::BOTH),
];

/// The namespaces in which some policy may isolate a pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Isolated {
    named: BTreeMap<String, Directions>,
    elsewhere: Directions,
}

impl Isolated {
    /// No namespace has a line; these are the directions of each.
    pub fn new(elsewhere: Directions) -> Isolated {
        Isolated { named: BTreeMap::new(), elsewhere }
    }

    /// Adds directions of a namespace. Returns whether it can be in the file: no namespace of Kubernetes has another name.
    pub fn add(&mut self, namespace: &str, directions: Directions) -> bool {
        if !is_namespace(namespace) {
            return false;
        }
        if !directions.is_empty() || !self.elsewhere.is_empty() {
            let present = self.named.entry(namespace.to_owned()).or_default();
            *present = present.or(directions);
        }
        true
    }

    /// Adds all of the other one.
    pub fn merge(&mut self, other: &Isolated) {
        let names: BTreeSet<&String> = self.named.keys().chain(other.named.keys()).collect();
        let mut both = Isolated::new(self.elsewhere.or(other.elsewhere));
        for name in names {
            both.add(name, self.of(name).or(other.of(name)));
        }
        *self = both;
    }

    /// The directions of a namespace.
    pub fn of(&self, namespace: &str) -> Directions {
        self.named.get(namespace).copied().unwrap_or(self.elsewhere)
    }

    /// A namespace with the most directions, if there is one.
    pub fn strictest(&self) -> Option<(&str, Directions)> {
        let count = |of: &Directions| Direction::ALL.iter().filter(|direction| of.has(**direction)).count();
        let found = self.named.iter().max_by_key(|(_, directions)| count(directions));
        found.map(|(namespace, directions)| (namespace.as_str(), *directions))
    }

    /// Whether each direction of the other one is also in this one.
    pub fn covers(&self, other: &Isolated) -> bool {
        let has = |own: Directions, of: Directions| own.or(of) == own;
        let mut names = self.named.keys().chain(other.named.keys());
        has(self.elsewhere, other.elsewhere) && names.all(|name| has(self.of(name), other.of(name)))
    }

    /// The content of the file.
    pub fn encode(&self) -> String {
        let line = |namespace: &str, directions: Directions| {
            let word = WORDS.iter().find(|(_, of)| *of == directions).map(|(word, _)| *word);
            word.map(|word| format!("{namespace} {word}\n"))
        };
        let elsewhere = Some(self.elsewhere).filter(|elsewhere| !elsewhere.is_empty());
        let elsewhere = elsewhere.and_then(|directions| line(ELSEWHERE, directions));
        let named = self.named.iter().filter_map(|(namespace, directions)| line(namespace, *directions));
        [HEAD.to_owned()].into_iter().chain(elsewhere).chain(named).chain([END.to_owned()]).collect()
    }

    /// The namespaces in the content of the file; `None` if it is damaged.
    pub fn decode(text: &str) -> Option<Isolated> {
        let mut isolated = Isolated::default();
        for entry in entries(text)? {
            match entry? {
                (None, directions) => isolated.elsewhere = isolated.elsewhere.or(directions),
                (Some(namespace), directions) => drop(isolated.named.insert(
                    namespace.to_owned(),
                    isolated.named.get(namespace).copied().unwrap_or_default().or(directions),
                )),
            }
        }
        Some(isolated)
    }

    /// The number of namespaces with a line.
    pub fn len(&self) -> usize {
        self.named.len()
    }

    /// Whether it isolates nothing.
    pub fn is_empty(&self) -> bool {
        self.named.is_empty() && self.elsewhere.is_empty()
    }

    /// Reads the file.
    ///
    /// # Errors
    /// It is missing, no regular file, another user's, unreadable or damaged.
    pub fn read(path: &Path) -> io::Result<Isolated> {
        Isolated::decode(&text(path)?).ok_or_else(damaged)
    }

    /// Replaces the file, so that the old or the new content is there after a loss of power, and the new one when this returns. Makes
    /// a missing folder.
    ///
    /// # Errors
    /// The disk's.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let pending = file::pending_beside(path);
        let replace = || file::replace_durably(path, &pending, 0o600, self.encode().as_bytes());
        replace().or_else(|error| match path.parent() {
            Some(folder) if error.kind() == ErrorKind::NotFound => {
                DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
                replace()
            }
            _ => Err(error),
        })
    }
}

/// The directions of one namespace, for ADD: reads the file, and keeps nothing else of it. With an error they are both.
pub fn directions(path: &Path, namespace: &str) -> (Directions, io::Result<()>) {
    let found = text(path).and_then(|text| look(&text, namespace).ok_or_else(damaged));
    match found {
        Ok(directions) => (directions, Ok(())),
        Err(error) => (Directions::BOTH, Err(error)),
    }
}

/// The content of the file, up to the limit: a longer one has no last line there.
fn text(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    file::open_own(path)?.take(file::LIMIT).read_to_string(&mut text)?;
    Ok(text)
}

/// The directions of a namespace in the content of the file; `None` if any of it is damaged.
fn look(text: &str, namespace: &str) -> Option<Directions> {
    let (mut own, mut elsewhere) = (None::<Directions>, Directions::default());
    for entry in entries(text)? {
        match entry? {
            (None, directions) => elsewhere = elsewhere.or(directions),
            (Some(name), directions) if name == namespace => {
                own = Some(own.unwrap_or_default().or(directions));
            }
            _ => {}
        }
    }
    Some(own.unwrap_or(elsewhere))
}

/// A namespace, or `None` for those without a line.
type Entry<'t> = (Option<&'t str>, Directions);

/// The lines between the first and the last one; the inner `None` is a damaged one.
fn entries(text: &str) -> Option<impl Iterator<Item = Option<Entry<'_>>>> {
    let lines = text.strip_prefix(HEAD)?.strip_suffix(END)?;
    let is_whole = lines.is_empty() || lines.ends_with('\n');
    is_whole.then(|| lines.split_terminator('\n').map(entry))
}

fn entry(line: &str) -> Option<Entry<'_>> {
    let (namespace, word) = line.split_once(' ')?;
    let (_, directions) = WORDS.iter().find(|(known, _)| *known == word)?;
    let namespace = if namespace == ELSEWHERE { None } else { Some(namespace) };
    namespace.is_none_or(is_namespace).then_some((namespace, *directions))
}

/// Whether the text is a DNS label, as the name of each namespace is.
fn is_namespace(text: &str) -> bool {
    let is_usual = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = text.as_bytes();
    let has_ends =
        bytes.first().zip(bytes.last()).is_some_and(|(first, last)| is_usual(*first) && is_usual(*last));
    has_ends && bytes.len() <= NAMESPACE_MAX && bytes.iter().all(|byte| is_usual(*byte) || *byte == b'-')
}

fn damaged() -> io::Error {
    io::Error::new(ErrorKind::InvalidData, "it is damaged")
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    const INGRESS: Directions = Directions { ingress: true, egress: false };
    const EGRESS: Directions = Directions { ingress: false, egress: true };
    const TEXT: &str = "ferrule-policy 1\nshop both\ntools ingress\nx-1 egress\nend\n";

    fn example() -> Isolated {
        let mut isolated = Isolated::default();
        for (namespace, directions) in [
            ("tools", INGRESS),
            ("shop", INGRESS),
            ("x-1", EGRESS),
            ("shop", EGRESS),
            ("open", Directions::default()),
        ] {
            assert!(isolated.add(namespace, directions), "{namespace}");
        }
        isolated
    }

    #[test]
    fn the_format() {
        assert_eq!(example().encode(), TEXT);
        assert_eq!(Isolated::decode(TEXT), Some(example()));
        assert_eq!(Isolated::decode("ferrule-policy 1\nend\n"), Some(Isolated::default()));
        assert_eq!(Isolated::default().encode(), "ferrule-policy 1\nend\n");
        for (namespace, directions) in
            [("shop", Directions::BOTH), ("tools", INGRESS), ("x-1", EGRESS), ("sho", Directions::default())]
        {
            assert_eq!(
                (example().of(namespace), look(TEXT, namespace)),
                (directions, Some(directions)),
                "{namespace}"
            );
        }
        // Two lines for one namespace are the union.
        assert_eq!(look("ferrule-policy 1\na ingress\na egress\nend\n", "a"), Some(Directions::BOTH));
    }

    #[test]
    fn a_line_counts_before_that_of_all_others() {
        let mut isolated = Isolated::new(INGRESS);
        for (namespace, directions) in
            [("shop", EGRESS), ("tools", Directions::default()), ("both", Directions::BOTH)]
        {
            assert!(isolated.add(namespace, directions));
        }
        let text = "ferrule-policy 1\n* ingress\nboth both\nshop egress\ntools none\nend\n";
        assert_eq!((isolated.encode().as_str(), Isolated::decode(text)), (text, Some(isolated.clone())));
        for (namespace, directions) in
            [("shop", EGRESS), ("tools", Directions::default()), ("both", Directions::BOTH), ("new", INGRESS)]
        {
            assert_eq!(
                (isolated.of(namespace), look(text, namespace)),
                (directions, Some(directions)),
                "{namespace}"
            );
        }
        let mut sum = example();
        assert!(!sum.covers(&isolated) && !isolated.covers(&sum));
        sum.merge(&isolated);
        assert!(sum.covers(&isolated) && sum.covers(&example()) && !isolated.covers(&sum));
        let merged = "ferrule-policy 1\n* ingress\nboth both\nshop both\ntools ingress\nx-1 both\nend\n";
        assert_eq!(sum.encode(), merged);
        let mut other = isolated;
        other.merge(&example());
        assert_eq!(other, sum);
        assert!(Isolated::new(INGRESS).covers(&Isolated::default()));
        // What another one leaves to all others is more than its own line here.
        let mut line = Isolated::new(INGRESS);
        line.add("tools", Directions::default());
        assert!(!line.covers(&Isolated::new(INGRESS)) && Isolated::new(INGRESS).covers(&line));
    }

    #[test]
    fn every_cut_and_every_changed_line_is_damage() {
        for end in 0..TEXT.len() {
            assert_eq!(look(&TEXT[..end], "shop"), None, "{:?}", &TEXT[..end]);
        }
        for text in [
            "ferrule-policy 2\nend\n",
            "ferrule-policy 1\nfriend\n",
            "ferrule-policy 1\nshop\nend\n",
            "ferrule-policy 1\nshop all\nend\n",
            "ferrule-policy 1\n** both\nend\n",
            "ferrule-policy 1\n*both\nend\n",
            "ferrule-policy 1\nshop both \nend\n",
            "ferrule-policy 1\nSHOP both\nend\n",
            "ferrule-policy 1\n\nend\n",
            "ferrule-policy 1\nshop both\nend\nend\n",
            "ferrule-policy 1\nshop both\nend\n\n",
            "ferrule-policy 1\nshop both\r\nend\n",
            "ferrule-policy 1\nsh\0op both\nend\n",
        ] {
            assert_eq!((look(text, "other"), Isolated::decode(text)), (None, None), "{text:?}");
        }
    }

    #[test]
    fn only_names_of_namespaces_are_written() {
        let mut isolated = Isolated::default();
        for name in ["", "-a", "a-", "a b", "a\nb", "A", "a.b", &"a".repeat(64)] {
            assert!(!isolated.add(name, Directions::BOTH), "{name:?}");
        }
        assert!(isolated.add(&"a".repeat(63), Directions::BOTH));
        assert!(isolated.covers(&isolated) && isolated.covers(&Isolated::default()));
        assert!(!example().covers(&isolated) && !Isolated::default().covers(&isolated));
    }

    #[test]
    fn what_is_no_sound_file_isolates_both_directions() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("policy/isolated");
        let open = |path: &Path| {
            let (directions, outcome) = directions(path, "open");
            assert_eq!(directions.is_empty(), outcome.is_ok());
            directions.is_empty()
        };
        assert!(!open(&path), "missing");
        example().write(&path).unwrap();
        assert!(open(&path));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(Isolated::read(&path).unwrap(), example());
        let mut fewer = Isolated::default();
        fewer.add("shop", EGRESS);
        fewer.write(&path).unwrap();
        assert_eq!(directions(&path, "shop").0, EGRESS);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "a pending file is left");
        for damage in [&b"ferrule-policy 1\n"[..], b"ferrule-policy 1\n\xff both\nend\n", b""] {
            fs::write(&path, damage).unwrap();
            assert!(!open(&path) && Isolated::read(&path).is_err(), "{damage:?}");
        }
        fs::write(&path, TEXT).unwrap();
        assert!(open(&path));
        chown(&path, Some(1234), None).unwrap();
        assert!(!open(&path) && Isolated::read(&path).is_err(), "of another user");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert!(!open(&path), "a folder");
        fs::remove_dir(&path).unwrap();
        fs::write(dir.path().join("other"), TEXT).unwrap();
        symlink(dir.path().join("other"), &path).unwrap();
        assert!(!open(&path), "a link");
    }
}
