//! Decodes and checks the keys.

use std::path::{Path, PathBuf};

use cni_common::remark;
use cni_common::spec::{CniError, NetConf};
use ferrule_kubelet::KUBELET;
use ferrule_kubelet::claims::{ATTACHED, DATA, DRIVER, Folder, KUBELET_STATE};
use serde::Deserialize;

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
    /// Code 6 if it cannot be decoded, 7 if a path is not absolute.
    pub fn read(config: &NetConf) -> Result<Self, CniError> {
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

    /// As [`Conf::read`], for DEL: a broken configuration does not stop it.
    pub fn of_del(config: &NetConf) -> Self {
        let ignore = |error| remark!("claims: DEL ignores the configuration: {error}");
        Conf::read(config).map_err(ignore).unwrap_or_default()
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

    fn read(keys: &str) -> Result<Conf, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"claims"{keys}}}"#);
        Conf::read(&NetConf::parse(text.into_bytes()).unwrap())
    }

    #[test]
    fn keys() {
        let conf = read("").unwrap();
        assert_eq!(
            (conf.driver.as_str(), conf.records.path()),
            ("nic.ferrule.dev", Path::new("/var/lib/ferrule/dra"))
        );
        assert_eq!(conf.attached, Path::new("/var/lib/ferrule/dra-attached"));
        assert_eq!(conf.kubelet_state(), Path::new("/var/lib/kubelet/dra_manager_state"));
        let conf = read(r#","driverName":"x","dataDir":"/d","kubeletDir":"/k""#).unwrap();
        assert_eq!((conf.driver.as_str(), conf.records.path()), ("x", Path::new("/d/dra")));
        assert_eq!(conf.kubelet_state(), Path::new("/k/dra_manager_state"));
    }

    #[test]
    fn invalid_values() {
        for (keys, code, msg) in [
            (r#","dataDir":"d""#, 7, "invalid dataDir \"d\" (must be an absolute path)"),
            (r#","kubeletDir":"k""#, 7, "invalid kubeletDir \"k\" (must be an absolute path)"),
            (r#","dataDir":7"#, 6, ""),
        ] {
            let error = read(keys).unwrap_err();
            assert!(error.code.number() == code && error.msg.starts_with(msg), "{keys}: {error:?}");
        }
    }
}
