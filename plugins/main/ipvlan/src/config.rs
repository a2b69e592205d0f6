//! Decodes and checks the network configuration.

use cni_common::spec::{AddResult, CniError, NetConf};
use ferrule_kernel::netlink::LinkData;
use ferrule_kernel::netlink::link_data::{IPVLAN_FLAGS, IPVLAN_MODES};
use ferrule_kit::container_link::{ContainerLink, mode};
use serde::Deserialize;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    mode: String,
    flag: String,
}

/// Reads the configuration. Like the reference, does not read CNI_ARGS. An ipvlan has no MAC address of its own.
///
/// # Errors
/// Code 6 if the configuration cannot be decoded, 7 if a value is invalid.
pub fn read(config: &NetConf) -> Result<ContainerLink, CniError> {
    let wire: Wire = config.decode()?;
    let mut link = ContainerLink::read_child("ipvlan", config, "")?;
    link.read_resource(config)?;
    link.data = LinkData::Ipvlan {
        mode: mode("ipvlan mode", &IPVLAN_MODES, &wire.mode, 0)?,
        flags: mode("ipvlan flag", &IPVLAN_FLAGS, &wire.flag, 0)?,
    };
    link.conf.mac = None;
    Ok(link)
}

/// As [`read`]. Without `master` and `resourceName`, the one interface of `prevResult` is the master.
///
/// # Errors
/// Those of [`read`], and code 7 if `prevResult` has no interface, or several.
pub fn of_add(config: &NetConf, former: Option<&AddResult>) -> Result<ContainerLink, CniError> {
    let mut link = read(config)?;
    if let (Some(parent), Some(former)) = (&mut link.parent, former)
        && parent.name.is_empty()
        && link.resource.is_none()
    {
        let [interface] = former.interfaces.as_slice() else { return Err(chained_master_failure(former)) };
        if interface.name.is_empty() {
            return Err(chained_master_failure(former));
        }
        parent.name.clone_from(&interface.name);
    }
    Ok(link)
}

/// The reference's error.
fn chained_master_failure(former: &AddResult) -> CniError {
    let msg = "chained master failure. PrevResult lacks a single named interface";
    let names: Vec<&str> = former.interfaces.iter().map(|interface| interface.name.as_str()).collect();
    CniError::invalid_config(msg).with_details(format!("interfaces of prevResult: {names:?}; set master"))
}

#[cfg(test)]
mod tests {
    use cni_common::spec::Interface;

    use super::*;

    fn config(keys: &str) -> NetConf {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"ipvlan"{keys}}}"#);
        NetConf::parse(text.into_bytes()).unwrap()
    }

    #[test]
    fn modes_and_flags() {
        assert_eq!(read(&config("")).unwrap().data.to_string(), "mode l2 bridge");
        let link =
            read(&config(r#","mode":"l3s","flag":"private","runtimeConfig":{"mac":"02:00:00:00:00:01"}"#));
        let link = link.unwrap();
        assert_eq!((link.data.to_string().as_str(), link.conf.mac), ("mode l3s private", None));
        assert_eq!(read(&config(r#","mode":"l4""#)).unwrap_err().msg, "unknown ipvlan mode: \"l4\"");
        assert_eq!(read(&config(r#","flag":"x""#)).unwrap_err().msg, "unknown ipvlan flag: \"x\"");
    }

    #[test]
    fn a_chained_master_is_the_only_interface() {
        let former = |names: &[&str]| AddResult {
            interfaces: names
                .iter()
                .map(|name| Interface { name: (*name).to_owned(), ..Interface::default() })
                .collect(),
            ..AddResult::default()
        };
        let master = |keys: &str, names: &[&str]| {
            of_add(&config(keys), Some(&former(names))).map(|link| link.parent.unwrap().name)
        };
        assert_eq!(master("", &["up0"]).unwrap(), "up0");
        assert_eq!(master(r#","master":"up1""#, &["a", "b"]).unwrap(), "up1");
        assert_eq!(master(r#","resourceName":"x/nic""#, &["a"]).unwrap(), "");
        for names in [&[][..], &["a", "b"], &[""]] {
            let error = master("", names).unwrap_err();
            assert_eq!(error.msg, "chained master failure. PrevResult lacks a single named interface");
        }
    }
}
