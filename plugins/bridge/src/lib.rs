//! The `bridge` CNI plugin: a veth pair between the container and a Linux bridge on the host.
//!
//! [`config`] reads what is asked for and [`plan`] works out what that means for the addresses that IPAM assigned, both
//! without the kernel. [`add`], [`check`] and [`del`] tell each verb's story; [`device`] (the bridge), [`veth`] (the pair),
//! [`container`] (the container's end) and [`masquerade`] (the rules) carry it out.

#![deny(missing_docs)]

pub mod add;
pub mod check;
pub mod config;
pub mod container;
pub mod del;
pub mod device;
pub mod masquerade;
pub mod plan;
pub mod solicited;
pub mod veth;

use cni_common::netlink::{LinkId, Socket};
use cni_common::plugin::{Attach, Collect, Delegate, Detach, Plugin, Probe, Verb};
use cni_common::spec::{AddResult, CniError, Code, Failures, Step};

use config::Conf;

/// The plugin.
pub struct Bridge;

impl Plugin for Bridge {
    fn name(&self) -> &'static str {
        "bridge"
    }

    fn add(&self, call: &Attach<'_>) -> Result<AddResult, CniError> {
        add::add(call)
    }

    fn check(&self, call: &Attach<'_>) -> Result<(), CniError> {
        check::check(call)
    }

    fn del(&self, call: &Detach<'_>) -> Result<(), CniError> {
        del::del(call)
    }

    /// Removes the masquerading of attachments that are no more, and lets IPAM release their addresses. Their links went
    /// with their namespaces.
    fn gc(&self, call: &Collect<'_>) -> Result<(), CniError> {
        let mut failures = Failures::default();
        let collected = Socket::netfilter()
            .step(|| "open a netfilter socket")
            .and_then(|mut socket| masquerade::gc(&mut socket, call.config.name(), call.valid));
        failures.keep(collected);
        failures.keep(delegate(Delegate::ipam(call.env, call.config), Verb::Gc));
        failures.into_result()
    }

    /// Whether the configuration can be served: it is valid, nothing else has the bridge's name, the kernel can masquerade,
    /// and IPAM is ready.
    fn status(&self, call: &Probe<'_>) -> Result<(), CniError> {
        let conf = Conf::read(call.config, "")?;
        let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
        let mut socket = Socket::route().step(|| "open a netlink socket").map_err(unavailable)?;
        let found =
            socket.link(LinkId::Name(&conf.bridge)).step(|| "look up the bridge").map_err(unavailable)?;
        if found.is_some_and(|link| link.kind != device::KIND) {
            let msg = format!("{:?} already exists but is not a bridge", conf.bridge);
            return Err(CniError::new(Code::NotAvailable, msg));
        }
        if conf.ip_masq {
            masquerade::status()?;
        }
        // Without its IPAM plugin no ADD can be served.
        let missing = |error: CniError| match error.code {
            Code::Internal => CniError { code: Code::NotAvailable, ..error },
            _ => error,
        };
        delegate(Delegate::ipam(call.env, call.config).map_err(missing), Verb::Status)
    }
}

/// Passes a verb on to the IPAM plugin, if the network has one.
fn delegate(ipam: Result<Option<Delegate<'_>>, CniError>, verb: Verb) -> Result<(), CniError> {
    ipam?.map_or(Ok(()), |ipam| ipam.call(verb))
}
