//! Standard input of a plugin: its object of the configuration, plus the keys that the runtime adds.

use serde_json::{Map, Value, json};

use super::go_json;
use super::{Attachment, Network, ValidAttachment};

/// The keys that an operation adds to a plugin's configuration, besides name and version.
#[derive(Debug, Clone, Copy)]
pub enum Extra<'a> {
    /// ADD, CHECK and DEL: the values of declared capabilities, and a previous result if there is one.
    Attachment(&'a Attachment, Option<&'a Value>),
    /// GC: the attachments in use, if the runtime has a list. As in libcni an empty list becomes `null`.
    Gc(Option<&'a [ValidAttachment]>),
    /// STATUS: nothing.
    Status,
}

/// The bytes that libcni would send to a plugin of this network.
pub fn plugin_input(network: &Network, plugin: &Map<String, Value>, extra: Extra<'_>) -> Vec<u8> {
    let mut input = plugin.clone();
    input.insert("name".to_owned(), network.name.clone().into());
    input.insert("cniVersion".to_owned(), network.version.clone().into());
    match extra {
        Extra::Attachment(attachment, previous) => {
            if let Some(values) = declared_capabilities(plugin, attachment) {
                input.insert("runtimeConfig".to_owned(), values.into());
            }
            if let Some(previous) = previous {
                input.insert("prevResult".to_owned(), previous.clone());
            }
        }
        Extra::Gc(Some(valid)) => {
            let list = if valid.is_empty() { Value::Null } else { valid.iter().map(to_json).collect() };
            // The specification renamed the key; libcni sends both.
            input.insert("cni.dev/valid-attachments".to_owned(), list.clone());
            input.insert("cni.dev/attachments".to_owned(), list);
        }
        Extra::Gc(None) | Extra::Status => {}
    }
    go_json::to_bytes(&Value::Object(input))
}

fn declared_capabilities(plugin: &Map<String, Value>, attachment: &Attachment) -> Option<Map<String, Value>> {
    let declared = plugin.get("capabilities")?.as_object()?;
    let wanted = declared.iter().filter(|(_, wanted)| **wanted == Value::Bool(true));
    let values: Map<_, _> = wanted
        .filter_map(|(name, _)| Some((name.clone(), attachment.capabilities.get(name)?.clone())))
        .collect();
    (!values.is_empty()).then_some(values)
}

fn to_json(valid: &ValidAttachment) -> Value {
    json!({"containerID": valid.container_id, "ifname": valid.ifname})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn network(plugin: Value) -> Network {
        let list = json!({"name": "dbnet", "cniVersion": "1.1.0", "disableCheck": true, "plugins": [plugin]});
        Network::from_value(&list).unwrap()
    }

    fn input(network: &Network, extra: Extra<'_>) -> String {
        String::from_utf8(plugin_input(network, &network.plugins[0], extra)).unwrap()
    }

    #[test]
    fn only_values_of_declared_capabilities_are_passed() {
        let network = network(json!({"type": "p", "capabilities": {"a": true, "b": false, "c": true}}));
        let attachment = Attachment::new("c", "", "eth0").with_capability("a", 1).with_capability("b", 2);
        assert_eq!(
            input(&network, Extra::Attachment(&attachment, Some(&json!({"ips": []})))),
            r#"{"capabilities":{"a":true,"b":false,"c":true},"cniVersion":"1.1.0","name":"dbnet","prevResult":{"ips":[]},"runtimeConfig":{"a":1},"type":"p"}"#
        );
        let without_values = Attachment::new("c", "", "eth0").with_capability("b", 2);
        assert!(!input(&network, Extra::Attachment(&without_values, None)).contains("runtimeConfig"));
    }

    #[test]
    fn gc_sends_null_for_an_empty_list_and_no_key_without_a_list() {
        let network = network(json!({"type": "p"}));
        let valid = [ValidAttachment::new("c1", "eth0")];
        assert_eq!(
            input(&network, Extra::Gc(Some(&valid))),
            r#"{"cni.dev/attachments":[{"containerID":"c1","ifname":"eth0"}],"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}],"cniVersion":"1.1.0","name":"dbnet","type":"p"}"#
        );
        assert_eq!(
            input(&network, Extra::Gc(Some(&[]))),
            r#"{"cni.dev/attachments":null,"cni.dev/valid-attachments":null,"cniVersion":"1.1.0","name":"dbnet","type":"p"}"#
        );
        assert_eq!(input(&network, Extra::Gc(None)), r#"{"cniVersion":"1.1.0","name":"dbnet","type":"p"}"#);
    }
}
