//! The link that a macvlan, an ipvlan or a VLAN device is made on: `master`.

use cni_common::spec::{CniError, Code, Context as _};
use ferrule_kernel::netlink::{Link, LinkId, Socket};

use super::vlan_device;

/// `master`, and the MTU that depends on it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Parent {
    /// Its name or an alternative one; empty for the link of the default route.
    pub name: String,
    /// Whether it is in the container, not on the host.
    pub in_container: bool,
    /// The configured MTU in bytes; 0 for that of the parent.
    pub mtu: i64,
    /// The ID of the VLAN device on this link that is the parent; `None` if the link itself is.
    pub vlan: Option<u16>,
}

impl Parent {
    /// Looks the link up. The socket is in its namespace.
    ///
    /// # Errors
    /// There is no such link, or no default route.
    pub fn find(&self, socket: &mut Socket) -> Result<Link, CniError> {
        if self.name.is_empty() {
            return self.of_default_route(socket);
        }
        let step = || format!("failed to lookup master {:?}", self.name);
        let found = socket.link(LinkId::Name(&self.name)).context(step)?;
        let missing = || CniError::internal(format!("{}: Link not found", step()));
        found.ok_or_else(|| {
            let looked_for = format!("looked for a link of this name in {}", self.place());
            missing().with_details(looked_for).with_remedy("make the link, or name another one in \"master\"")
        })
    }

    /// The parent of a link that ADD has made: with [`Parent::vlan`] the VLAN device on the link.
    ///
    /// # Errors
    /// Those of [`Parent::find`]; there is no such VLAN device.
    pub fn find_made(&self, socket: &mut Socket) -> Result<Link, CniError> {
        let master = self.find(socket)?;
        let Some(id) = self.vlan else { return Ok(master) };
        let missing = || CniError::internal(format!("VLAN device {id} of {:?} not found", master.name));
        vlan_device::find(socket, &master, id)?.ok_or_else(missing)
    }

    fn of_default_route(&self, socket: &mut Socket) -> Result<Link, CniError> {
        let step = || "look up the link of the default route";
        if let Some(index) = socket.default_route_link().context(step)?
            && let Some(link) = socket.link(LinkId::Index(index)).context(step)?
        {
            return Ok(link);
        }
        let looked_for = format!(
            "master is not set; looked for a unicast default route of IPv4, then of IPv6, in the main table of {}",
            self.place()
        );
        let error = CniError::internal("no default route interface found").with_details(looked_for);
        Err(error.with_remedy("name the link in \"master\""))
    }

    /// The MTU for the new link in bytes; 0 for that of `found`.
    ///
    /// # Errors
    /// Code 7 with the reference's text if `found` has a smaller one.
    pub fn check_mtu(&self, found: &Link) -> Result<u32, CniError> {
        let mtu = u32::try_from(self.mtu).ok().filter(|mtu| *mtu <= found.mtu);
        mtu.ok_or_else(|| {
            let msg = format!("invalid MTU {}, must be [0, master MTU({})]", self.mtu, found.mtu);
            let whose = format!("master {:?} in {} has MTU {}", found.name, self.place(), found.mtu);
            CniError::new(Code::InvalidConfig, msg).with_details(whose)
        })
    }

    /// Where it is, for errors.
    pub(super) fn place(&self) -> &'static str {
        if self.in_container { "the container" } else { "the host's network namespace" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mtu_is_at_most_the_parents() {
        let up0 = Link { name: "up0".to_owned(), mtu: 1500, ..Link::default() };
        let check = |mtu| Parent { mtu, ..Parent::default() }.check_mtu(&up0);
        assert_eq!((check(0).unwrap(), check(1500).unwrap()), (0, 1500));
        for mtu in [-100, 1501, 1 << 40] {
            let error = check(mtu).unwrap_err();
            assert_eq!(error.msg, format!("invalid MTU {mtu}, must be [0, master MTU(1500)]"));
            assert_eq!(error.details, "master \"up0\" in the host's network namespace has MTU 1500");
        }
    }
}
