//! The objects and their history.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::SystemTime;

use serde_json::{Value, json};
use tokio::sync::watch;

use crate::path::{Key, Target};
use crate::refusal::Refusal;

/// The objects of a cluster. Clones share them.
#[derive(Clone, Debug)]
pub struct Store(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    content: Mutex<Content>,
    newest: watch::Sender<u64>,
}

#[derive(Debug, Default)]
pub(crate) struct Content {
    pub(crate) objects: BTreeMap<Key, Arc<Value>>,
    pub(crate) revision: u64,
    /// In order of their revisions.
    pub(crate) changes: Vec<Change>,
    /// Changes before it are forgotten.
    pub(crate) compacted: u64,
    made: u64,
}

/// One change of one object.
#[derive(Clone, Debug)]
pub(crate) struct Change {
    pub(crate) revision: u64,
    pub(crate) key: Key,
    pub(crate) old: Option<Arc<Value>>,
    /// A deleted object has it too: its last state with the revision of the deletion.
    pub(crate) new: Arc<Value>,
    pub(crate) deleted: bool,
}

impl Default for Store {
    fn default() -> Store {
        // Revision 0 has a meaning of its own in requests.
        let content = Content { revision: 1, ..Content::default() };
        Store(Arc::new(Shared { content: Mutex::new(content), newest: watch::Sender::new(1) }))
    }
}

impl Store {
    /// The object at this path.
    pub fn get(&self, path: &str) -> Option<Value> {
        let key = Target::parse(path).unwrap().key().expect("an object's path");
        self.lock().objects.get(&key).map(|object| (**object).clone())
    }

    /// The objects of this collection, by name.
    pub fn list(&self, path: &str) -> Vec<Value> {
        let target = Target::parse(path).unwrap();
        let content = self.lock();
        content.of(&target).map(|(_, object)| (**object).clone()).collect()
    }

    /// Makes or replaces the object at this path, with its status. `metadata` may be absent.
    pub fn put(&self, path: &str, mut object: Value) {
        let key = Target::parse(path).unwrap().key().expect("an object's path");
        self.change(|content| {
            object["metadata"]["name"] = json!(key.name);
            match content.objects.contains_key(&key) {
                true => content.replace(&key, object).map(drop),
                false => content.create(key, object).map(drop),
            }
        })
        .unwrap();
    }

    /// Changes the object at this path by a merge patch.
    pub fn patch(&self, path: &str, patch: &Value) {
        let key = Target::parse(path).unwrap().key().expect("an object's path");
        self.change(|content| {
            let mut object = (*content.find(&key)?).clone();
            json_patch::merge(&mut object, patch);
            content.replace(&key, object)
        })
        .unwrap();
    }

    /// Removes the object at this path, or asks its finalizers to.
    pub fn delete(&self, path: &str) {
        let key = Target::parse(path).unwrap().key().expect("an object's path");
        self.change(|content| content.delete(&key)).unwrap();
    }

    /// Forgets the history, as etcd does after five minutes, and ends all watches with 410: those that run and those that begin
    /// at a revision from before.
    pub fn forget(&self) {
        self.change(|content| {
            content.revision += 1;
            content.compacted = content.revision;
            content.changes.clear();
            Ok(())
        })
        .unwrap();
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Content> {
        self.0.content.lock().unwrap()
    }

    /// Makes changes and wakes the watches up.
    pub(crate) fn change<T>(
        &self,
        work: impl FnOnce(&mut Content) -> Result<T, Refusal>,
    ) -> Result<T, Refusal> {
        let mut content = self.lock();
        let done = work(&mut content);
        self.0.newest.send_replace(content.revision);
        done
    }

    pub(crate) fn subscribe(&self) -> watch::Receiver<u64> {
        self.0.newest.subscribe()
    }
}

impl Content {
    pub(crate) fn of(&self, target: &Target) -> impl Iterator<Item = (&Key, &Arc<Value>)> {
        self.objects.iter().filter(|(key, _)| target.covers(key))
    }

    pub(crate) fn find(&self, key: &Key) -> Result<Arc<Value>, Refusal> {
        let missing = || Refusal::no_object(&key.resource.plural, &key.name);
        self.objects.get(key).cloned().ok_or_else(missing)
    }

    pub(crate) fn create(&mut self, key: Key, mut object: Value) -> Result<Arc<Value>, Refusal> {
        if self.objects.contains_key(&key) {
            let text = format!("{} {:?} already exists", key.resource.plural, key.name);
            return Err(Refusal::new("AlreadyExists", text));
        }
        self.made += 1;
        let metadata = &mut object["metadata"];
        metadata["name"] = json!(key.name);
        if !key.namespace.is_empty() {
            metadata["namespace"] = json!(key.namespace);
        }
        for (field, value) in [
            ("uid", json!(format!("00000000-0000-4000-8000-{:012x}", self.made))),
            ("creationTimestamp", now()),
            ("generation", json!(1)),
        ] {
            // The store's owner may set them; a client's values are removed before.
            if metadata.get(field).is_none_or(Value::is_null) {
                metadata[field] = value;
            }
        }
        Ok(self.write(key, object, false))
    }

    /// The new state of an object. An old revision in it is a conflict; it may have no revision.
    pub(crate) fn replace(&mut self, key: &Key, mut object: Value) -> Result<Arc<Value>, Refusal> {
        let old = self.find(key)?;
        let seen = &object["metadata"]["resourceVersion"];
        if !seen.is_null() && *seen != old["metadata"]["resourceVersion"] {
            let text = format!(
                "Operation cannot be fulfilled on {} {:?}: the object has been modified; please apply your changes to \
                 the latest version and try again",
                key.resource.plural, key.name
            );
            return Err(Refusal::new("Conflict", text));
        }
        for field in ["name", "namespace", "uid", "creationTimestamp", "deletionTimestamp", "resourceVersion"]
        {
            match old["metadata"].get(field) {
                Some(value) => object["metadata"][field] = value.clone(),
                None => drop(object["metadata"].as_object_mut().and_then(|metadata| metadata.remove(field))),
            }
        }
        let generation = old["metadata"]["generation"].as_u64().unwrap_or(0);
        let changed = object.get("spec") != old.get("spec");
        object["metadata"]["generation"] = json!(generation + u64::from(changed));
        if object == *old {
            return Ok(old);
        }
        let done = !object["metadata"]["deletionTimestamp"].is_null() && !is_held(&object);
        Ok(self.write(key.clone(), object, done))
    }

    pub(crate) fn delete(&mut self, key: &Key) -> Result<Arc<Value>, Refusal> {
        let mut object = (*self.find(key)?).clone();
        if !is_held(&object) {
            return Ok(self.write(key.clone(), object, true));
        }
        if object["metadata"]["deletionTimestamp"].is_null() {
            object["metadata"]["deletionTimestamp"] = now();
            return Ok(self.write(key.clone(), object, false));
        }
        self.find(key)
    }

    fn write(&mut self, key: Key, mut object: Value, deleted: bool) -> Arc<Value> {
        self.revision += 1;
        object["metadata"]["resourceVersion"] = json!(self.revision.to_string());
        let new = Arc::new(object);
        let old = match deleted {
            true => self.objects.remove(&key),
            false => self.objects.insert(key.clone(), new.clone()),
        };
        self.changes.push(Change { revision: self.revision, key, old, new: new.clone(), deleted });
        new
    }
}

/// Whether a finalizer keeps the object.
fn is_held(object: &Value) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|finalizers| !finalizers.is_empty())
}

fn now() -> Value {
    json!(humantime::format_rfc3339_seconds(SystemTime::now()).to_string())
}
