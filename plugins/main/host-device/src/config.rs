//! Decodes and checks the network configuration.

use cni_common::spec::{CniError, Json, NetConf};
use ferrule_kernel::netlink::Mac;
use ferrule_kit::address_wait::Dad;
use ferrule_kit::config::{LinkConf, LinkKeys};
use ferrule_kit::sysfs::{Key, is_id};
use ferrule_kubelet::Resource;
use serde::Deserialize;

use crate::vf_conf::VfConf;

/// A checked configuration.
#[derive(Debug)]
pub struct Conf {
    /// Names the device. `None` if no key does, which only STATUS permits: the runtime names it at ADD.
    pub selector: Option<Selector>,
    /// The resource of the device, if `resourceName` is set.
    pub resource: Option<Resource>,
    /// The container gets the addresses and routes of the device.
    pub use_interface_network: bool,
    /// What duplicate address detection does.
    pub dad: Dad,
    /// What a virtual function gets.
    pub vf: VfConf,
    /// The keys that all interface plugins have.
    pub link: LinkConf,
}

/// How the configuration names the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// The link's name, or an alternative one.
    Name(String),
    /// The link's hardware address.
    Mac(Mac),
    /// The device's folder below `/sys/devices`.
    KernelPath(String),
    /// The device's ID on the PCI bus or on the auxiliary bus.
    Bus {
        /// The ID, without `/`.
        id: String,
        /// The key that has named it.
        key: Key,
    },
    /// A device that the kubelet has given to the pod.
    Resource(Resource),
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    device: String,
    hwaddr: String,
    kernelpath: String,
    #[serde(rename = "pciBusID")]
    pci_bus_id: String,
    #[serde(rename = "deviceID")]
    device_id: String,
    use_interface_network: bool,
    dad: String,
    runtime_config: Runtime,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Runtime {
    #[serde(rename = "deviceID")]
    device_id: String,
}

impl Conf {
    /// Reads the configuration. Like the reference, does not read CNI_ARGS.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 if a value is invalid.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        let link: LinkKeys = config.decode()?;
        let resource = Resource::read(config)?;
        Ok(Conf {
            use_interface_network: wire.use_interface_network,
            dad: Dad::parse(&wire.dad)?,
            vf: VfConf::read(config)?,
            selector: wire.selector()?.or_else(|| resource.clone().map(Selector::Resource)),
            resource,
            link: link.check("", "")?,
        })
    }

    /// What names the device.
    ///
    /// # Errors
    /// Code 7 with the reference's text if no key does.
    pub fn selector(&self) -> Result<&Selector, CniError> {
        let missing = r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#;
        self.selector.as_ref().ok_or_else(|| CniError::invalid_config(missing))
    }
}

impl Wire {
    /// The first key that is set, in the reference's order.
    fn selector(self) -> Result<Option<Selector>, CniError> {
        let Wire { device, hwaddr, kernelpath, pci_bus_id, device_id, runtime_config, .. } = self;
        if !device.is_empty() {
            return Ok(Some(Selector::Name(device)));
        }
        if !hwaddr.is_empty() {
            let invalid =
                |why| CniError::invalid_config(format!("failed to parse MAC address {hwaddr:?}: {why}"));
            return Ok(Some(Selector::Mac(hwaddr.parse().map_err(invalid)?)));
        }
        if !kernelpath.is_empty() {
            let is_inside =
                kernelpath.starts_with("/sys/devices/") && kernelpath.split('/').all(|p| p != "..");
            return if is_inside {
                Ok(Some(Selector::KernelPath(kernelpath)))
            } else {
                let rule = "must be absolute and begin with /sys/devices/";
                Err(CniError::invalid_config(format!("kernel device path {kernelpath:?} {rule}")))
            };
        }
        let ids = [
            (runtime_config.device_id, Key::DeviceId),
            (device_id, Key::DeviceId),
            (pci_bus_id, Key::PciBusId),
        ];
        let Some((id, key)) = ids.into_iter().find(|(id, _)| !id.is_empty()) else { return Ok(None) };
        Selector::bus(id, key).map(Some)
    }
}

impl Selector {
    /// A device by its ID.
    ///
    /// # Errors
    /// Code 7 if the ID would lead to another folder.
    pub fn bus(id: String, key: Key) -> Result<Self, CniError> {
        if !is_id(&id) {
            return Err(CniError::invalid_config(format!("invalid device ID {id:?}")));
        }
        Ok(Selector::Bus { id, key })
    }
}

/// The name in `device` for DEL, which reads a broken configuration too; empty if there is none.
pub fn device_of(config: &NetConf) -> String {
    let keys = config.decode::<Json>().ok();
    keys.and_then(|keys| keys.get("device")?.decode().ok()).unwrap_or_default()
}

/// The ID on a bus for DEL, as [`device_of`].
pub fn bus_id_of(config: &NetConf) -> String {
    let selector = config.decode::<Wire>().ok().and_then(|wire| wire.selector().ok()?);
    if let Some(Selector::Bus { id, .. }) = selector { id } else { String::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(keys: &str) -> NetConf {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"host-device"{keys}}}"#);
        NetConf::parse(text.into_bytes()).unwrap()
    }

    fn selector(keys: &str) -> Result<Selector, CniError> {
        Conf::read(&parse(keys))?.selector().cloned()
    }

    #[test]
    fn precedence_of_the_keys() {
        let bus = |id: &str, key| Selector::Bus { id: id.to_owned(), key };
        let resource = Resource::read(&parse(r#","resourceName":"x/nic""#)).unwrap().unwrap();
        let mut keys = String::new();
        for (more, expected) in [
            (r#","resourceName":"x/nic""#, Selector::Resource(resource)),
            (r#","pciBusID":"0000:00:1f.6""#, bus("0000:00:1f.6", Key::PciBusId)),
            (r#","deviceID":"0000:00:1f.7""#, bus("0000:00:1f.7", Key::DeviceId)),
            (r#","runtimeConfig":{"deviceID":"mlx5_core.sf.4"}"#, bus("mlx5_core.sf.4", Key::DeviceId)),
            (
                r#","kernelpath":"/sys/devices/pci0/x""#,
                Selector::KernelPath("/sys/devices/pci0/x".to_owned()),
            ),
            (r#","HWADDR":"02-00-00-00-00-09""#, Selector::Mac(Mac([2, 0, 0, 0, 0, 9]))),
            (r#","device":"ens1""#, Selector::Name("ens1".to_owned())),
        ] {
            keys.push_str(more);
            assert_eq!(selector(&keys).unwrap(), expected, "{keys}");
        }
        assert!(Conf::read(&parse("")).unwrap().selector.is_none());
    }

    #[test]
    fn invalid_values() {
        for (keys, code, msg) in [
            ("", 7, r#"specify either "device", "hwaddr", "kernelpath" or "pciBusID""#),
            (r#","hwaddr":"zz""#, 7, r#"failed to parse MAC address "zz": address zz: invalid MAC address"#),
            (
                r#","kernelpath":"/dev/x""#,
                7,
                r#"kernel device path "/dev/x" must be absolute and begin with /sys/devices/"#,
            ),
            (
                r#","kernelpath":"/sys/devices/../x""#,
                7,
                r#"kernel device path "/sys/devices/../x" must be absolute and begin with /sys/devices/"#,
            ),
            (r#","device":"ens1","dad":"x""#, 7, r#"unknown dad: "x""#),
            (r#","pciBusID":"../net""#, 7, r#"invalid device ID "../net""#),
            (r#","runtimeConfig":{"deviceID":".."}"#, 7, r#"invalid device ID ".."#),
            (r#","resourceName":"nic""#, 7, r#"invalid resourceName "nic""#),
        ] {
            let error = selector(keys).unwrap_err();
            assert_eq!(error.code.number(), code, "{keys}");
            assert!(error.msg.starts_with(msg), "{}", error.msg);
        }
        assert_eq!(selector(r#","device":5"#).unwrap_err().code.number(), 6);
        assert_eq!(device_of(&parse(r#","device":5"#)), "");
        assert_eq!(device_of(&parse(r#","DEVICE":"ens1","hwaddr":5"#)), "ens1");
    }
}
