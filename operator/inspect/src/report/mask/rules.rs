//! Names in the rules of firewalls that nothing else on the node knows, such as those of Services: in comments, and in the names of
//! kube-proxy's chains. Pure.

use super::names::is_word;

/// Words in comments that are no names.
const WORDS: &[&str] = &[
    "accept",
    "all",
    "and",
    "balancer",
    "by",
    "can",
    "cluster",
    "connections",
    "dnat",
    "drop",
    "endpoint",
    "endpoints",
    "established",
    "external",
    "for",
    "forward",
    "forwarding",
    "from",
    "has",
    "hairpin",
    "id",
    "if",
    "in",
    "input",
    "internal",
    "IP",
    "kube-proxy",
    "load",
    "local",
    "masquerade",
    "must",
    "new",
    "no",
    "not",
    "of",
    "on",
    "output",
    "packets",
    "policy",
    "portals",
    "ports",
    "requiring",
    "rules",
    "sctp",
    "service",
    "SNAT",
    "tcp",
    "to",
    "udp",
];

/// The text with each unknown word of comments and of names with slashes replaced by `word`.
pub(super) fn mask(text: &str, word: &dyn Fn(&str) -> String) -> String {
    let mut masked = String::with_capacity(text.len());
    for line in text.split_inclusive('\n') {
        let mut rest = line;
        while let Some(at) = rest.find("comment ") {
            let (before, comment) = rest.split_at(at + "comment ".len());
            let len = match comment.strip_prefix('"') {
                Some(quoted) => quoted.find('"').map_or(comment.len(), |end| end + 2),
                None => comment.find([' ', '\n']).unwrap_or(comment.len()),
            };
            masked += &slashes(before, word);
            masked += &words(&comment[..len], word);
            rest = &comment[len..];
        }
        masked += &slashes(rest, word);
    }
    masked
}

/// Each word of a comment.
fn words(comment: &str, word: &dyn Fn(&str) -> String) -> String {
    pieces(
        comment,
        |c| c.is_alphanumeric() || "._-".contains(c),
        |piece| match !piece.chars().any(char::is_alphabetic) || is_known(piece) {
            true => piece.to_owned(),
            false => word(piece),
        },
    )
}

/// The parts of words with slashes, except for addresses and `meta` expressions.
fn slashes(text: &str, word: &dyn Fn(&str) -> String) -> String {
    let is_part = |c: char| c.is_alphanumeric() || "._-/:".contains(c);
    pieces(text, is_part, |piece| {
        let is_digit = |byte: u8| byte.is_ascii_hexdigit() || b".:".contains(&byte);
        let is_plain = |part: &str| part.strip_prefix("0x").unwrap_or(part).bytes().all(is_digit);
        let Some(_) = piece.split_once('/').filter(|(first, _)| !is_plain(first)) else {
            return piece.to_owned();
        };
        let part = |part: &str| match is_plain(part) || is_known(part) {
            true => part.to_owned(),
            false => word(part),
        };
        piece.split('/').map(part).collect::<Vec<_>>().join("/")
    })
}

fn is_known(piece: &str) -> bool {
    is_word(piece) || WORDS.contains(&piece)
}

/// The text with each longest run of such characters replaced.
fn pieces(text: &str, is_in: impl Fn(char) -> bool, mut replace: impl FnMut(&str) -> String) -> String {
    let (mut replaced, mut rest) = (String::new(), text);
    while !rest.is_empty() {
        let start = rest.find(&is_in).unwrap_or(rest.len());
        replaced += &rest[..start];
        rest = &rest[start..];
        let end = rest.find(|c| !is_in(c)).unwrap_or(rest.len());
        if end > 0 {
            replaced += &replace(&rest[..end]);
        }
        rest = &rest[end..];
    }
    replaced
}
