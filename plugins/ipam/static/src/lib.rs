//! The `static` CNI plugin: returns exactly the addresses, routes and DNS settings that the configuration or the
//! runtime names.
//!
//! This is an IPAM plugin: another plugin calls it. It keeps no state, so DEL and GC have nothing to do.
//! [`config`] decodes and checks the addresses of all sources.

#![deny(missing_docs)]

pub mod config;

use cni_common::plugin::{AddRequest, DelRequest, Plugin, StatusRequest};
use cni_common::spec::{AddResult, CniError, Code, IpConfig, SpecVersion};
use ferrule_kit::check;

use config::Config;

/// The plugin.
pub const PLUGIN: Plugin = Plugin { check, status, ..Plugin::new("static", add, del) };

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let Config { ips, routes, dns } = Config::load(call.config, call.version, &call.env.args)?;
    Ok(AddResult { ips, routes, dns, ..AddResult::default() })
}

/// Checks that the result has every configured address, with its prefix length and its gateway if it has
/// one. The result may have other addresses too.
fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let config = Config::load(call.config, call.version, &call.env.args)?;
    let result = check::prev_result(call)?;
    config.ips.iter().try_for_each(|ip| find(ip, &result.ips, call.ifname))
}

fn del(_: &DelRequest<'_>) -> Result<(), CniError> {
    Ok(())
}

/// Checks the configuration. The addresses may all come from the runtime, so their absence is no error.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    // STATUS has no CNI_ARGS, and only 1.1.0 and later have STATUS.
    let checked = Config::load(call.config, SpecVersion::NEWEST, "");
    checked.map(drop).map_err(|error| CniError { code: Code::NotAvailable, ..error })
}

/// Looks for the configured address in the result.
fn find(configured: &IpConfig, result: &[IpConfig], ifname: &str) -> Result<(), CniError> {
    let ip = configured.address.ip();
    let why = match result.iter().find(|found| found.address.ip() == ip) {
        None => "prevResult does not have the address".to_owned(),
        Some(found) if found.address != configured.address => {
            format!("prevResult has {}, configured is {}", found.address, configured.address)
        }
        Some(found) if configured.gateway.is_some() && found.gateway != configured.gateway => {
            let text =
                |ip: &IpConfig| ip.gateway.map_or("no gateway".to_owned(), |gw| format!("gateway {gw}"));
            format!("prevResult has {}, configured is {}", text(found), text(configured))
        }
        Some(_) => return Ok(()),
    };
    Err(CniError::internal(format!("static: Failed to match addr {ip} on interface {ifname}"))
        .with_details(why))
}
