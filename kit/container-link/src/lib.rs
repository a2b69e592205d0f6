//! The plugins that make one link in the container: macvlan, ipvlan, vlan, dummy and tap.
//!
//! ADD makes the link with its final name, then asks IPAM for addresses. DEL removes it, also if the container has renamed it, and
//! releases the addresses, in the order of [`ipam::del`].

#![deny(missing_docs)]

mod add;
mod check;
mod del;
mod parent;
pub mod vlan_device;

use cni_common::plugin::{AddRequest, Attachment, GcRequest, Plugin, StatusRequest, Verb};
use cni_common::spec::{AddResult, CniError, Code, NetConf};
use ferrule_kernel::netlink::{LinkData, ifb};
use ferrule_kit::address_wait::Dad;
use ferrule_kit::config::{LinkConf, LinkKeys};
use ferrule_kit::{ipam, remedy, repair, router_wait, socket, sysfs};
use ferrule_kubelet::{Resource, skipped};
use serde::Deserialize;

pub use add::Attaching;
pub use check::check;
use del::del;
pub use parent::Parent;

/// The link that the configuration asks for.
#[derive(Debug, Default)]
pub struct ContainerLink {
    /// The kernel's kind of link.
    pub kind: &'static str,
    /// The attributes of this kind.
    pub data: LinkData,
    /// The link that it is made on. `None` for a kind that needs none.
    pub parent: Option<Parent>,
    /// The resource that has the parent, if the configuration names one.
    pub resource: Option<Resource>,
    /// What duplicate address detection (DAD) does. It is off for a link without a parent, which reaches no other host.
    pub dad: Dad,
    /// The keys of all interface plugins.
    pub conf: LinkConf,
}

/// The keys of all these plugins that are not in [`LinkKeys`].
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Keys {
    master: String,
    link_in_container: bool,
    mac: String,
    dad: String,
}

impl ContainerLink {
    /// Reads the keys of a link without a parent. A plugin that ignores CNI_ARGS passes an empty text.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid, 6 if the configuration cannot be decoded, 7 if a value is invalid.
    pub fn read(kind: &'static str, config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let (keys, link): (Keys, LinkKeys) = (config.decode()?, config.decode()?);
        let conf = link.check(cni_args, &keys.mac)?;
        router_wait::refuse(conf.wait_for_ra, kind)?;
        Ok(ContainerLink { kind, conf, ..ContainerLink::default() })
    }

    /// Reads the keys of a link that is made on another one: also `master`, `linkInContainer` and `dad`.
    ///
    /// # Errors
    /// Those of [`ContainerLink::read`].
    pub fn read_child(kind: &'static str, config: &NetConf, cni_args: &str) -> Result<Self, CniError> {
        let (keys, mut link): (Keys, LinkKeys) = (config.decode()?, config.decode()?);
        let mtu = link.take_mtu();
        let conf = link.check(cni_args, &keys.mac)?;
        let dad = Dad::parse(&keys.dad)?;
        let parent = Parent { name: keys.master, in_container: keys.link_in_container, mtu, vlan: None };
        Ok(ContainerLink { kind, parent: Some(parent), dad, conf, ..ContainerLink::default() })
    }

    /// Reads the keys of [`Resource`], for a plugin whose parent the kubelet may give to the pod.
    ///
    /// # Errors
    /// Code 6 if the configuration cannot be decoded, 7 if a value is invalid or the parent is in the container.
    pub fn read_resource(&mut self, config: &NetConf) -> Result<(), CniError> {
        self.resource = Resource::read(config)?;
        if self.resource.is_some() && self.parent.as_ref().is_some_and(|parent| parent.in_container) {
            let msg = "resourceName does not work with linkInContainer";
            return Err(CniError::invalid_config(msg).with_details("the kubelet gives devices of the host"));
        }
        Ok(())
    }

    /// Asks the kubelet for the device, if the configuration names a resource. It is the parent, unless `master` names another one: then
    /// it only entitles the pod to a link. Returns whether ADD has something to do: a pod without such a device may need none.
    ///
    /// # Errors
    /// Those of [`Resource::device`]; the device has no link on the host.
    pub fn find_parent(&mut self, call: &AddRequest<'_>) -> Result<bool, CniError> {
        let (Some(resource), Some(parent)) = (&self.resource, &mut self.parent) else { return Ok(true) };
        let Some(id) = resource.device(&call.env.args)? else { return Ok(false) };
        if parent.name.is_empty() {
            parent.name = sysfs::link_of(&id)?;
        }
        Ok(true)
    }
}

/// The number of a mode by its name. An empty name means `default`.
///
/// # Errors
/// Code 7 with the reference's text: `unknown macvlan mode: "x"`.
pub fn mode<T: Copy>(what: &str, names: &[(&str, T)], name: &str, default: T) -> Result<T, CniError> {
    if name.is_empty() {
        return Ok(default);
    }
    let found = names.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
    found.ok_or_else(|| {
        let known: Vec<&str> = names.iter().map(|(known, _)| *known).collect();
        let msg = format!("unknown {what}: {name:?}");
        CniError::invalid_config(msg).with_details(format!("{} are known", known.join(", ")))
    })
}

/// A plugin that makes one link in the container. Usually its configuration is all that tells it from the others.
pub trait ContainerPlugin {
    /// The kernel's kind of link.
    const KIND: &'static str;

    /// Reads the configuration. Plugins that do not read CNI_ARGS, like the reference's, ignore `cni_args`.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid, 6 if the configuration cannot be decoded, 7 if a value is invalid.
    fn read(config: &NetConf, cni_args: &str) -> Result<ContainerLink, CniError>;

    /// Removes what the plugin has on the host for the attachment.
    ///
    /// # Errors
    /// It cannot be removed.
    fn release(_attachment: &Attachment<'_>) -> Result<(), CniError> {
        Ok(())
    }
}

/// The plugin with this name and the configuration `P`.
pub const fn plugin<P: ContainerPlugin>(name: &'static str) -> Plugin {
    Plugin {
        check: check_of::<P>,
        repair: Some(repair_of::<P>),
        gc,
        status: status_of::<P>,
        ..Plugin::new(name, add::<P>, del::<P>)
    }
}

fn add<P: ContainerPlugin>(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let mut link = P::read(call.config, &call.env.args)?;
    if !link.find_parent(call)? {
        return Ok(skipped(call));
    }
    Attaching::begin(call, &link, None)?.make()
}

fn check_of<P: ContainerPlugin>(call: &AddRequest<'_>) -> Result<(), CniError> {
    let link = P::read(call.config, &call.env.args)?;
    let is_skipped = link.resource.as_ref().is_some_and(|resource| resource.has_skipped(call));
    if is_skipped { Ok(()) } else { check(call, &link).map(drop) }
}

/// Sets the link up, and adds the addresses and routes that it lacks. A link with another mode or parent cannot be changed.
fn repair_of<P: ContainerPlugin>(call: &AddRequest<'_>) -> Result<(), CniError> {
    let link = P::read(call.config, &call.env.args)?;
    let mut inside = repair::find(call, Some(link.kind), &link.conf)?;
    inside.container.dad = link.dad;
    inside.repair()
}

fn status_of<P: ContainerPlugin>(call: &StatusRequest<'_>) -> Result<(), CniError> {
    status(call, &P::read(call.config, "")?)
}

/// Calls IPAM GC. The kernel has removed the links themselves with their namespaces.
///
/// # Errors
/// That of the IPAM plugin.
pub fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    ipam::call(call.env, call.config, Verb::Gc)
}

/// Checks that the kernel has this kind of link, that the link's parent exists if it is on the host, and that IPAM is
/// ready.
///
/// # Errors
/// Code 50 if the kind or the parent is missing.
pub fn status(call: &StatusRequest<'_>, link: &ContainerLink) -> Result<(), CniError> {
    let mut host = socket::route()?;
    if let Err(error) = host.request(ifb::probe(link.kind))
        && ifb::is_unknown_kind(&Err(error.clone()))
    {
        return Err(unknown_kind(link.kind, &error));
    }
    // Each pod has its own device of a resource.
    let is_of_pod = |parent: &Parent| link.resource.is_some() && parent.name.is_empty();
    if let Some(parent) = link.parent.as_ref().filter(|parent| !parent.in_container && !is_of_pod(parent)) {
        let found = parent.find(&mut host);
        let found = found.map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
        parent.check_mtu(&found)?;
    }
    ipam::status(call)
}

/// The error of a kernel without this kind of link.
fn unknown_kind(kind: &str, error: &ferrule_kernel::netlink::Error) -> CniError {
    let msg = format!("the kernel has no links of type {kind:?}: {error}");
    let module = if kind == "vlan" { "8021q" } else { kind };
    let error = CniError::new(Code::NotAvailable, msg).with_details(format!("failed to create {kind}"));
    error.with_remedy(remedy::modules(module))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &str) -> Result<ContainerLink, CniError> {
        let text = format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"t"{keys}}}"#);
        ContainerLink::read_child("macvlan", &NetConf::parse(text.into_bytes())?, "")
    }

    #[test]
    fn keys_of_a_child() {
        let link = read("").unwrap();
        assert_eq!((link.dad, link.parent), (Dad::Wait, Some(Parent::default())));
        let link = read(
            r#","MASTER":"up0","linkInContainer":true,"mtu":-5,"dad":"nowait","mac":"02:00:00:00:00:01""#,
        );
        let link = link.unwrap();
        let parent = Parent { name: "up0".to_owned(), in_container: true, mtu: -5, vlan: None };
        assert_eq!((link.dad, link.parent), (Dad::NoWait, Some(parent)));
        assert_eq!(link.conf.mac.unwrap().to_string(), "02:00:00:00:00:01");
        let error = read(r#","dad":"x""#).unwrap_err();
        assert_eq!((error.code, error.msg.as_str()), (Code::InvalidConfig, "unknown dad: \"x\""));
    }

    #[test]
    fn a_device_of_the_kubelet_is_on_the_host() {
        let config = |keys: &str| {
            let text =
                format!(r#"{{"cniVersion":"1.0.0","name":"n","type":"t","resourceName":"x/nic"{keys}}}"#);
            NetConf::parse(text.into_bytes()).unwrap()
        };
        for (keys, msg) in [
            ("", None),
            (r#","master":"up0""#, None),
            (r#","linkInContainer":true"#, Some("resourceName does not work with linkInContainer")),
        ] {
            let mut link = ContainerLink::read_child("macvlan", &config(keys), "").unwrap();
            let error = link.read_resource(&config(keys)).err();
            assert_eq!(error.as_ref().map(|error| error.msg.as_str()), msg, "{keys}");
        }
    }

    #[test]
    fn modes() {
        let names = [("a", 1), ("b", 2)];
        assert_eq!(mode("t mode", &names, "", 2).unwrap(), 2);
        assert_eq!(mode("t mode", &names, "a", 2).unwrap(), 1);
        assert_eq!(mode("t mode", &names, "A", 2).unwrap_err().msg, "unknown t mode: \"A\"");
    }
}
