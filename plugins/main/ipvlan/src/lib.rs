//! The `ipvlan` CNI plugin: a link that shares the MAC address of a link of the node. It may be chained to a plugin that
//! made this link.
//!
//! It is little more than its configuration: `ferrule-container-link` has the rest, which all plugins of one link share.

#![deny(missing_docs)]

use cni_common::plugin::{AddRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, NetConf};
use ferrule_container_link::{Attaching, ContainerLink, ContainerPlugin, mode, plugin};
use ferrule_kernel::netlink::LinkData;
use ferrule_kernel::netlink::link_data::{IPVLAN_FLAGS, IPVLAN_MODES};
use serde::Deserialize;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { add, status, ..plugin::<Ipvlan>("ipvlan") };

struct Ipvlan;

#[derive(Default, Deserialize)]
#[serde(default)]
struct Wire {
    mode: String,
    flag: String,
}

impl ContainerPlugin for Ipvlan {
    const KIND: &'static str = "ipvlan";

    /// Like the reference, does not read CNI_ARGS. An ipvlan has no MAC address of its own. CHECK does not look for the master in
    /// `prevResult`, which has the ipvlan itself then.
    fn read(config: &NetConf, _: &str) -> Result<ContainerLink, CniError> {
        let wire: Wire = config.decode()?;
        let mut link = ContainerLink::read_child(Self::KIND, config, "")?;
        link.read_resource(config)?;
        link.data = LinkData::Ipvlan {
            mode: mode("ipvlan mode", &IPVLAN_MODES, &wire.mode, 0)?,
            flags: mode("ipvlan flag", &IPVLAN_FLAGS, &wire.flag, 0)?,
        };
        link.conf.mac = None;
        Ok(link)
    }
}

/// Without IPAM takes over the addresses of `prevResult`, and replaces its interface.
fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let mut link = of_add(call.config, call.prev_result.as_ref())?;
    if !link.find_parent(call)? {
        return Ok(ferrule_kubelet::skipped(call));
    }
    let former = call.prev_result.clone().filter(|former| !former.ips.is_empty());
    if former.is_some() && call.config.ipam_type()?.is_none() {
        let call = AddRequest { prev_result: None, ..*call };
        return Attaching::begin(&call, &link, former)?.make();
    }
    Attaching::begin(call, &link, None)?.make()
}

fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let mut link = Ipvlan::read(call.config, "")?;
    // The plugin before this one may name it.
    link.parent = link.parent.filter(|parent| !parent.name.is_empty());
    ferrule_container_link::status(call, &link)
}

/// The link for ADD. Without `master` and `resourceName`, the one interface of `prevResult` is the master.
///
/// # Errors
/// Those of [`Ipvlan::read`], and code 7 if `prevResult` has no interface, or several.
fn of_add(config: &NetConf, former: Option<&AddResult>) -> Result<ContainerLink, CniError> {
    let mut link = Ipvlan::read(config, "")?;
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
        assert_eq!(Ipvlan::read(&config(""), "").unwrap().data.to_string(), "mode l2 bridge");
        let link = Ipvlan::read(
            &config(r#","mode":"l3s","flag":"private","runtimeConfig":{"mac":"02:00:00:00:00:01"}"#),
            "",
        );
        let link = link.unwrap();
        assert_eq!((link.data.to_string().as_str(), link.conf.mac), ("mode l3s private", None));
        assert_eq!(
            Ipvlan::read(&config(r#","mode":"l4""#), "").unwrap_err().msg,
            "unknown ipvlan mode: \"l4\""
        );
        assert_eq!(
            Ipvlan::read(&config(r#","flag":"x""#), "").unwrap_err().msg,
            "unknown ipvlan flag: \"x\""
        );
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
