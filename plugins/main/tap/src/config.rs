//! Decodes and checks the network configuration.

use cni_common::spec::{CniError, NetConf};
use ferrule_container_link::ContainerLink;
use ferrule_kernel::netlink::LinkData;
use serde::Deserialize;

/// A checked configuration.
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Conf {
    /// What all plugins of one link have.
    #[serde(skip)]
    pub link: ContainerLink,
    /// Whether a program can open the device several times, once for each queue.
    pub multi_queue: bool,
    /// The user who may open the device.
    pub owner: Option<u32>,
    /// The group that may open the device.
    pub group: Option<u32>,
    /// The bridge in the container that the device becomes a port of; may be empty.
    pub bridge: String,
    /// The SELinux label of the device; may be empty.
    pub selinux_context: String,
}

impl Conf {
    /// Reads the configuration and CNI_ARGS.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid, 6 if the configuration cannot be decoded, 7 if a value is invalid.
    pub fn read(config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let mut conf: Conf = config.decode()?;
        conf.link = ContainerLink::read("tun", config, cni_args)?;
        let Conf { owner, group, multi_queue, .. } = conf;
        conf.link.data = LinkData::Tap { owner, group, multi_queue };
        Ok(conf)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owner_zero_is_a_value() {
        let read = |keys: &str| {
            let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"tap"{keys}}}"#);
            Conf::read(&NetConf::parse(text.into_bytes()).unwrap(), "").unwrap()
        };
        let conf = read(r#","owner":0,"multiQueue":true,"bridge":"br0""#);
        assert_eq!((conf.owner, conf.group, conf.multi_queue), (Some(0), None, true));
        assert_eq!((conf.bridge.as_str(), conf.selinux_context.as_str()), ("br0", ""));
        assert_eq!(read("").link.data.to_string(), "mode tap, owner none, group none, one queue");
    }
}
