//! Which addresses of the container IPAM has given: the interface may have others from routers (`waitForRA`), and any machine of the network
//! can be one.

use cni_common::plugin::AddRequest;
use cni_common::spec::{AddResult, CniError, Context as _, IpConfig};
use ferrule_kernel::netlink::LinkId;
use ferrule_kernel::netlink::addr::{Address, PERMANENT};
use ferrule_kit::router_wait::may_be_of_router;
use ferrule_kit::socket;
use ipnetwork::IpNetwork;

use crate::plan;

/// The addresses that host ports lead to. Asks the kernel only if the result does not tell where an address comes from.
pub fn addresses(call: &AddRequest<'_>, result: &AddResult) -> Vec<IpNetwork> {
    let mut present = None;
    plan::addresses(result, call.ifname, &mut |ip: &IpConfig| {
        if !may_be_of_router(ip) {
            return true;
        }
        let present = present.get_or_insert_with(|| read(call));
        present.as_ref().map_or(true, |found| {
            let there = found.iter().find(|there| there.network == ip.address);
            there.is_none_or(|there| there.flags & PERMANENT != 0)
        })
    })
}

/// The addresses of the container's interface. Those from routers have a lifetime.
fn read(call: &AddRequest<'_>) -> Result<Vec<Address>, CniError> {
    let mut socket = socket::route_in(call.sandbox.netns()?)?;
    let step = || format!("list the addresses of {:?}", call.ifname);
    let link = socket.link(LinkId::Name(call.ifname)).context(step)?.unwrap_or_default();
    socket.addresses(link.index).context(step)
}
