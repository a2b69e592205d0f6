//! Links in containers that have no end on the host: they end with the namespace, so gc has nothing to do. The cached result
//! names them; no namespace is entered.

use cni_common::spec::CniError;
use serde_json::Value;

use super::Scene;
use crate::model::{Kind, Maker, Object, Sockets};

/// The plugins that make such a link.
const PLUGINS: [&str; 6] = ["dummy", "host-device", "ipvlan", "macvlan", "tap", "vlan"];

/// Lists the links.
pub(super) fn read(_: &mut Sockets, scene: &Scene) -> Result<Vec<Object>, CniError> {
    let mut objects = Vec::new();
    for entry in &scene.cache.entries {
        let plugins = entry.plugins();
        let Some(plugin) = plugins.first() else { continue };
        let text = |key: &str| plugin.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let kind = text("type");
        if !PLUGINS.contains(&kind.as_str()) {
            continue;
        }
        for (name, mac) in entry.links(false) {
            let place = format!("namespace {}", entry.netns);
            let name = format!("{name} in the container");
            let object = Object::new(Kind::Link, name, place, entry.owner.clone(), Maker::Either);
            let facts = vec![("kind", kind.clone()), ("mac", mac), ("master", text("master"))];
            objects.push(Object { facts, ..object });
        }
    }
    Ok(objects)
}
