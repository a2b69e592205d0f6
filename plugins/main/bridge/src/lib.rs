//! The `bridge` CNI plugin: a veth pair between the container and a Linux bridge on the host.
//!
//! [`config`] decodes the configuration, and [`plan`] combines it with the addresses from IPAM; neither
//! touches the kernel. [`add`], [`check`] and [`repair`] hold the steps of these verbs. [`device`] is the bridge, [`port`] the
//! container's port with its [`vlan`]s, [`gateways`] the addresses of the gateways, [`vlan_gateway`] the gateway of a VLAN, and [`mac_spoof`] the rules of
//! `macspoofchk`; `ferrule-kit` has the rest.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod device;
pub mod gateways;
pub mod mac_spoof;
pub mod plan;
pub mod port;
pub mod repair;
pub mod vlan;
pub mod vlan_gateway;

use cni_common::plugin::{DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::spec::{CniError, Code};
use ferrule_kit::{ipam, socket};
use ferrule_masquerade::{self as masquerade, detach};

use config::Conf;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    check: check::check,
    repair: Some(repair::repair),
    gc,
    status,
    ..Plugin::new("bridge", add::add, del)
};

fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    detach::del(call, mac_spoof::delete)
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    detach::gc(call, |netfilter, network| {
        mac_spoof::gc(netfilter, &mut socket::route()?, network, call.valid)
    })
}

/// Checks that the configuration is valid, that no other kind of link has the bridge's name, that the
/// kernel filters VLANs if the configuration has some, that it can have the firewall rules, and that IPAM is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config, "")?;
    let checked = socket::route().and_then(|mut socket| device::status(&mut socket, &conf));
    checked.map_err(|error| match error.code {
        Code::InvalidConfig => error,
        _ => CniError { code: Code::NotAvailable, ..error },
    })?;
    conf.ip_masq.as_ref().map_or(Ok(()), masquerade::status)?;
    if conf.mac_spoof_check {
        mac_spoof::status()?;
    }
    ipam::status(call)
}
