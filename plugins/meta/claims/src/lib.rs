//! The key `claims`: the pod gets the devices that it has by claims of Dynamic Resource Allocation (DRA), in the chain of its network.
//!
//! [`config`] decodes the keys, [`pod`] finds the records of the pod, and [`plan`] says which plugins make an interface of each device:
//! this one or `macvlan`, `ipvlan` and `vlan`, and those that follow them. [`device`] names the device for them, and
//! [`calls`] calls them. [`add`], [`del`] and [`verbs`] hold the steps of the verbs. [`file`](mod@file) is what ADD has made, until DEL.

pub mod add;
pub mod calls;
pub mod config;
pub mod del;
pub mod device;
pub mod file;
pub mod plan;
pub mod pod;
pub mod verbs;

use cni_common::spec::{CniError, NetConf};

/// Whether the configuration asks for claims.
///
/// # Errors
/// Code 6 if the key has the wrong type.
pub fn is_on(config: &NetConf) -> Result<bool, CniError> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Key {
        claims: bool,
    }
    if !config.has_key("claims") {
        return Ok(false);
    }
    config.decode::<Key>().map(|key| key.claims)
}
