//! What a session asks for, and what becomes of the answers.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Error, Result, anyhow};
use serde::de::DeserializeOwned;

use super::decode::Head;

/// The objects of one path, and the messages about them.
pub(super) trait Kind {
    /// The path of all of its objects.
    const PATH: &'static str;
    /// Its plural, in errors.
    const WORD: &'static str;
    /// A list costs the API server this many times as much as one of nodes.
    const COST: u32;
    /// The name of its CustomResourceDefinition, of a kind that a cluster may lack.
    const CRD: Option<&'static str> = None;
    /// One object. The parser drops the other fields.
    type Object: DeserializeOwned;
    type Message;
    /// The message about the addresses of the API servers, for a kind that sends it.
    const SERVERS: Option<fn(BTreeSet<IpAddr>) -> Self::Message> = None;

    /// The object's version, which may be empty in a list.
    fn version(object: &Self::Object) -> &str;

    /// The object with this head. The rest cannot be read. `why`: the error.
    ///
    /// # Errors
    /// The session has to end for it.
    fn unread(head: Head, why: Error) -> Result<Self::Object>;

    /// A list begins: what the last one has listed does not count.
    fn begin(&mut self);

    /// The list has this object.
    fn listed(&mut self, object: Self::Object) -> Option<Self::Message>;

    /// The list is complete.
    fn complete(&mut self) -> Self::Message;

    /// The object is new or has changed.
    fn changed(&mut self, object: Self::Object) -> Option<Self::Message>;

    fn gone(&mut self, object: Self::Object) -> Option<Self::Message>;

    /// The connection works, or why it does not.
    fn state(state: Result<(), String>) -> Self::Message;
}

/// Reads an object, or at least its head.
pub(super) fn read<K: Kind>(text: &[u8], is_cut: bool) -> Result<K::Object> {
    match serde_json::from_slice(text) {
        Ok(object) => Ok(object),
        Err(_) if is_cut => K::unread(Head::read(text), too_large(text)),
        Err(error) => K::unread(Head::read(text), error.into()),
    }
}

/// Why a text that is cut off after its largest size cannot be read.
pub(super) fn too_large(text: &[u8]) -> Error {
    anyhow!("it has more than {} bytes", text.len())
}
