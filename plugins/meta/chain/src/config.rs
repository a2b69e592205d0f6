//! The configuration, and those of the members that follow from it, as libcni makes them. Nothing here touches the kernel or the disk.

use cni_common::spec::{CniError, NetConf};
use ferrule_kit::fold::{CHAIN, Object, declared, type_of};
use serde::Deserialize;
use serde_json::Value;

/// The keys of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Conf {
    plugins: Vec<Object>,
    capabilities: Object,
    runtime_config: Object,
    prev_result: Option<Value>,
    #[serde(rename = "cni.dev/valid-attachments")]
    valid_attachments: Option<Value>,
    #[serde(rename = "cni.dev/attachments")]
    attachments: Option<Value>,
}

/// A chain: its members, and what the runtime says in this call.
#[derive(Debug, Default)]
pub struct Chain {
    conf: Conf,
    name: String,
    version: String,
    has_capabilities: bool,
    has_attachments: [bool; 2],
}

/// The keys of a GC request. The second one is that of a draft; runtimes send both.
const ATTACHMENTS: [&str; 2] = ["cni.dev/valid-attachments", "cni.dev/attachments"];

impl Chain {
    /// Decodes the keys. Judges no member.
    ///
    /// # Errors
    /// Code 6 if a key has the wrong type.
    pub fn read(config: &NetConf) -> Result<Chain, CniError> {
        Ok(Chain {
            conf: config.decode()?,
            name: config.name().to_owned(),
            version: config.version_text().to_owned(),
            has_capabilities: config.has_key("capabilities"),
            has_attachments: ATTACHMENTS.map(|key| config.has_key(key)),
        })
    }

    /// Checks that there are members, that each has a type and none is a chain, and that the runtime sends the values of all
    /// capabilities that they declare.
    ///
    /// # Errors
    /// Code 7.
    pub fn judge(&self) -> Result<(), CniError> {
        if self.conf.plugins.is_empty() {
            return Err(CniError::invalid_config("the chain has no plugins"));
        }
        for (number, member) in self.conf.plugins.iter().enumerate() {
            match type_of(member) {
                "" => return Err(CniError::invalid_config(format!("plugins[{number}] has no type"))),
                CHAIN => return Err(CniError::invalid_config("a chain cannot be in a chain")),
                _ => {}
            }
        }
        // By the specification the runtime removes the key. libcni keeps it.
        let is_sent = |name: &str| {
            !self.has_capabilities || self.conf.capabilities.get(name) == Some(&Value::Bool(true))
        };
        let missing = self.conf.plugins.iter().find_map(|member| {
            let name = declared(member).find(|name| !is_sent(name))?;
            Some(format!(
                "{:?} declares the capability {name:?}, which the chain's own capabilities lack",
                type_of(member)
            ))
        });
        missing.map_or(Ok(()), |msg| Err(CniError::invalid_config(msg)))
    }

    /// The number of members.
    pub fn len(&self) -> usize {
        self.conf.plugins.len()
    }

    /// Whether there are no members.
    pub fn is_empty(&self) -> bool {
        self.conf.plugins.is_empty()
    }

    /// The type of a member; empty if it has none.
    pub fn type_of(&self, number: usize) -> &str {
        self.conf.plugins.get(number).map_or("", type_of)
    }

    /// The result that the runtime has sent, unchanged.
    pub fn prev_result(&self) -> Option<&Value> {
        self.conf.prev_result.as_ref()
    }

    /// A member's configuration for ADD, CHECK and DEL: with the values of those capabilities that it declares, and with this
    /// previous result.
    pub fn of_attachment(&self, number: usize, prev_result: Option<&Value>) -> Object {
        let mut made = self.of_network(number);
        let values: Object = declared(&made)
            .filter_map(|name| Some((name.to_owned(), self.conf.runtime_config.get(name)?.clone())))
            .collect();
        if !values.is_empty() {
            made.insert("runtimeConfig".to_owned(), values.into());
        }
        made.extend(prev_result.map(|result| ("prevResult".to_owned(), result.clone())));
        made
    }

    /// A member's configuration for GC.
    pub fn of_gc(&self, number: usize) -> Object {
        let mut made = self.of_network(number);
        let lists = [&self.conf.valid_attachments, &self.conf.attachments];
        for ((key, list), is_sent) in ATTACHMENTS.into_iter().zip(lists).zip(self.has_attachments) {
            if is_sent {
                // Go sends null for an empty list.
                made.insert(key.to_owned(), list.clone().unwrap_or_default());
            }
        }
        made
    }

    /// A member's configuration for STATUS: name and version are added.
    pub fn of_network(&self, number: usize) -> Object {
        let mut made = self.conf.plugins.get(number).cloned().unwrap_or_default();
        made.insert("name".to_owned(), self.name.clone().into());
        if !self.version.is_empty() {
            made.insert("cniVersion".to_owned(), self.version.clone().into());
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;
    use serde_json::json;

    use super::*;

    fn chain(keys: &Value) -> Chain {
        let mut conf = json!({"cniVersion": "1.1.0", "name": "net", "type": "chain"});
        conf.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        Chain::read(&NetConf::parse(conf.to_string().into_bytes()).unwrap()).unwrap()
    }

    #[test]
    fn a_member_gets_what_it_declares() {
        let ports = json!([{"hostPort": 1}]);
        let chain = chain(&json!({
            "capabilities": {"portMappings": true, "ips": true, "mac": true},
            "runtimeConfig": {"portMappings": ports, "mac": "x"},
            "plugins": [
                {"type": "a", "capabilities": {"ips": true, "mac": false}, "runtimeConfig": {"own": 1}},
                {"type": "b", "capabilities": {"portMappings": true, "mac": true}, "name": "other", "prevResult": 1},
            ],
        }));
        assert!(chain.judge().is_ok());
        assert_eq!((chain.len(), chain.type_of(1), chain.type_of(2)), (2, "b", ""));
        // As libcni: without a value the key stays as configured.
        let a = json!({"type": "a", "capabilities": {"ips": true, "mac": false}, "cniVersion": "1.1.0", "name": "net",
            "runtimeConfig": {"own": 1}});
        assert_eq!(Value::from(chain.of_attachment(0, None)), a);
        let b = json!({"type": "b", "capabilities": {"portMappings": true, "mac": true}, "cniVersion": "1.1.0", "name": "net",
            "runtimeConfig": {"portMappings": ports, "mac": "x"}, "prevResult": {"ips": []}});
        assert_eq!(Value::from(chain.of_attachment(1, Some(&json!({"ips": []})))), b);
    }

    #[test]
    fn gc_gets_the_list_as_it_was_sent() {
        let member = json!([{"type": "a"}]);
        let listed = json!([{"containerID": "c1", "ifname": "eth0"}]);
        let of_gc = |keys: &Value| chain(keys).of_gc(0);
        let made = of_gc(&json!({"plugins": member, "cni.dev/attachments": listed}));
        assert_eq!(
            (made.get("cni.dev/attachments"), made.get("cni.dev/valid-attachments")),
            (Some(&listed), None)
        );
        let made = of_gc(&json!({"plugins": member, "cni.dev/valid-attachments": null}));
        assert_eq!(made.get("cni.dev/valid-attachments"), Some(&Value::Null));
        assert!(!of_gc(&json!({"plugins": member})).contains_key("cni.dev/valid-attachments"));
    }

    #[test]
    fn what_is_refused() {
        for (keys, why) in [
            (json!({}), "the chain has no plugins"),
            (json!({"plugins": null}), "the chain has no plugins"),
            (json!({"plugins": [{"type": "a"}, {"type": 1}]}), "plugins[1] has no type"),
            (
                json!({"plugins": [{"type": "a"}, {"type": "chain", "plugins": []}]}),
                "a chain cannot be in a chain",
            ),
            (
                json!({"plugins": [{"type": "a", "capabilities": {"mac": true}}], "capabilities": {"mac": false}}),
                "\"a\" declares the capability \"mac\", which the chain's own capabilities lack",
            ),
        ] {
            assert_eq!(chain(&keys).judge(), Err(CniError::new(Code::InvalidConfig, why)));
        }
        // A runtime that removes the key, as the specification says, has read it.
        assert!(chain(&json!({"plugins": [{"type": "a", "capabilities": {"mac": true}}]})).judge().is_ok());
    }
}
