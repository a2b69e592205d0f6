//! The two forms of a network: a list of plugins, and a list with one `chain`, which runs the plugins of its own key `plugins`, its members, in
//! one process. Pure.

use serde_json::{Map, Value};

/// An object of JSON. Its keys are sorted, as libcni sends them.
pub type Object = Map<String, Value>;

/// The plugin that runs others.
pub const CHAIN: &str = "chain";

/// The type of a plugin; empty if it has none.
pub fn type_of(plugin: &Object) -> &str {
    plugin.get("type").and_then(Value::as_str).unwrap_or_default()
}

/// The capabilities that a plugin declares.
pub fn declared(plugin: &Object) -> impl Iterator<Item = &str> {
    let all = plugin.get("capabilities").and_then(Value::as_object).into_iter().flatten();
    all.filter(|(_, value)| **value == Value::Bool(true)).map(|(name, _)| name.as_str())
}

/// The first plugin of a list in either form, which makes the interface. Null if there is none.
pub fn first(list: &Value) -> &Value {
    let first = &list["plugins"][0];
    if first["type"] == CHAIN { &first["plugins"][0] } else { first }
}

/// As [`first`], to change it. `None` if there is none.
pub fn first_mut(list: &mut Value) -> Option<&mut Value> {
    let first = list.get_mut("plugins")?.get_mut(0)?;
    if first["type"] == CHAIN { first.get_mut("plugins")?.get_mut(0) } else { Some(first) }
}

/// Puts a plugin behind all others of a list in either form, unless it has one of this type.
pub fn append(list: &mut Value, plugin: &Object) {
    let Some(Value::Array(plugins)) = list.get_mut("plugins") else { return };
    let objects: Vec<Object> = plugins.iter().filter_map(|plugin| plugin.as_object().cloned()).collect();
    if members(&objects).iter().any(|member| type_of(member) == type_of(plugin)) {
        return;
    }
    let last = plugins.last_mut().filter(|last| last["type"] == CHAIN);
    match last.and_then(|chain| chain.get_mut("plugins")?.as_array_mut()) {
        Some(members) => members.push(plugin.clone().into()),
        None => plugins.push(plugin.clone().into()),
    }
}

/// The plugins of a list, each chain in it replaced by its members. A runtime calls them with the same configurations, in the same order.
pub fn members(plugins: &[Object]) -> Vec<Object> {
    let list = |plugin: &Object| match plugin.get("plugins") {
        Some(Value::Array(inner)) if type_of(plugin) == CHAIN => {
            inner.iter().filter_map(|inner| inner.as_object().cloned()).collect()
        }
        _ => vec![plugin.clone()],
    };
    plugins.iter().flat_map(list).collect()
}

/// The list with one chain, which has all plugins.
///
/// # Errors
/// This is no list of plugins.
pub fn fold(list: &Object) -> Result<Object, String> {
    let members = members(&plugins(list)?);
    let capabilities: Object =
        members.iter().flat_map(declared).map(|name| (name.to_owned(), true.into())).collect();
    let mut chain = Object::new();
    chain.insert("type".to_owned(), CHAIN.into());
    if !capabilities.is_empty() {
        chain.insert("capabilities".to_owned(), capabilities.into());
    }
    chain.insert("plugins".to_owned(), members.into());
    Ok(with(list, vec![chain]))
}

/// The list without chains.
///
/// # Errors
/// This is no list of plugins.
pub fn unfold(list: &Object) -> Result<Object, String> {
    Ok(with(list, members(&plugins(list)?)))
}

/// The list without chains. Anything else stays as it is.
pub fn unfolded(list: Value) -> Value {
    list.as_object().and_then(|list| unfold(list).ok()).map_or(list, Value::from)
}

fn plugins(list: &Object) -> Result<Vec<Object>, String> {
    let Some(Value::Array(plugins)) = list.get("plugins") else {
        return Err("this is no list of plugins: it has no key \"plugins\"".to_owned());
    };
    if !type_of(list).is_empty() {
        return Err("this is one plugin and no list: it has a \"type\"".to_owned());
    }
    if plugins.is_empty() {
        return Err("the list has no plugins".to_owned());
    }
    let object = |plugin: &Value| {
        plugin
            .as_object()
            .filter(|plugin| !type_of(plugin).is_empty())
            .cloned()
            .ok_or(format!("no plugin: {plugin}"))
    };
    plugins.iter().map(object).collect()
}

fn with(list: &Object, plugins: Vec<Object>) -> Object {
    let mut list = list.clone();
    list.insert("plugins".to_owned(), plugins.into());
    list
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn object(value: &Value) -> Object {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn there_and_back() {
        let list = object(
            &json!({"name": "net", "cniVersions": ["1.0.0"], "disableCheck": true, "plugins": [
            {"type": "a", "capabilities": {"mac": true, "ips": false}}, {"type": "b", "capabilities": {"x": true}}, {"type": "c"}]}),
        );
        let folded = fold(&list).unwrap();
        let expected = json!({"name": "net", "cniVersions": ["1.0.0"], "disableCheck": true, "plugins": [
            {"type": "chain", "capabilities": {"mac": true, "x": true}, "plugins": list["plugins"]}]});
        assert_eq!(Value::from(folded.clone()), expected);
        assert_eq!(unfold(&folded), Ok(list.clone()));
        assert_eq!((fold(&folded), unfold(&list)), (Ok(folded.clone()), Ok(list.clone())));
        // Another project has appended its plugin.
        let mut longer = folded.clone();
        longer["plugins"].as_array_mut().unwrap().push(json!({"type": "d", "capabilities": {"dns": true}}));
        assert_eq!(unfold(&longer).unwrap()["plugins"].as_array().unwrap().len(), 4);
        assert_eq!(
            fold(&longer).unwrap()["plugins"][0]["capabilities"],
            json!({"dns": true, "mac": true, "x": true})
        );
        assert_eq!(unfolded(folded.clone().into()), Value::from(list.clone()));
        assert_eq!(unfolded(json!({"type": "bridge"})), json!({"type": "bridge"}));
        for mut form in [Value::from(list.clone()), folded.clone().into()] {
            assert_eq!(first(&form)["type"], "a");
            first_mut(&mut form).unwrap()["mtu"] = json!(9);
            assert_eq!(first(&form)["mtu"], 9);
        }
        let policy = object(&json!({"type": "policy"}));
        for mut form in [Value::from(list.clone()), folded.clone().into(), longer.clone().into()] {
            let mut expected = members(&plugins(&object(&form)).unwrap());
            expected.push(policy.clone());
            append(&mut form, &policy);
            let once = form.clone();
            assert_eq!(members(&plugins(&object(&form)).unwrap()), expected);
            append(&mut form, &policy);
            assert_eq!(form, once);
        }
        for mut none in [json!({}), json!({"plugins": [{"type": "chain", "plugins": []}]})] {
            assert!(first(&none).is_null() && first_mut(&mut none).is_none());
        }
        let plain = object(&json!({"plugins": [{"type": "a"}]}));
        assert_eq!(fold(&plain).unwrap()["plugins"], json!([{"type": "chain", "plugins": [{"type": "a"}]}]));
    }

    #[test]
    fn what_is_no_list() {
        for (list, why) in [
            (json!({"type": "bridge"}), "no key \"plugins\""),
            (json!({"type": "chain", "plugins": [{"type": "a"}]}), "one plugin and no list"),
            (json!({"plugins": []}), "the list has no plugins"),
            (json!({"plugins": [{"type": "a"}, {}]}), "no plugin: {}"),
        ] {
            assert!(fold(&object(&list)).unwrap_err().contains(why), "{list}");
        }
    }
}
