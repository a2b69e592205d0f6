//! The configuration, and the delegate's that follows from it and from `subnet.env`. Nothing here touches the kernel or the disk.

use cni_common::spec::{CniError, NetConf, ValidAttachment};
use ipnetwork::IpNetwork;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::subnet_env::SubnetEnv;

/// An object of JSON. Its keys are sorted, as in the reference's files.
pub type Object = Map<String, Value>;

/// The keys of the configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    subnet_file: String,
    data_dir: String,
    delegate: Option<Object>,
    ipam: Option<Object>,
    runtime_config: Option<Object>,
    prev_result: Option<Value>,
}

impl Conf {
    /// Decodes the keys.
    ///
    /// # Errors
    /// Code 6 if one has the wrong type.
    pub fn read(config: &NetConf) -> Result<Conf, CniError> {
        config.decode()
    }

    /// The file that flannel's daemon writes.
    pub fn subnet_file(&self) -> &str {
        if self.subnet_file.is_empty() { "/run/flannel/subnet.env" } else { &self.subnet_file }
    }

    /// The folder of the state files.
    pub fn data_dir(&self) -> &str {
        if self.data_dir.is_empty() { "/var/lib/cni/flannel" } else { &self.data_dir }
    }

    /// The delegate's configuration on this network. An empty `env` leaves out what only ADD needs.
    ///
    /// # Errors
    /// Code 7 with the reference's text if `delegate` has a key that only this plugin may set; also if `ipam.routes` is not a list.
    pub fn delegated(&self, config: &NetConf, env: &SubnetEnv) -> Result<Object, CniError> {
        let mut made = self.delegate.clone().unwrap_or_default();
        if made.get("type").is_some_and(|name| !name.is_string()) {
            let msg = "'delegate' dictionary, if present, must have (string) 'type' field";
            return Err(CniError::invalid_config(msg));
        }
        if let Some(key) = ["name", "ipam"].into_iter().find(|key| made.contains_key(*key)) {
            let msg = format!("'delegate' dictionary must not have '{key}' field, it'll be set by flannel");
            return Err(CniError::invalid_config(msg));
        }
        made.extend(self.runtime_config.clone().map(|values| ("runtimeConfig".to_owned(), values.into())));
        made.insert("name".to_owned(), config.name().into());
        set_version(&mut made, config);
        let mut default = |key: &str, value: Value| {
            made.entry(key).or_insert(value);
        };
        default("type", "bridge".into());
        default("ipMasq", env.ip_masq.is_some_and(|does| !does).into());
        if let Some(mtu) = env.mtu {
            default("mtu", mtu.into());
        }
        if made["type"] == "bridge" {
            made.entry("isGateway").or_insert(true.into());
        }
        made.insert("ipam".to_owned(), self.ipam(env)?.into());
        Ok(made)
    }

    /// `ipam` of the configuration, with the node's subnets and with routes to the cluster's networks.
    fn ipam(&self, env: &SubnetEnv) -> Result<Object, CniError> {
        let text = |network: &IpNetwork| network.to_string();
        let mut ipam = self.ipam.clone().unwrap_or_default();
        ipam.entry("type").or_insert("host-local".into());
        let ranges = env.subnets.iter().map(|subnet| json!([{"subnet": text(subnet)}])).collect();
        ipam.insert("ranges".to_owned(), ranges);
        let mut routes = match ipam.remove("routes") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Array(routes)) => routes,
            Some(_) => return Err(CniError::invalid_config("failed to parse ipam.routes: not a list")),
        };
        routes.extend(env.networks.iter().map(|network| json!({"dst": text(network)})));
        ipam.insert("routes".to_owned(), routes.into());
        Ok(ipam)
    }

    /// Adds what the runtime says in this call to a delegate's configuration of an earlier one.
    pub fn renew(&self, saved: &mut Object, config: &NetConf) {
        set_version(saved, config);
        saved.extend(self.prev_result.clone().map(|result| ("prevResult".to_owned(), result)));
    }
}

fn set_version(made: &mut Object, config: &NetConf) {
    if !config.version_text().is_empty() {
        made.insert("cniVersion".to_owned(), config.version_text().into());
    }
}

/// The list of a GC request, for the delegate.
pub fn set_valid(made: &mut Object, valid: &[ValidAttachment]) {
    let list: Value =
        valid.iter().map(|one| json!({"containerID": one.container_id, "ifname": one.ifname})).collect();
    // Runtimes send both keys: the second one is that of a draft.
    for key in ["cni.dev/valid-attachments", "cni.dev/attachments"] {
        made.insert(key.to_owned(), Value::clone(&list));
    }
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Code;

    use super::*;

    fn made(keys: &str, env: &str) -> Result<Value, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"flannel"{keys}}}"#);
        let config = NetConf::parse(text.into_bytes())?;
        Conf::read(&config)?.delegated(&config, &SubnetEnv::parse(env).unwrap()).map(Value::Object)
    }

    const ENV: &str =
        "FLANNEL_NETWORK=10.1.0.0/16\nFLANNEL_SUBNET=10.1.9.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false";

    #[test]
    fn the_delegate_is_bridge() {
        let expected = r#"{"cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.1.9.0/24"}]],"routes":[{"dst":"10.1.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1450,"name":"n","type":"bridge"}"#;
        assert_eq!(made("", ENV).unwrap().to_string(), expected);
        let keys = r#","delegate":{"mtu":1400,"ipMasq":false,"isGateway":false,"hairpinMode":true},"runtimeConfig":{"mac":"x"}"#;
        let own = made(keys, ENV).unwrap();
        assert_eq!(
            (&own["mtu"], &own["ipMasq"], &own["isGateway"]),
            (&json!(1400), &json!(false), &json!(false))
        );
        assert_eq!((&own["hairpinMode"], &own["runtimeConfig"]), (&json!(true), &json!({"mac": "x"})));
    }

    #[test]
    fn another_delegate_and_ipam() {
        let keys = r#","delegate":{"type":"ipvlan","master":"eth0"},
            "ipam":{"type":"x","dataDir":"/d","subnet":"10.9.0.0/24","routes":[{"dst":"0.0.0.0/0","gw":"10.1.9.7"}]}"#;
        let expected = json!({"cniVersion": "1.0.0", "name": "n", "type": "ipvlan", "master": "eth0", "mtu": 1450,
            "ipMasq": true, "ipam": {"type": "x", "dataDir": "/d", "subnet": "10.9.0.0/24",
            "ranges": [[{"subnet": "10.1.9.0/24"}]],
            "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.9.7"}, {"dst": "10.1.0.0/16"}]}});
        assert_eq!(made(keys, ENV).unwrap(), expected);
    }

    #[test]
    fn refused_keys() {
        for (keys, code, msg) in [
            (
                r#","delegate":{"type":7}"#,
                Code::InvalidConfig,
                "'delegate' dictionary, if present, must have (string) 'type' field",
            ),
            (
                r#","delegate":{"ipam":{}}"#,
                Code::InvalidConfig,
                "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel",
            ),
            (r#","ipam":{"routes":7}"#, Code::InvalidConfig, "failed to parse ipam.routes: not a list"),
        ] {
            let error = made(keys, ENV).unwrap_err();
            assert_eq!((error.code, error.msg.as_str()), (code, msg));
        }
        assert_eq!(made(r#","delegate":"bridge""#, ENV).unwrap_err().code, Code::Decode);
    }
}
