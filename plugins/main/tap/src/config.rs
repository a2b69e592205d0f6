//! Decodes and checks the network configuration.

use cni_common::spec::{CniError, NetConf};
use ferrule_kernel::netlink::LinkData;
use ferrule_kernel::tun::Tap;
use ferrule_kit::container_link::ContainerLink;
use serde::Deserialize;

/// A checked configuration.
#[derive(Debug)]
pub struct Conf {
    /// What all plugins of one link have.
    pub link: ContainerLink,
    /// The device.
    pub tap: Tap,
    /// The bridge in the container that the device becomes a port of; may be empty.
    pub bridge: String,
    /// The SELinux label of the device; may be empty.
    pub selinux_context: String,
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    multi_queue: bool,
    owner: Option<u32>,
    group: Option<u32>,
    bridge: String,
    selinux_context: String,
}

impl Conf {
    /// Reads the configuration and CNI_ARGS. `ifname` is the device's name.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid, 6 if the configuration cannot be decoded, 7 if a value is invalid.
    pub fn read(config: &NetConf, cni_args: &str, ifname: &str) -> Result<Self, CniError> {
        let Wire { multi_queue, owner, group, bridge, selinux_context } = config.decode()?;
        let mut link = ContainerLink::read("tun", config, cni_args)?;
        link.data = LinkData::Tap { owner, group, multi_queue };
        let tap = Tap { name: ifname.to_owned(), owner, group, multi_queue };
        Ok(Conf { link, tap, bridge, selinux_context })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_zero_is_a_value() {
        let read = |keys: &str| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"tap"{keys}}}"#);
            Conf::read(&NetConf::parse(text.into_bytes()).unwrap(), "", "tap0").unwrap()
        };
        let conf = read(r#","owner":0,"multiQueue":true,"bridge":"br0""#);
        assert_eq!(conf.tap, Tap { name: "tap0".to_owned(), owner: Some(0), group: None, multi_queue: true });
        assert_eq!((conf.bridge.as_str(), conf.selinux_context.as_str()), ("br0", ""));
        assert_eq!(read("").link.data.to_string(), "mode tap, owner none, group none, one queue");
    }
}
