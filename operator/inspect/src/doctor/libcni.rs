//! Decodes a network configuration as libcni does, with the same verdict. Pure.
//!
//! # References
//! NetworkConfFromBytes and NetworkPluginConfFromBytes in libcni/conf.go, version 1.3. Runtimes read a file `*.conflist` with the first,
//! and all others with the second.

use serde_json::{Map, Value};

/// The newest version that libcni knows.
const NEWEST: [u32; 3] = [1, 1, 0];

const CORRECT: &str = "correct the file; containerd may refuse all networks because of it";
const TO_CONFLIST: &str = "give the file a name that ends with .conflist";
const TO_CONF: &str = "give the file a name that ends with .conf, or put the plugin into a list \"plugins\"";

/// A configuration.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Decoded {
    /// The network's name.
    pub(super) name: String,
    /// The version that a runtime uses.
    pub(super) version: String,
    /// The configurations of its plugins.
    pub(super) plugins: Vec<Value>,
    /// The folder of the network's name has more plugins.
    pub(super) has_folder: bool,
}

/// Why a runtime cannot use a file.
#[derive(Debug, PartialEq)]
pub(super) struct Unusable {
    /// The fault.
    pub(super) why: String,
    /// The remedy.
    pub(super) remedy: &'static str,
}

impl From<String> for Unusable {
    fn from(why: String) -> Self {
        Unusable { why, remedy: CORRECT }
    }
}

impl From<&str> for Unusable {
    fn from(why: &str) -> Self {
        why.to_owned().into()
    }
}

/// The type of a plugin or of a section of IPAM, if it has one.
pub fn type_of(conf: &Value) -> Option<&str> {
    conf["type"].as_str().filter(|name| !name.is_empty())
}

/// Decodes a list of plugins. It may have none yet if its folder can have some.
pub(super) fn list(text: &str) -> Result<Decoded, Unusable> {
    let json = object(text)?;
    let name = name(&json)?;
    let version = version(&json)?;
    for key in ["disableCheck", "disableGC"] {
        is_on(&json, key)?;
    }
    let is_inlined = is_on(&json, "loadOnlyInlinedPlugins")?;
    let plugins = match json.get("plugins") {
        None if json.contains_key("type") => {
            let why = "is one plugin, and a file .conflist must have a list \"plugins\"".to_owned();
            return Err(Unusable { why, remedy: TO_CONF });
        }
        None if is_inlined => return Err("has loadOnlyInlinedPlugins, but no \"plugins\"".into()),
        None => Vec::new(),
        Some(Value::Array(plugins)) if plugins.is_empty() => return Err("has no \"plugins\"".into()),
        Some(Value::Array(plugins)) => plugins.clone(),
        Some(_) => return Err("\"plugins\" is not a list".into()),
    };
    for (at, conf) in plugins.iter().enumerate() {
        check(conf).map_err(|why| format!("plugins[{at}] {why}"))?;
    }
    Ok(Decoded { name, version, plugins, has_folder: !is_inlined })
}

/// Decodes a single plugin, which becomes a list of one.
pub(super) fn single(text: &str) -> Result<Decoded, Unusable> {
    let json = object(text)?;
    if json.contains_key("plugins") && !json.contains_key("type") {
        let why = "is a list, and runtimes take a file .conf or .json for one plugin".to_owned();
        return Err(Unusable { why, remedy: TO_CONFLIST });
    }
    let name = name(&json)?;
    let version = text_of(&json, "cniVersion")?.filter(|version| !version.is_empty()).unwrap_or("0.1.0");
    let version = version.to_owned();
    let conf = Value::Object(json);
    check(&conf)?;
    Ok(Decoded { name, version, plugins: vec![conf], has_folder: false })
}

/// Decodes a plugin in the folder of a network.
pub(super) fn plugin(text: &str) -> Result<Value, Unusable> {
    let conf = Value::Object(object(text)?);
    check(&conf)?;
    Ok(conf)
}

fn object(text: &str) -> Result<Map<String, Value>, Unusable> {
    match serde_json::from_str(text) {
        Ok(Value::Object(json)) => Ok(json),
        Ok(_) => Err("is not a JSON object".into()),
        Err(error) => Err(format!("is not JSON: {error}").into()),
    }
}

fn text_of<'j>(json: &'j Map<String, Value>, key: &str) -> Result<Option<&'j str>, Unusable> {
    match json.get(key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{key:?} is not a text").into()),
    }
}

/// libcni takes an empty name, and then each plugin refuses it.
fn name(json: &Map<String, Value>) -> Result<String, Unusable> {
    let name = text_of(json, "name")?.filter(|name| !name.is_empty());
    name.map(str::to_owned).ok_or_else(|| "has no \"name\"".into())
}

/// The highest of `cniVersion` and `cniVersions` that libcni knows.
fn version(json: &Map<String, Value>) -> Result<String, Unusable> {
    let single = text_of(json, "cniVersion")?.unwrap_or_default();
    let mut all = Vec::new();
    match json.get("cniVersions") {
        None => {}
        Some(Value::Array(several)) => {
            for one in several {
                let text = one.as_str().ok_or("\"cniVersions\" has an item that is not a text")?;
                all.push((number(text)?, text));
            }
            if !single.is_empty() {
                all.push((number(single)?, single));
            }
        }
        Some(_) => return Err("\"cniVersions\" is not a list".into()),
    }
    let known = all.into_iter().filter(|(number, _)| *number <= NEWEST);
    let version = known.max().map_or(single, |(_, text)| text);
    Ok(if version.is_empty() { "0.1.0" } else { version }.to_owned())
}

/// The parts of a version; those that are missing are 0.
fn number(text: &str) -> Result<[u32; 3], Unusable> {
    if text.is_empty() {
        return Ok([0, 1, 0]);
    }
    let invalid = || format!("{text:?} is no version");
    let mut parts = text.split('.');
    let mut number = [0; 3];
    for (to, part) in number.iter_mut().zip(&mut parts) {
        *to = part.parse().map_err(|_| invalid())?;
    }
    if parts.next().is_some() { Err(invalid().into()) } else { Ok(number) }
}

/// A switch: a JSON boolean, or the text `true` or `false`.
fn is_on(json: &Map<String, Value>, key: &str) -> Result<bool, Unusable> {
    match json.get(key) {
        None => Ok(false),
        Some(Value::Bool(is_on)) => Ok(*is_on),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("true") => Ok(true),
        Some(Value::String(text)) if text.eq_ignore_ascii_case("false") => Ok(false),
        Some(_) => Err(format!("{key:?} is neither true nor false").into()),
    }
}

/// Checks the keys of a plugin that libcni decodes.
fn check(conf: &Value) -> Result<(), String> {
    if !conf.is_object() && !conf.is_null() {
        return Err("is not a JSON object".to_owned());
    }
    let is_text = |value: &Value| value.is_null() || value.is_string();
    let is = |key: &str, what: &str, is_it: &dyn Fn(&Value) -> bool| {
        let is_right = conf[key].is_null() || is_it(&conf[key]);
        if is_right { Ok(()) } else { Err(format!("has a {key:?} that is not {what}")) }
    };
    for key in ["type", "name", "cniVersion"] {
        is(key, "a text", &is_text)?;
    }
    if type_of(conf).is_none() {
        return Err("has no \"type\"".to_owned());
    }
    let is_flag = |value: &Value| value.is_null() || value.is_boolean();
    let has_flags = |map: &Value| map.as_object().is_some_and(|map| map.values().all(is_flag));
    is("capabilities", "an object of booleans", &has_flags)?;
    is("ipam", "an object with a text as \"type\"", &|ipam| ipam.is_object() && is_text(&ipam["type"]))?;
    let is_texts =
        |list: &Value| list.is_null() || list.as_array().is_some_and(|texts| texts.iter().all(is_text));
    let has_texts = |dns: &Value| {
        let lists = ["nameservers", "search", "options"].iter().all(|key| is_texts(&dns[*key]));
        dns.is_object() && is_text(&dns["domain"]) && lists
    };
    is("dns", "an object of texts", &has_texts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdicts_of_libcni() {
        let plugin = r#""plugins":[{"type":"a"}]"#;
        let list_with = |keys: &str| format!(r#"{{"name":"x",{plugin},{keys}}}"#);
        let single_with = |keys: &str| format!(r#"{{"name":"x","type":"a",{keys}}}"#);
        // An empty text: it is good.
        for (of, text, why) in [
            ("conflist", "{".to_owned(), "is not JSON: EOF while parsing an object at line 1 column 1"),
            ("conflist", "[]".to_owned(), "is not a JSON object"),
            ("conflist", r#"{"name":"x","type":"a"}"#.to_owned(), "is one plugin"),
            ("conflist", r#"{"plugins":[{"type":"a"}]}"#.to_owned(), "has no \"name\""),
            ("conflist", r#"{"name":5,"plugins":[{"type":"a"}]}"#.to_owned(), "\"name\" is not a text"),
            ("conflist", r#"{"name":"x","plugins":[]}"#.to_owned(), "has no \"plugins\""),
            ("conflist", r#"{"name":"x","plugins":{"type":"a"}}"#.to_owned(), "\"plugins\" is not a list"),
            (
                "conflist",
                r#"{"name":"x","plugins":[{"type":"a"},{}]}"#.to_owned(),
                "plugins[1] has no \"type\"",
            ),
            ("conflist", r#"{"name":"x","plugins":[null]}"#.to_owned(), "plugins[0] has no \"type\""),
            ("conflist", r#"{"name":"x","plugins":["a"]}"#.to_owned(), "plugins[0] is not a JSON object"),
            ("conflist", r#"{"name":"x"}"#.to_owned(), ""),
            (
                "conflist",
                r#"{"name":"x","loadOnlyInlinedPlugins":true}"#.to_owned(),
                "has loadOnlyInlinedPlugins",
            ),
            ("conflist", list_with(r#""loadOnlyInlinedPlugins":"TRUE""#), ""),
            ("conflist", list_with(r#""disableCheck":"false""#), ""),
            ("conflist", list_with(r#""disableCheck":"no""#), "\"disableCheck\" is neither true nor false"),
            ("conflist", list_with(r#""disableCheck":1"#), "\"disableCheck\" is neither true nor false"),
            ("conflist", list_with(r#""disableGC":null"#), "\"disableGC\" is neither true nor false"),
            ("conflist", list_with(r#""cniVersion":1"#), "\"cniVersion\" is not a text"),
            ("conflist", list_with(r#""cniVersions":"1.0.0""#), "\"cniVersions\" is not a list"),
            ("conflist", list_with(r#""cniVersions":[1]"#), "\"cniVersions\" has an item"),
            ("conflist", list_with(r#""cniVersions":["1.0.0.0"]"#), "\"1.0.0.0\" is no version"),
            ("conflist", list_with(r#""cniVersions":["9.0.0"]"#), ""),
            ("conf", r#"{"name":"x","plugins":[{"type":"a"}]}"#.to_owned(), "is a list"),
            ("conf", single_with(r#""plugins":[]"#), ""),
            ("conf", r#"{"type":"a"}"#.to_owned(), "has no \"name\""),
            ("conf", r#"{"name":"x"}"#.to_owned(), "has no \"type\""),
            ("conf", r#"{"name":"x","type":5}"#.to_owned(), "has a \"type\" that is not a text"),
            ("conf", single_with(r#""disableCheck":1"#), ""),
            ("conf", single_with(r#""capabilities":{"portMappings":true}"#), ""),
            ("conf", single_with(r#""capabilities":{"portMappings":"true"}"#), "has a \"capabilities\" that"),
            ("conf", single_with(r#""capabilities":["portMappings"]"#), "has a \"capabilities\" that"),
            ("conf", single_with(r#""ipam":"host-local""#), "has a \"ipam\" that"),
            ("conf", single_with(r#""ipam":null,"dns":null"#), ""),
            ("conf", single_with(r#""dns":{"nameservers":["10.0.0.1"]}"#), ""),
            ("conf", single_with(r#""dns":{"nameservers":"10.0.0.1"}"#), "has a \"dns\" that"),
        ] {
            let decoded = if of == "conf" { single(&text) } else { list(&text) };
            let found = decoded.err().map_or(String::new(), |error| error.why);
            assert!(found.starts_with(why) && found.is_empty() == why.is_empty(), "{of} {text}: {found:?}");
        }
    }

    #[test]
    fn remedies_name_the_ending() {
        let remedy = |decoded: Result<Decoded, Unusable>| decoded.unwrap_err().remedy;
        assert_eq!(remedy(list(r#"{"name":"x","type":"a"}"#)), TO_CONF);
        assert_eq!(remedy(single(r#"{"name":"x","plugins":[]}"#)), TO_CONFLIST);
    }

    #[test]
    fn the_version_that_a_runtime_uses() {
        let of_list = |keys: &str| {
            list(&format!(r#"{{"name":"x","plugins":[{{"type":"a"}}]{keys}}}"#)).unwrap().version
        };
        for (keys, version) in [
            ("", "0.1.0"),
            (r#","cniVersion":"0.4.0""#, "0.4.0"),
            (r#","cniVersion":"9.0.0""#, "9.0.0"),
            (r#","cniVersion":"0.4.0","cniVersions":["1.0.0","0.3.1"]"#, "1.0.0"),
            (r#","cniVersion":"0.4.0","cniVersions":["9.0.0"]"#, "0.4.0"),
            (r#","cniVersion":"9.0.0","cniVersions":["0.3.1"]"#, "0.3.1"),
            (r#","cniVersions":["1.0"]"#, "1.0"),
        ] {
            assert_eq!(of_list(keys), version, "{keys}");
        }
        // Only a list may have several.
        let one = single(r#"{"name":"x","type":"a","cniVersion":"0.4.0","cniVersions":["1.0.0"]}"#).unwrap();
        assert_eq!(one.version, "0.4.0");
    }
}
