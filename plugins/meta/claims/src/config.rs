//! Decodes and checks the keys beside `claims`.

use std::path::{Path, PathBuf};

use cni_common::spec::{CniError, NetConf, SpecVersion};
use ferrule_kubelet::KUBELET;
use ferrule_kubelet::claims::{ATTACHED, DATA, DRIVER, Folder, KUBELET_STATE};
use serde::Deserialize;

use crate::config::Conf as DeviceConf;

/// Where the claims are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conf {
    /// The driver's name.
    pub driver: String,
    /// The folder of the records.
    pub records: Folder,
    /// The folder of the attached files.
    pub attached: PathBuf,
    /// The kubelet's folder.
    pub kubelet: PathBuf,
}

impl Default for Conf {
    fn default() -> Self {
        Conf {
            driver: DRIVER.to_owned(),
            records: Folder::default(),
            attached: Path::new(DATA).join(ATTACHED),
            kubelet: PathBuf::from(KUBELET),
        }
    }
}

#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Wire {
    driver_name: String,
    data_dir: String,
    kubelet_dir: String,
}

impl Conf {
    /// Reads the configuration.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 if a value is invalid or has no meaning with claims.
    pub fn read(config: &NetConf, version: SpecVersion) -> Result<Self, CniError> {
        let read = DeviceConf::read(config)?;
        let other = [
            ("a device", read.selector.is_some()),
            ("resourceName", read.resource.is_some()),
            ("useInterfaceNetwork", read.use_interface_network),
            ("ipam", config.ipam_type()?.is_some()),
        ];
        if let Some((key, _)) = other.into_iter().find(|(_, is_set)| *is_set) {
            return Err(CniError::invalid_config(format!("claims does not work with {key}"))
                .with_details("each claim names its device and its addresses"));
        }
        if version < SpecVersion::V0_3_0 {
            let msg = format!("claims needs cniVersion 0.3.0 or later, not {version}");
            return Err(CniError::invalid_config(msg).with_details("older results have one interface"));
        }
        Conf::read_paths(config)
    }

    /// As [`Conf::read`], for DEL: a broken configuration does not stop it.
    pub fn of_del(config: &NetConf) -> Self {
        let ignore = |error| eprintln!("host-device: DEL ignores the configuration: {error}");
        Conf::read_paths(config).map_err(ignore).unwrap_or_default()
    }

    /// As [`Conf::read`], without the checks that only ADD needs.
    ///
    /// # Errors
    /// Code 6 if the keys cannot be decoded, 7 if one is no absolute path.
    pub fn read_paths(config: &NetConf) -> Result<Self, CniError> {
        let wire: Wire = config.decode()?;
        let data = absolute("dataDir", wire.data_dir, DATA)?;
        Ok(Conf {
            driver: Some(wire.driver_name)
                .filter(|name| !name.is_empty())
                .unwrap_or_else(|| DRIVER.to_owned()),
            records: Folder::in_data(&data),
            attached: data.join(ATTACHED),
            kubelet: absolute("kubeletDir", wire.kubelet_dir, KUBELET)?,
        })
    }

    /// The kubelet's file of claims.
    pub fn kubelet_state(&self) -> PathBuf {
        self.kubelet.join(KUBELET_STATE)
    }
}

fn absolute(key: &str, value: String, default: &str) -> Result<PathBuf, CniError> {
    if value.is_empty() {
        return Ok(PathBuf::from(default));
    }
    match Path::new(&value).is_absolute() {
        true => Ok(PathBuf::from(value)),
        false => Err(CniError::invalid_config(format!("invalid {key} {value:?} (must be an absolute path)"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str, version: SpecVersion) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"host-device","claims":true{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes()).unwrap(), version)
    }

    #[test]
    fn keys() {
        let conf = read("", SpecVersion::V1_0_0).unwrap();
        assert_eq!(
            (conf.driver.as_str(), conf.records.path()),
            ("nic.ferrule.dev", Path::new("/var/lib/ferrule/dra"))
        );
        assert_eq!(conf.attached, Path::new("/var/lib/ferrule/dra-attached"));
        assert_eq!(conf.kubelet_state(), Path::new("/var/lib/kubelet/dra_manager_state"));
        let conf =
            read(r#","driverName":"x","dataDir":"/d","kubeletDir":"/k""#, SpecVersion::V0_3_0).unwrap();
        assert_eq!((conf.driver.as_str(), conf.records.path()), ("x", Path::new("/d/dra")));
        assert_eq!(conf.kubelet_state(), Path::new("/k/dra_manager_state"));
    }

    #[test]
    fn invalid_values() {
        for (keys, msg) in [
            (r#","device":"ens1""#, "claims does not work with a device"),
            (r#","resourceName":"x/nic""#, "claims does not work with a device"),
            (r#","useInterfaceNetwork":true"#, "claims does not work with useInterfaceNetwork"),
            (r#","ipam":{"type":"static"}"#, "claims does not work with ipam"),
            (r#","dataDir":"d""#, "invalid dataDir \"d\" (must be an absolute path)"),
            (r#","kubeletDir":"k""#, "invalid kubeletDir \"k\" (must be an absolute path)"),
        ] {
            assert_eq!(read(keys, SpecVersion::V1_0_0).unwrap_err().msg, msg, "{keys}");
        }
        assert_eq!(read(r#","dataDir":7"#, SpecVersion::V1_0_0).unwrap_err().code.number(), 6);
        let error = read("", SpecVersion::V0_2_0).unwrap_err();
        assert_eq!(error.msg, "claims needs cniVersion 0.3.0 or later, not 0.2.0");
    }
}
