//! Masks what leaves the node in a report. Pure, except that each mask has a random key of its own.
//!
//! [`secret`] finds what never enters a report. The rest may be shown on demand: [`names`] knows the names of this node's pods,
//! containers, networks and nodes, [`address`] keeps the relations of addresses. Equal things get equal masks in one report, and
//! others in the next one.

pub(super) mod address;
pub(super) mod names;
pub(super) mod rules;
pub(super) mod secret;

use std::collections::HashSet;
use std::hash::{BuildHasher as _, RandomState};

use serde_json::Value;

use self::address::Addresses;
use self::names::Names;

/// The shortest run of hexadecimal digits that counts as an ID.
const ID: usize = 32;

/// Hosts in URLs that are everybody's.
const PUBLIC: [&str; 2] = ["localhost", "www.w3.org"];

/// What replaces names, addresses and secrets.
pub(super) struct Mask {
    names: Names,
    addresses: Addresses,
    key: RandomState,
    /// Texts that look like an ID and are none.
    kept: HashSet<String>,
    /// Whether names and addresses stay.
    is_open: bool,
}

impl Mask {
    pub(super) fn new(names: Names, kept: HashSet<String>, is_open: bool) -> Mask {
        Mask { names, addresses: Addresses::default(), key: RandomState::new(), kept, is_open }
    }

    /// The masked text.
    pub(super) fn text(&self, text: &str) -> String {
        let (mut masked, mut at) = (String::with_capacity(text.len()), 0);
        while let Some(c) = text[at..].chars().next() {
            match self.at(text, at) {
                Some((len, mask)) if len > 0 => {
                    masked += &mask;
                    at += len;
                }
                _ => {
                    masked.push(c);
                    at += c.len_utf8();
                }
            }
        }
        masked
    }

    /// A masked document. Members whose names say that they are secrets lose their values.
    pub(super) fn json(&self, value: &Value) -> Value {
        match value {
            Value::String(text) => self.text(text).into(),
            Value::Array(values) => values.iter().map(|value| self.json(value)).collect(),
            Value::Object(members) => {
                let member = |(key, value): (&String, &Value)| match secret::is_key(key) {
                    true => (self.text(key), secret::REMOVED.into()),
                    false => (self.text(key), self.json(value)),
                };
                Value::Object(members.iter().map(member).collect())
            }
            other => other.clone(),
        }
    }

    /// A text with rules of a firewall: its comments and the names of its chains may have names that nothing else knows.
    pub(super) fn rules(&self, text: &str) -> String {
        if self.is_open {
            return self.text(text);
        }
        let word = |word: &str| match self.names.mask(word, &self.key) {
            Some(mask) => mask,
            None => format!("name-{}", digest(&self.key, word)),
        };
        self.text(&rules::mask(text, &word))
    }

    /// What stands at this place: how long it is, and its mask.
    fn at(&self, text: &str, at: usize) -> Option<(usize, String)> {
        let (before, rest) = text.split_at(at);
        let previous = before.chars().next_back();
        if let Some(found) = secret::at(previous, rest) {
            return Some(found);
        }
        if before.ends_with("://")
            && let Some((len, kept)) = authority(rest)
        {
            let host = &rest[kept..len];
            let is_name = host.chars().any(|c| c.is_ascii_alphabetic()) && !PUBLIC.contains(&host);
            return match (is_name && !self.is_open, kept) {
                (true, _) => {
                    let user = if kept > 0 { format!("{}@", secret::REMOVED) } else { String::new() };
                    Some((len, format!("{user}host-{}", digest(&self.key, host))))
                }
                (false, 0) => self.named(previous, rest),
                (false, _) => Some((kept, format!("{}@", secret::REMOVED))),
            };
        }
        self.named(previous, rest)
    }

    fn named(&self, previous: Option<char>, rest: &str) -> Option<(usize, String)> {
        if self.is_open {
            return None;
        }
        let id = |len: usize| (len, format!("id-{}", digest(&self.key, &rest[..len])));
        self.names
            .at(previous, rest, &self.key)
            .or_else(|| self.id(previous, rest).map(id))
            .or_else(|| self.addresses.at(previous, rest))
    }

    /// The length of a UUID or of a long run of hexadecimal digits.
    fn id(&self, previous: Option<char>, rest: &str) -> Option<usize> {
        if previous.is_some_and(char::is_alphanumeric) {
            return None;
        }
        let run = |text: &str| text.bytes().take_while(u8::is_ascii_hexdigit).count();
        let mut end = 0;
        let is_uuid = [8, 4, 4, 4, 12].into_iter().enumerate().all(|(number, len)| {
            let start = if number == 0 { Some(0) } else { rest[end..].starts_with('-').then_some(end + 1) };
            start.is_some_and(|start| {
                end = start + run(&rest[start..]);
                end - start == len
            })
        });
        if is_uuid {
            return Some(end);
        }
        let len = run(rest);
        let is_whole = !rest[len..].starts_with(|c: char| c.is_alphanumeric());
        (len >= ID && is_whole && !self.kept.contains(&rest[..len])).then_some(len)
    }
}

/// The end of the host in a URL behind `://`, and where it begins behind the user.
fn authority(rest: &str) -> Option<(usize, usize)> {
    let end = rest.find(|c: char| "/?# \"'<>,;)".contains(c) || c.is_whitespace()).unwrap_or(rest.len());
    let start = rest[..end].rfind('@').map_or(0, |at| at + 1);
    let host = &rest[start..end];
    let len = host.find(|c: char| !c.is_ascii_alphanumeric() && !".-_".contains(c)).unwrap_or(host.len());
    (start > 0 || len > 0).then_some((start + len, start))
}

/// Eight hexadecimal digits that only this key leads to.
fn digest(key: &RandomState, text: &str) -> String {
    let hash = key.hash_one(text);
    format!("{:08x}", (hash >> 32) ^ (hash & 0xffff_ffff))
}

#[cfg(test)]
mod tests;
