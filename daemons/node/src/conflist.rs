//! The conflist: a template, this node's podCIDRs, and the pods' MTU. `file` writes it.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use ferrule_kernel::ip::IpFamily;
use ferrule_kit::fold::{Object, append, first, first_mut, fold};
use serde_json::{Value, json};

use crate::arguments::{Main, Options, Policies};
use crate::plan::Pods;

pub mod file;

/// The key that marks a file as ours, with the node's name and the types of our plugins. libcni and the plugins ignore it.
pub use ferrule_kit::cluster::CONFLIST_MARK as MARK;

pub use crate::kernel::BRIDGE;

/// The plugin of the built-in conflist that makes the pods' interfaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All pods of the node on [`BRIDGE`].
    Bridge,
    /// A pair of links for each pod.
    Ptp,
}

/// The form of the built-in conflist.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// A list of plugins.
    List,
    /// One plugin, `chain`, which runs the others.
    Chain,
}

/// A conflist without the values of this node.
#[derive(Clone, Debug, PartialEq)]
pub struct Template(Value);

impl Template {
    /// Reads the template of the options, or makes the built-in one.
    ///
    /// # Errors
    /// The file cannot be read, or is no conflist whose first plugin has `ipam` of the type host-local.
    pub fn read(options: &Options) -> Result<Template> {
        let Some(path) = &options.template else {
            let kind = if options.main == Main::Bridge { Kind::Bridge } else { Kind::Ptp };
            return Ok(Template::built_in(kind, Form::List, options.policy));
        };
        let parse = || -> Result<Template> { Template::parse(&ferrule_kernel::file::read_named(path)?) };
        let template = parse().with_context(|| format!("template {}", path.display()))?;
        Ok(template.with(options.policy))
    }

    fn parse(bytes: &[u8]) -> Result<Template> {
        let mut value: Value = serde_json::from_slice(bytes).context("it is not JSON")?;
        if !value["name"].is_string() || !value["plugins"].is_array() {
            bail!("it is no conflist: \"name\" or \"plugins\" is missing");
        }
        match &first(&value)["ipam"]["type"] {
            Value::String(kind) if kind == "host-local" => {}
            other => bail!("ipam.type of the first plugin is {other}, it must be \"host-local\""),
        }
        if let Some(object) = value.as_object_mut() {
            object.remove(MARK);
        }
        Ok(Template(value))
    }

    /// The built-in one.
    pub fn built_in(kind: Kind, form: Form, policy: Policies) -> Template {
        let ipam = json!({ "type": "host-local" });
        let main = match kind {
            // The podCIDR may change: the former gateway goes with the last pod that needs it.
            Kind::Bridge => {
                json!({ "type": "bridge", "bridge": BRIDGE, "isGateway": true, "forceAddress": true,
                "hairpinMode": true, "ipam": ipam })
            }
            Kind::Ptp => json!({ "type": "ptp", "ipam": ipam }),
        };
        let list = json!({
            "cniVersion": "1.0.0",
            "name": "ferrule",
            "plugins": [
                main,
                { "type": "portmap", "capabilities": { "portMappings": true } },
                { "type": "bandwidth", "capabilities": { "bandwidth": true } },
            ],
        });
        let folded = list.as_object().filter(|_| form == Form::Chain).and_then(|list| fold(list).ok());
        Template(folded.map_or(list, Value::from)).with(policy)
    }

    /// With policies, the last plugin isolates new pods: behind all that give a pod addresses.
    fn with(mut self, policy: Policies) -> Template {
        if policy == Policies::On {
            append(&mut self.0, &Object::from_iter([("type".to_owned(), "policy".into())]));
        }
        self
    }

    /// The bridges that may carry pods: the template's, and the built-in one, whose pods may be older than this configuration.
    pub fn bridges(&self) -> Vec<String> {
        let own = self.bridge().filter(|own| *own != BRIDGE);
        [BRIDGE].into_iter().chain(own).map(str::to_owned).collect()
    }

    /// The plugin that makes the pods' interfaces.
    pub fn plugin(&self) -> &str {
        first(&self.0)["type"].as_str().unwrap_or_default()
    }

    /// The name of the network.
    pub fn network(&self) -> String {
        self.0["name"].as_str().unwrap_or_default().to_owned()
    }

    /// host-local's folder of this network: a file for each address in use.
    pub fn store(&self) -> PathBuf {
        let folder = first(&self.0)["ipam"]["dataDir"].as_str().unwrap_or("/var/lib/cni/networks");
        Path::new(folder).join(self.network())
    }

    /// The bridge of the pods, if the plugin is `bridge`.
    pub fn bridge(&self) -> Option<&str> {
        let first = first(&self.0);
        (first["type"] == "bridge").then(|| first["bridge"].as_str().unwrap_or("cni0"))
    }

    /// The conflist of this node.
    pub fn value(&self, node: &str, pods: &Pods) -> Value {
        let mut value = self.0.clone();
        let types: Vec<&Value> =
            self.0["plugins"].as_array().into_iter().flatten().map(|plugin| &plugin["type"]).collect();
        value[MARK] = json!({ "node": node, "plugins": types });
        let Some(first) = first_mut(&mut value) else { return value };
        first["ipMasq"] = json!(false);
        first["mtu"] = json!(pods.mtu);
        let ipam = &mut first["ipam"];
        let range = |network: &ipnetwork::IpNetwork| json!([{ "subnet": network.to_string() }]);
        ipam["ranges"] = pods.networks.iter().map(range).collect();
        if ipam["routes"].is_null() {
            let default = |network: &ipnetwork::IpNetwork| match IpFamily::of(network.ip()) {
                IpFamily::V4 => json!({ "dst": "0.0.0.0/0" }),
                IpFamily::V6 => json!({ "dst": "::/0" }),
            };
            ipam["routes"] = pods.networks.iter().map(default).collect();
        }
        value
    }
}

#[cfg(test)]
mod tests {
    use ferrule_kit::fold::unfolded;

    use super::*;

    fn pods() -> Pods {
        Pods { networks: vec!["10.244.1.0/24".parse().unwrap(), "fd00:1::/64".parse().unwrap()], mtu: 1450 }
    }

    #[test]
    fn the_values_of_the_node_are_filled_in() {
        for main in [Kind::Bridge, Kind::Ptp] {
            let [mut value, chain] = [Form::List, Form::Chain]
                .map(|form| Template::built_in(main, form, Policies::Off).value("n1", &pods()));
            assert_eq!(chain[MARK]["plugins"], json!(["chain"]));
            assert_eq!(
                chain["plugins"][0]["capabilities"],
                json!({ "bandwidth": true, "portMappings": true })
            );
            value[MARK] = chain[MARK].clone();
            assert_eq!(unfolded(chain), value);
            let first = &value["plugins"][0];
            assert_eq!(
                first["ipam"]["ranges"],
                json!([[{ "subnet": "10.244.1.0/24" }], [{ "subnet": "fd00:1::/64" }]])
            );
            assert_eq!(first["ipam"]["routes"], json!([{ "dst": "0.0.0.0/0" }, { "dst": "::/0" }]));
            assert_eq!((&first["mtu"], &first["ipMasq"]), (&json!(1450), &json!(false)));
            assert_eq!(value[MARK]["node"], "n1");
        }
    }

    #[test]
    fn with_policies_the_last_plugin_isolates() {
        let types = |template: &Template| -> Vec<String> {
            let list = unfolded(template.value("n1", &pods()));
            let plugins = list["plugins"].as_array().unwrap().iter();
            plugins.map(|plugin| plugin["type"].as_str().unwrap().to_owned()).collect()
        };
        for form in [Form::List, Form::Chain] {
            let template = Template::built_in(Kind::Ptp, form, Policies::On);
            assert_eq!(types(&template), ["ptp", "portmap", "bandwidth", "policy"]);
            let mark = template.value("n1", &pods())[MARK]["plugins"].clone();
            let expected = if form == Form::Chain { json!(["chain"]) } else { json!(types(&template)) };
            assert_eq!(mark, expected);
            let own = Template::parse(
                Template::built_in(Kind::Bridge, form, Policies::Off).0.to_string().as_bytes(),
            );
            let own = own.unwrap().with(Policies::On);
            assert_eq!(
                types(&own),
                ["bridge", "portmap", "bandwidth", "policy"],
                "a template of the operator"
            );
            assert_eq!(own.clone().with(Policies::On), own);
        }
    }

    #[test]
    fn a_template_keeps_its_other_keys() {
        let text = br#"{"cniVersion":"0.4.0","name":"x","plugins":[{"type":"bridge","vlan":7,"mtu":9000,
            "ipam":{"type":"host-local","dataDir":"/d","routes":[{"dst":"10.0.0.0/8"}]}},{"type":"firewall"}]}"#;
        let template = Template::parse(text).unwrap();
        let value = template.value("n1", &pods());
        assert_eq!((&value["plugins"][0]["vlan"], &value["plugins"][0]["mtu"]), (&json!(7), &json!(1450)));
        assert_eq!(value["plugins"][0]["ipam"]["routes"], json!([{ "dst": "10.0.0.0/8" }]));
        assert_eq!(template.store(), Path::new("/d/x"));
        assert_eq!(value[MARK]["plugins"], json!(["bridge", "firewall"]));
        // Its form too.
        let folded = fold(serde_json::from_slice::<Value>(text).unwrap().as_object().unwrap()).unwrap();
        let template = Template::parse(Value::from(folded).to_string().as_bytes()).unwrap();
        assert_eq!((template.plugin(), template.store()), ("bridge", PathBuf::from("/d/x")));
        let mut unfolded = unfolded(template.value("n1", &pods()));
        unfolded[MARK] = value[MARK].clone();
        assert_eq!(unfolded, value);
        for (text, said) in [
            ("{", "it is not JSON"),
            (r#"{"type":"bridge"}"#, "it is no conflist"),
            (r#"{"name":"x","plugins":[]}"#, "ipam.type of the first plugin is null"),
            (
                r#"{"name":"x","plugins":[{"ipam":{"type":"dhcp"}}]}"#,
                "ipam.type of the first plugin is \"dhcp\"",
            ),
        ] {
            let error = Template::parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(said), "{error}");
        }
    }
}
