//! The answer to each verb but `watch`.

use std::sync::Arc;

use serde_json::{Value, json};

use crate::access::Request;
use crate::faults::Faults;
use crate::patch::patched;
use crate::path::{Key, Target};
use crate::refusal::Refusal;
use crate::select::Selector;
use crate::store::{Content, Store};

/// A code and an object.
type Answer = Result<(u16, Value), Refusal>;

pub(crate) fn answer(
    store: &Store,
    request: &Request,
    target: &Target,
    content_type: &str,
    body: &[u8],
    faults: &Faults,
) -> Answer {
    let parse = || {
        let invalid = |error| Refusal::new("BadRequest", format!("the body is not JSON: {error}"));
        let mut object = serde_json::from_slice::<Value>(body).map_err(invalid)?;
        faults.drop_unknown(&mut object);
        Ok(object)
    };
    let no_object = || Refusal::new("MethodNotAllowed", "the path names no object");
    let key = || target.key().ok_or_else(no_object);
    let sent = |code: u16| move |object: Arc<Value>| (code, (*object).clone());
    match request.verb {
        "get" => store.lock().find(&key()?).map(sent(200)),
        "list" => list(&store.lock(), request, target),
        "create" => {
            let object = clean(parse()?)?;
            store.change(|content| content.create(new_key(content, target, &object)?, object)).map(sent(201))
        }
        "update" => {
            let (key, object) = (key()?, parse()?);
            store.change(|content| change(content, target, &key, object)).map(sent(200))
        }
        "patch" => {
            let (key, patch) = (key()?, parse()?);
            let apply = content_type == "application/apply-patch+yaml";
            if apply && request.value("fieldManager").is_empty() {
                return Err(Refusal::new("BadRequest", "fieldManager is required for apply patch"));
            }
            store.change(|content| match content.find(&key) {
                Ok(old) => {
                    let object = patched(&old, content_type, &patch)?;
                    change(content, target, &key, object).map(sent(200))
                }
                Err(_) if apply => content.create(key, clean(patch)?).map(sent(201)),
                Err(missing) => Err(missing),
            })
        }
        "delete" => {
            let key = key()?;
            let options = if body.is_empty() { Value::Null } else { parse()? };
            store
                .change(|content| {
                    check_preconditions(&*content.find(&key)?, &options["preconditions"])?;
                    content.delete(&key)
                })
                .map(sent(200))
        }
        "deletecollection" => {
            let selector = selector(request, target)?;
            store.change(|content| {
                let of = content.of(target).filter(|(_, object)| selector.selects(object));
                let keys: Vec<Key> = of.map(|(key, _)| key.clone()).collect();
                keys.iter().try_for_each(|key| content.delete(key).map(drop))
            })?;
            Ok((200, json!({"kind": "Status", "apiVersion": "v1", "status": "Success"})))
        }
        _ => Err(Refusal::new("MethodNotAllowed", "the server does not allow this method on the resource")),
    }
}

pub(crate) fn selector(request: &Request, target: &Target) -> Result<Selector, Refusal> {
    let plural = &target.resource.plural;
    Selector::parse(plural, request.value("labelSelector"), request.value("fieldSelector"))
}

/// What a deletion asks of the object.
fn check_preconditions(object: &Value, wanted: &Value) -> Result<(), Refusal> {
    for field in ["uid", "resourceVersion"] {
        if !wanted[field].is_null() && wanted[field] != object["metadata"][field] {
            let text = format!(
                "Precondition failed: {field} in precondition: {}, in object meta: {}",
                wanted[field], object["metadata"][field]
            );
            return Err(Refusal::new("Conflict", text));
        }
    }
    Ok(())
}

/// A client's object, without what the server alone sets.
fn clean(mut object: Value) -> Result<Value, Refusal> {
    let fields = object.as_object_mut().ok_or_else(|| Refusal::new("BadRequest", "no object"))?;
    if let Some(metadata) = fields.entry("metadata").or_insert_with(|| json!({})).as_object_mut() {
        for field in ["uid", "creationTimestamp", "deletionTimestamp", "generation", "resourceVersion"] {
            metadata.remove(field);
        }
    }
    Ok(object)
}

/// The key of an object that a client creates.
fn new_key(content: &Content, target: &Target, object: &Value) -> Result<Key, Refusal> {
    let Target { resource, namespace, .. } = target;
    let (resource, namespace) = (resource.clone(), namespace.clone().unwrap_or_default());
    let metadata = &object["metadata"];
    let name = match (&metadata["name"], &metadata["generateName"]) {
        (Value::String(name), _) => name.clone(),
        (_, Value::String(start)) => format!("{start}{:05x}", content.revision),
        _ => return Err(Refusal::new("BadRequest", "name or generateName is required")),
    };
    Ok(Key { resource, namespace, name })
}

/// A client changes the status by its subresource, and everything else without.
fn change(
    content: &mut Content,
    target: &Target,
    key: &Key,
    mut object: Value,
) -> Result<Arc<Value>, Refusal> {
    let old = content.find(key)?;
    let (mut kept, from) = match target.subresource.as_deref() {
        Some("status") => {
            let mut kept = (*old).clone();
            kept["metadata"]["resourceVersion"] = object["metadata"]["resourceVersion"].take();
            (kept, object.get("status"))
        }
        None => (object, old.get("status")),
        Some(other) => return Err(Refusal::new("NotFound", format!("no subresource {other:?}"))),
    };
    match from {
        Some(status) => kept["status"] = status.clone(),
        None => drop(kept.as_object_mut().and_then(|fields| fields.remove("status"))),
    }
    content.replace(key, kept)
}

/// One page. The token of the next page has the revision of the first one: a watch from there misses nothing.
fn list(content: &Content, request: &Request, target: &Target) -> Answer {
    let selector = selector(request, target)?;
    if request.value("resourceVersion").parse().is_ok_and(|version: u64| version > content.revision) {
        return Err(Refusal::new("Timeout", "Too large resource version"));
    }
    let limit = request.value("limit").parse().ok().filter(|limit| *limit > 0).unwrap_or(usize::MAX);
    let (revision, after) = match request.value("continue").split_once(' ') {
        None => (content.revision, None),
        Some((revision, after)) => {
            let revision = revision.parse::<u64>().unwrap_or(0);
            if revision < content.compacted {
                return Err(Refusal::new("Expired", "The provided continue parameter is too old"));
            }
            (revision, after.split_once('/'))
        }
    };
    let follows = |key: &Key| after.is_none_or(|place| (key.namespace.as_str(), key.name.as_str()) > place);
    let mut found = content.of(target).filter(|(key, object)| follows(key) && selector.selects(object));
    let page: Vec<_> = found.by_ref().take(limit).collect();
    let mut metadata = json!({"resourceVersion": revision.to_string()});
    let rest = found.count();
    if let Some((last, _)) = page.last().filter(|_| rest > 0) {
        metadata["continue"] = json!(format!("{revision} {}/{}", last.namespace, last.name));
        metadata["remainingItemCount"] = json!(rest);
    }
    let api_version = target.resource.api_version();
    let kind = format!("{}List", kind(content, target));
    let items: Vec<&Value> = page.into_iter().map(|(_, object)| &**object).collect();
    Ok((200, json!({"kind": kind, "apiVersion": api_version, "metadata": metadata, "items": items})))
}

/// The kind of the objects, as the first one says it.
pub(crate) fn kind(content: &Content, target: &Target) -> String {
    let first = content.objects.iter().find(|(key, _)| key.resource == target.resource);
    first.and_then(|(_, object)| object["kind"].as_str()).unwrap_or("Object").to_owned()
}
