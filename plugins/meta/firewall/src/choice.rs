//! Selects the backend.

use cni_common::remark;
use cni_common::spec::CniError;

use crate::config::Backend;
use crate::firewalld::Firewalld;
use crate::iptables;
use crate::nft::Node;
use crate::plan::Plan;

/// The backend of an ADD.
pub enum Chosen {
    /// Our table.
    Nftables,
    /// The reference's chains.
    Iptables,
    /// Sources of a zone.
    Firewalld(Firewalld),
}

/// The configured backend. The automatic choice is firewalld if it runs, else iptables if the administrator has named its chain or if
/// iptables can open every chain `FORWARD` of the node, else nftables.
///
/// # Errors
/// The configured backend is firewalld, and there is no system bus.
pub fn choose(node: &Node, plan: &Plan) -> Result<Chosen, CniError> {
    let chosen = match plan.conf.backend {
        Backend::Nftables => Chosen::Nftables,
        Backend::Iptables => Chosen::Iptables,
        Backend::Firewalld => Chosen::Firewalld(Firewalld::connect()?),
        automatic => match Firewalld::find() {
            Some(firewalld) => Chosen::Firewalld(firewalld),
            None if automatic == Backend::Reference || iptables::can_open(node, plan) => Chosen::Iptables,
            None => Chosen::Nftables,
        },
    };
    if node.has_firewalld && !matches!(chosen, Chosen::Firewalld(_)) {
        remark!(
            "firewalld has rules that reject forwarded packets, and only backend firewalld can open them: without another setting \
             of firewalld the container has no connection"
        );
    }
    Ok(chosen)
}
