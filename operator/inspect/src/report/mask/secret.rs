//! What never enters a report, also an unmasked one. Pure.

/// What stands in the place of a secret.
pub(in crate::report) const REMOVED: &str = "(removed)";

/// What the names of members with secrets contain, in lower case and without `-` and `_`.
const PARTS: &[&str] = &[
    "annotation",
    "apikey",
    "authorization",
    "baggage",
    "credential",
    "environment",
    "kubeconfig",
    "passphrase",
    "passwd",
    "password",
    "privatekey",
    "publickey",
    "secret",
    "token",
];
/// Such names that are too short to look for in others.
const NAMES: &[&str] = &["ca", "cert", "env", "key", "keys", "presharedkey", "psk"];
/// What stands in front of a secret in a text, in lower case.
const LABELS: &[&str] = &[
    "access-key",
    "access_key",
    "api-key",
    "api_key",
    "apikey",
    "authorization",
    "credentials",
    "passphrase",
    "passwd",
    "password",
    "preshared-key",
    "private-key",
    "private_key",
    "privatekey",
    "secret",
    "token",
];
/// The scheme in front of a secret in a header of HTTP.
const SCHEMES: &[&str] = &["bearer ", "basic "];
/// The shortest run of letters and digits that counts as a key.
const KEY: usize = 32;

/// Whether a member of a document with this name is a secret.
pub(in crate::report) fn is_key(name: &str) -> bool {
    let name: String =
        name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    NAMES.contains(&&*name) || PARTS.iter().any(|part| name.contains(part))
}

/// A secret at the beginning of `rest`: its length with its label, and what replaces both.
pub(super) fn at(previous: Option<char>, rest: &str) -> Option<(usize, String)> {
    if let Some(found) = labelled(previous, rest) {
        return Some(found);
    }
    if previous.is_some_and(|c| c.is_ascii_alphanumeric() || "+/_=".contains(c)) {
        return None;
    }
    let len = block(rest).or_else(|| key(rest)).or_else(|| bootstrap_token(rest))?;
    Some((len, REMOVED.to_owned()))
}

/// `LABEL=SECRET`, `LABEL: SECRET`, `--LABEL SECRET` or `Bearer SECRET`.
fn labelled(previous: Option<char>, rest: &str) -> Option<(usize, String)> {
    // Most characters begin no label.
    if !rest.as_bytes().first().is_some_and(|first| b"abcpst".contains(&first.to_ascii_lowercase())) {
        return None;
    }
    let starts_with =
        |label: &str| rest.get(..label.len()).is_some_and(|start| start.eq_ignore_ascii_case(label));
    let start = match SCHEMES.iter().find(|scheme| starts_with(scheme)) {
        Some(scheme) if !previous.is_some_and(char::is_alphanumeric) => {
            // A word of prose may follow.
            let len = value(&rest[scheme.len()..]);
            return (len >= 8).then(|| (scheme.len() + len, format!("{}{REMOVED}", &rest[..scheme.len()])));
        }
        _ => LABELS.iter().find(|label| starts_with(label))?.len(),
    };
    let quotes = |text: &str| text.len() - text.trim_start_matches(['\\', '"', '\'']).len();
    let blanks = |text: &str| text.len() - text.trim_start_matches([' ', '\t']).len();
    let mut at = start + quotes(&rest[start..]);
    at += blanks(&rest[at..]);
    match rest[at..].chars().next()? {
        ':' | '=' => at += 1,
        // An option of a program.
        _ if previous == Some('-') && at > start => {}
        _ => return None,
    }
    at += blanks(&rest[at..]);
    at += quotes(&rest[at..]);
    let begin = at;
    if let Some(scheme) = SCHEMES
        .iter()
        .find(|scheme| rest.get(at..at + scheme.len()).is_some_and(|word| word.eq_ignore_ascii_case(scheme)))
    {
        at += scheme.len();
    }
    let len = value(&rest[at..]);
    (len > 0).then(|| (at + len, format!("{}{REMOVED}", &rest[..begin])))
}

fn value(text: &str) -> usize {
    text.find(|c: char| c.is_whitespace() || "\"',;&})]\\".contains(c)).unwrap_or(text.len())
}

/// A PEM block, to its end or to that of the text.
fn block(rest: &str) -> Option<usize> {
    const END: &str = "-----END";
    rest.strip_prefix("-----BEGIN")?;
    let Some(end) = rest.find(END).map(|at| at + END.len()) else { return Some(rest.len()) };
    Some(rest[end..].find("-----").map_or(rest.len(), |at| end + at + 5))
}

/// A token of JSON, or a run of letters and digits that no name has: in Base64, or in mixed case and with digits.
fn key(rest: &str) -> Option<usize> {
    let run = |others: &[u8]| {
        rest.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || others.contains(byte)).count()
    };
    if rest.starts_with("eyJ") && run(b"_.-") >= 20 {
        return Some(run(b"_.-"));
    }
    let len = run(b"+/_-");
    let word = &rest[..len];
    let is_padded = rest[len..].starts_with('=');
    let has = |is: fn(&u8) -> bool| word.bytes().any(|byte| is(&byte));
    let is_mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase) && has(u8::is_ascii_digit);
    // A path has slashes too.
    let may_be_key = !word.contains('/') || word.contains('+') || is_padded;
    let padding = rest[len..].bytes().take_while(|byte| *byte == b'=').count();
    (len >= KEY && may_be_key && (is_mixed || is_padded && len >= 40)).then_some(len + padding)
}

/// A token with which nodes join a cluster: 6 characters, a dot, 16 characters.
fn bootstrap_token(rest: &str) -> Option<usize> {
    let bytes = rest.as_bytes().get(..23)?;
    let is_part = |part: &[u8]| part.iter().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let is_token = is_part(&bytes[..6]) && bytes[6] == b'.' && is_part(&bytes[7..]);
    let is_end = || !rest[23..].starts_with(|c: char| c.is_alphanumeric());
    (is_token && bytes[7..].iter().any(u8::is_ascii_digit) && is_end()).then_some(23)
}
