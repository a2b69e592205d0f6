//! `ferrule metrics`: counts the calls that the log has got since the last run, and writes the file for Prometheus.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write as _};
use std::path::Path;

use cni_common::call_log::old;
use cni_common::spec::{CniError, Context as _};

use super::metrics::{Metrics, Position};
use super::read::parse;

/// How many bytes tell log files apart: the time of their first call, and its plugin.
const HEAD: usize = 64;

/// Returns the text. Writes it to `output`, which is also the state; without it, counts the whole log.
///
/// # Errors
/// The log cannot be read, or the file cannot be written.
pub fn export(log: &Path, output: Option<&Path>) -> Result<String, CniError> {
    let earlier = output.and_then(|path| fs::read_to_string(path).ok()).unwrap_or_default();
    let mut metrics = Metrics::parse(&earlier);
    let open = |path: &Path| match File::open(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        outcome => outcome.map(Some).context(|| format!("cannot read {}", path.display())),
    };
    // The current one first: a rotation in between then makes both the same file.
    let current = open(log)?;
    count(&mut metrics, open(&old(log))?, current).context(|| format!("cannot read {}", log.display()))?;
    let text = metrics.text();
    if let Some(path) = output {
        replace(path, &text).context(|| format!("cannot write {}", path.display()))?;
    }
    Ok(text)
}

/// Counts what lies behind the position.
fn count<F: Read + Seek>(metrics: &mut Metrics, former: Option<F>, current: Option<F>) -> io::Result<()> {
    let mut files = Vec::new();
    for mut file in [former, current].into_iter().flatten() {
        files.extend(head(&mut file)?.map(|head| (head, file)));
    }
    files.dedup_by(|(one, _), (other, _)| one == other);
    if let Some(known) = files.iter().rposition(|(head, _)| *head == metrics.position.head) {
        files.drain(..known);
    }
    for (head, mut file) in files {
        let start = if head == metrics.position.head { metrics.position.offset } else { 0 };
        file.seek(SeekFrom::Start(start))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let complete = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        parse(&bytes[..complete]).iter().for_each(|call| metrics.add(call));
        metrics.position = Position { offset: start + complete as u64, head };
    }
    Ok(())
}

/// How the file begins; `None` if it is too short to have a call.
fn head(file: &mut impl Read) -> io::Result<Option<String>> {
    let mut bytes = Vec::new();
    file.take(HEAD as u64).read_to_end(&mut bytes)?;
    let text = String::from_utf8_lossy(&bytes).replace(char::is_control, " ");
    Ok((bytes.len() == HEAD).then_some(text))
}

/// Writes a file beside it, whose name node_exporter ignores, and renames that.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let pending = path.with_extension(format!("pending{}", std::process::id()));
    let written = File::create(&pending).and_then(|mut file| file.write_all(text.as_bytes()));
    written.and_then(|()| fs::rename(&pending, path)).inspect_err(|_| {
        let _ = fs::remove_file(&pending);
    })
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// A log file with a call for each letter, of a plugin of this name.
    fn file(letters: &str) -> Option<Cursor<String>> {
        let call = |letter| {
            format!(
                "{{\"time\":\"2026-11-22T09:55:00.00000{letter}Z\",\"plugin\":\"{letter}\",\"verb\":\"ADD\",\"us\":1}}\n"
            )
        };
        Some(Cursor::new(letters.chars().map(call).collect()))
    }

    type Files = (Option<Cursor<String>>, Option<Cursor<String>>);

    /// Rotation, removal and late writers between two runs do not matter.
    #[test]
    fn a_call_is_counted_once() {
        let cases: [(&[Files], &str); 7] = [
            (&[(None, file("ab")), (None, file("abc"))], "abc"),
            (&[(file("ab"), file("c")), (file("ab"), file("cd"))], "abcd"),
            (&[(None, file("a")), (file("ab"), file("c")), (file("cd"), file("e"))], "abcde"),
            (&[(None, file("ab")), (file("ab"), None), (file("ab"), file("c"))], "abc"),
            (&[(file("ab"), file("ab"))], "ab"),
            (&[(None, file("ab")), (file("cd"), file("e"))], "abcde"),
            (&[(None, file("")), (None, None), (None, file("a"))], "a"),
        ];
        for (runs, counted) in cases {
            let mut metrics = Metrics::default();
            for (former, current) in runs {
                count(&mut metrics, former.clone(), current.clone()).unwrap();
                metrics = Metrics::parse(&metrics.text());
            }
            let mut expected = Metrics::default();
            count(&mut expected, None, file(counted)).unwrap();
            expected.position = metrics.position.clone();
            assert_eq!(metrics.text(), expected.text(), "{counted}");
        }
    }

    #[test]
    fn an_incomplete_line_is_counted_when_it_is_complete() {
        let (mut metrics, whole) = (Metrics::default(), file("ab").unwrap().into_inner());
        let parts = [whole.len() - 3, whole.len()].map(|end| Cursor::new(whole[..end].to_owned()));
        let [partly, wholly] = parts.map(|part| {
            count(&mut metrics, None, Some(part)).unwrap();
            metrics.text()
        });
        assert!(!partly.contains("\"b\"") && wholly.contains("\"b\""), "{partly}{wholly}");
    }
}
