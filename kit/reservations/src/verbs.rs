//! DEL and GC, which need only the network's name and `dataDir` of the configuration.

use cni_common::plugin::{Attachment, DelRequest, GcRequest};
use cni_common::remark;
use cni_common::spec::CniError;

use crate::config;
use crate::release;
use crate::reservations::Reservations;

/// DEL. If the lock cannot be taken, it continues without it, see [`release::release`], and leaves the index to the next call.
///
/// # Errors
/// All addresses that could not be released.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let mut reservations = Reservations::new(&config::data_dir_of(call.config), call.config.name());
    if !reservations.store.exists() {
        return Ok(());
    }
    let lock = reservations.store.lock();
    let outcome = release::release(&mut reservations, &Attachment::from(call), lock.is_ok());
    match lock {
        Ok(_locked) => reservations.finish(false),
        Err(error) => remark!("host-local: cannot take the lock, DEL continues without it: {error}"),
    }
    outcome
}

/// GC.
///
/// # Errors
/// The lock's, and all addresses that could not be released.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let mut reservations = Reservations::new(&config::data_dir_of(call.config), call.config.name());
    if !reservations.store.exists() {
        return Ok(());
    }
    let _lock = reservations.store.lock()?;
    let outcome = release::collect(&mut reservations, call.valid);
    reservations.finish(false);
    outcome
}
