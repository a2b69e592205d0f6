//! The attributes of the container's link: reading, changing and comparing them.

use cni_common::spec::CniError;
use ferrule_kernel::netlink::link::{self, IFF_ALLMULTI, IFF_PROMISC};
use ferrule_kernel::netlink::{Link, Mac, Message};
use ferrule_kit::check::ensure;
use ferrule_kit::steps::Step;

/// Attributes of a link. `None` leaves an attribute as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// The MAC address.
    pub mac: Option<Mac>,
    /// Promiscuous mode.
    pub promiscuous: Option<bool>,
    /// The MTU in bytes.
    pub mtu: Option<u32>,
    /// Whether the link receives all multicast packets.
    pub all_multicast: Option<bool>,
    /// The length of the transmit queue in packets.
    pub tx_queue_len: Option<u32>,
}

impl Attributes {
    /// Whether no attribute changes.
    pub fn is_empty(&self) -> bool {
        *self == Attributes::default()
    }

    /// The link's values of the attributes that `self` has.
    pub fn of(&self, link: &Link) -> Attributes {
        Attributes {
            mac: self.mac.and(Some(link.mac)),
            promiscuous: self.promiscuous.and(Some(link.is_promiscuous())),
            mtu: self.mtu.and(Some(link.mtu)),
            all_multicast: self.all_multicast.and(Some(link.is_all_multicast())),
            tx_queue_len: self.tx_queue_len.and(Some(link.tx_queue_len)),
        }
    }

    /// These attributes, and those of `other` that are missing here.
    pub fn or(&self, other: &Attributes) -> Attributes {
        Attributes {
            mac: self.mac.or(other.mac),
            promiscuous: self.promiscuous.or(other.promiscuous),
            mtu: self.mtu.or(other.mtu),
            all_multicast: self.all_multicast.or(other.all_multicast),
            tx_queue_len: self.tx_queue_len.or(other.tx_queue_len),
        }
    }

    /// The steps that give the link these attributes. To undo one, it gets its present value.
    pub fn steps(&self, link: &Link) -> Vec<Step> {
        let (index, name) = (link.index, &link.name);
        let flag = |flag, on| link::set_flags(index, if on { flag } else { 0 }, flag);
        let mut steps = Vec::new();
        let mut step = |what: String, set: Message, undo: Message| {
            steps.push(Step::new(format!("set the {what} of {name:?}"), set).undone_by(undo));
        };
        if let Some(mac) = self.mac {
            step(format!("MAC address {mac}"), link::set_mac(index, mac), link::set_mac(index, link.mac));
        }
        if let Some(on) = self.promiscuous {
            let undo = flag(IFF_PROMISC, link.is_promiscuous());
            step(format!("promiscuous mode ({on})"), flag(IFF_PROMISC, on), undo);
        }
        if let Some(mtu) = self.mtu {
            step(format!("MTU {mtu}"), link::set_mtu(index, mtu), link::set_mtu(index, link.mtu));
        }
        if let Some(on) = self.all_multicast {
            let undo = flag(IFF_ALLMULTI, link.is_all_multicast());
            step(format!("all-multicast mode ({on})"), flag(IFF_ALLMULTI, on), undo);
        }
        if let Some(len) = self.tx_queue_len {
            let undo = link::set_tx_queue_len(index, link.tx_queue_len);
            step(format!("transmit queue length {len}"), link::set_tx_queue_len(index, len), undo);
        }
        steps
    }

    /// Checks that the link has these attributes.
    ///
    /// # Errors
    /// The reference's text with the first attribute that has another value.
    pub fn check(&self, link: &Link) -> Result<(), CniError> {
        let (is, name) = (self.of(link), &link.name);
        if let (Some(wanted), Some(is)) = (self.mac, is.mac) {
            ensure(is == wanted, || differs(&format!("Ethernet of {name}"), &wanted, &is))?;
        }
        if let (Some(wanted), Some(is)) = (self.promiscuous, is.promiscuous) {
            ensure(is == wanted, || {
                format!("Error: Tuning link {name} configured promisc is {wanted}, current value is {is}")
            })?;
        }
        if let (Some(wanted), Some(is)) = (self.mtu, is.mtu) {
            ensure(is == wanted, || differs(&format!("MTU of {name}"), &wanted, &is))?;
        }
        if let (Some(wanted), Some(is)) = (self.all_multicast, is.all_multicast) {
            ensure(is == wanted, || differs(&format!("all-multicast mode of {name}"), &wanted, &is))?;
        }
        if let (Some(wanted), Some(is)) = (self.tx_queue_len, is.tx_queue_len) {
            ensure(is == wanted, || differs(&format!("Transmit Queue Length of {name}"), &wanted, &is))?;
        }
        Ok(())
    }
}

fn differs(what: &str, wanted: &dyn std::fmt::Display, is: &dyn std::fmt::Display) -> String {
    format!("Error: Tuning configured {what} is {wanted}, current value is {is}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_has_the_references_texts() {
        let link = Link { name: "eth0".to_owned(), mtu: 1500, tx_queue_len: 77, ..Link::default() };
        let wanted = |change: fn(&mut Attributes)| {
            let mut wanted = Attributes::default();
            change(&mut wanted);
            wanted
        };
        let mac = "00:00:00:00:00:00";
        let rows: [(Attributes, String); 5] = [
            (
                wanted(|w| w.mac = Some(Mac([2, 0, 0, 0, 0, 10]))),
                format!("Ethernet of eth0 is 02:00:00:00:00:0a, current value is {mac}"),
            ),
            (
                wanted(|w| w.promiscuous = Some(true)),
                "link eth0 configured promisc is true, current value is false".to_owned(),
            ),
            (wanted(|w| w.mtu = Some(1400)), "MTU of eth0 is 1400, current value is 1500".to_owned()),
            (
                wanted(|w| w.all_multicast = Some(true)),
                "all-multicast mode of eth0 is true, current value is false".to_owned(),
            ),
            (
                wanted(|w| w.tx_queue_len = Some(5)),
                "Transmit Queue Length of eth0 is 5, current value is 77".to_owned(),
            ),
        ];
        for (wanted, text) in rows {
            let msg = wanted.check(&link).unwrap_err().msg;
            assert!(msg.starts_with("Error: Tuning ") && msg.ends_with(&text), "{msg}");
            wanted.of(&link).check(&link).unwrap();
        }
        Attributes::default().check(&link).unwrap();
    }
}
