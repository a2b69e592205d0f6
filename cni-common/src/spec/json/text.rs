//! Go's replacement of invalid text that serde_json would reject.

use std::borrow::Cow;

/// Converts `bytes` to text that serde_json decodes as Go decodes `bytes`: lone surrogate escapes, and every
/// byte that is not part of valid UTF-8, become U+FFFD.
pub(super) fn repair(bytes: &[u8]) -> Cow<'_, str> {
    if !bytes.windows(3).any(|w| matches!(w, br"\ud" | br"\uD")) {
        return utf8(bytes);
    }
    let mut bytes = bytes.to_vec();
    replace_lone_surrogates(&mut bytes);
    Cow::Owned(utf8(&bytes).into_owned())
}

/// Replaces each invalid byte by U+FFFD, as Go does. `String::from_utf8_lossy` differs: it replaces a whole
/// truncated sequence by one U+FFFD.
fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    Cow::Owned(text)
}

fn replace_lone_surrogates(bytes: &mut [u8]) {
    let mut at = 0;
    while at < bytes.len() {
        at += match (bytes[at], unicode_escape(bytes, at)) {
            (b'\\', Some(0xD800..=0xDBFF))
                if matches!(unicode_escape(bytes, at + 6), Some(0xDC00..=0xDFFF)) =>
            {
                12
            }
            (b'\\', Some(0xD800..=0xDFFF)) => {
                bytes[at + 2..at + 6].copy_from_slice(b"fffd");
                6
            }
            // Skips 2 bytes, so that the second backslash of `\\` does not start an escape.
            (b'\\', _) => 2,
            _ => 1,
        }
    }
}

/// The code unit of the escape at byte offset `at`: `\u` and four hexadecimal digits. Returns `None` if there is none.
fn unicode_escape(bytes: &[u8], at: usize) -> Option<u32> {
    let digits = bytes.get(at..at + 6)?.strip_prefix(br"\u")?;
    digits.iter().try_fold(0, |unit, digit| Some(unit << 4 | char::from(*digit).to_digit(16)?))
}

#[cfg(test)]
mod tests {
    use super::repair;

    #[test]
    fn keeps_valid_text() {
        for text in [r#"{"a":"b"}"#, "é", r"\ud83d\ude00", r"\\ud800", r"\ud80", r"\u00e9", r"\udg00", "\\"]
        {
            assert_eq!(repair(text.as_bytes()), text);
        }
    }

    #[test]
    fn replaces_lone_surrogate_escapes() {
        for (text, want) in [
            (r"\ud800", r"\ufffd"),
            (r"\uDFFFx", r"\ufffdx"),
            (r"\ud800\ud83d\ude00", r"\ufffd\ud83d\ude00"),
            (r"\ud800\u0041", r"\ufffd\u0041"),
            (r"\ude00\ud83d", r"\ufffd\ufffd"),
            (r"\\\ud800", r"\\\ufffd"),
        ] {
            assert_eq!(repair(text.as_bytes()), want, "{text}");
        }
    }

    #[test]
    fn replaces_each_invalid_byte() {
        assert_eq!(repair(b"a\xffb"), "a\u{fffd}b");
        assert_eq!(repair(b"\xe2\x82"), "\u{fffd}\u{fffd}");
        assert_eq!(repair(b"\xed\xa0\x80"), "\u{fffd}\u{fffd}\u{fffd}");
        assert_eq!(repair(b"\xff\\ud800"), "\u{fffd}\\ufffd");
    }
}
