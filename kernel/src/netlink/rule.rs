//! Policy routing rules: which routing table a packet uses.
//!
//! # References
//! linux/fib_rules.h; ip-rule(8).

use std::net::IpAddr;

use ipnetwork::IpNetwork;
use nix::libc::{RT_TABLE_UNSPEC, RTM_DELRULE, RTM_GETRULE, RTM_NEWRULE};

use super::error::Error;
use super::message::{F_CREATE, F_DUMP, F_EXCL, Message, attrs, u32_at};
use super::socket::Socket;
use crate::ip::{IpFamily, from_octets, octets};

/// Length of `struct fib_rule_hdr`.
const RULE: usize = 12;

const FRA_SRC: u16 = 2;
const FRA_PRIORITY: u16 = 6;
const FRA_TABLE: u16 = 15;
/// Who made the rule, since Linux 4.17.
const FRA_PROTOCOL: u16 = 21;

/// `FR_ACT_TO_TBL`: find the route in a table.
const TO_TABLE: u8 = 1;

/// A rule that sends the packets from one address, or from everywhere, to a routing table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Its family.
    pub family: IpFamily,
    /// The source addresses of the packets; `None` for all.
    pub src: Option<IpNetwork>,
    /// The routing table.
    pub table: u32,
    /// The order of the rules, lowest first; `None` for the kernel's choice: before all others but the first.
    pub priority: Option<u32>,
    /// The program that made the rule: `RTPROT_*` of linux/rtnetlink.h or another number; 0 if unknown.
    pub protocol: u8,
}

impl Rule {
    /// The rule for the packets from one address.
    pub fn from(ip: IpAddr, table: u32, protocol: u8) -> Self {
        Rule { family: IpFamily::of(ip), src: Some(ip.into()), table, priority: None, protocol }
    }

    /// Whether the rule is for the packets from exactly this address.
    pub fn is_from(&self, ip: IpAddr) -> bool {
        self.src == Some(ip.into())
    }

    fn request(&self, kind: u16, flags: u16) -> Message {
        let mut header = [0; RULE];
        header[0] = self.family.number();
        header[2] = self.src.map_or(0, |src| src.prefix());
        header[4] = u8::try_from(self.table).unwrap_or(RT_TABLE_UNSPEC);
        header[7] = TO_TABLE;
        Message::new(kind, flags, &header)
            .attr_u32(FRA_TABLE, self.table)
            .attr_if(FRA_SRC, self.src.map(|src| octets(src.network())))
            .attr_if(FRA_PRIORITY, self.priority.map(u32::to_ne_bytes))
            .attr_if(FRA_PROTOCOL, (self.protocol != 0).then_some([self.protocol]))
    }
}

/// A request that adds a rule; `EEXIST` if there is an equal one of the same priority.
pub fn add(rule: &Rule) -> Message {
    rule.request(RTM_NEWRULE, F_CREATE | F_EXCL)
}

/// A request that removes the first rule with these attributes; `ENOENT` if there is none.
pub fn delete(rule: &Rule) -> Message {
    rule.request(RTM_DELRULE, 0)
}

/// A request that adds the rule in the kernel's description, with all its attributes but as one of `protocol`. `EEXIST` if
/// there is an equal one of any protocol.
pub fn add_again(description: &[u8], protocol: u8) -> Message {
    again(RTM_NEWRULE, F_CREATE | F_EXCL, description, protocol)
}

/// A request that removes what [`add_again`] has added; `ENOENT` if that is not there.
pub fn delete_again(description: &[u8], protocol: u8) -> Message {
    again(RTM_DELRULE, 0, description, protocol)
}

fn again(kind: u16, flags: u16, description: &[u8], protocol: u8) -> Message {
    let mut header = [0; RULE];
    header.iter_mut().zip(description).for_each(|(to, from)| *to = *from);
    let message = Message::new(kind, flags, &header).attr(FRA_PROTOCOL, &[protocol]);
    message.attrs_in(description.get(RULE..).unwrap_or_default(), &[FRA_PROTOCOL])
}

/// A request for the rules of both families.
pub fn list() -> Message {
    Message::new(RTM_GETRULE, F_DUMP, &[0; RULE])
}

impl Socket {
    /// The rules of both families, see [`parse`].
    pub fn rules(&mut self) -> Result<Vec<Rule>, Error> {
        Ok(self.request(list())?.iter().filter_map(|body| parse(body)).collect())
    }
}

/// The rule in the kernel's description; `None` if it is not one of a rule. It is complete if it chooses a table for all packets
/// or by source address alone. Of rules with `iif` or `fwmark` only these attributes are read.
pub fn parse(body: &[u8]) -> Option<Rule> {
    let header = body.get(..RULE)?;
    // The dump also has the rules of multicast routing.
    let family = IpFamily::ALL.into_iter().find(|family| family.number() == header[0])?;
    let mut rule = Rule { family, src: None, table: u32::from(header[4]), priority: None, protocol: 0 };
    for (kind, value) in attrs(&body[RULE..]) {
        match kind {
            FRA_SRC => rule.src = IpNetwork::new(from_octets(value)?, header[2]).ok(),
            FRA_TABLE => rule.table = u32_at(value, 0),
            FRA_PRIORITY => rule.priority = Some(u32_at(value, 0)),
            FRA_PROTOCOL => rule.protocol = value.first().copied().unwrap_or_default(),
            _ => {}
        }
    }
    Some(rule)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From a kernel 6.18, after `ip rule add from 192.0.2.1 lookup 1000 protocol 67`.
    #[test]
    fn a_rule_of_the_kernel_is_decoded() {
        let mut body = vec![2, 0, 32, 0, 252, 0, 0, 1, 0, 0, 0, 0];
        body.extend([5, 0, 21, 0, 67, 0, 0, 0]);
        body.extend([
            8, 0, 15, 0, 0xe8, 3, 0, 0, 8, 0, 14, 0, 255, 255, 255, 255, 8, 0, 6, 0, 0xfd, 0x7f, 0, 0,
        ]);
        body.extend([8, 0, 2, 0, 192, 0, 2, 1]);
        let ip = [192, 0, 2, 1].into();
        let rule = parse(&body).unwrap();
        assert_eq!(rule, Rule { priority: Some(32765), ..Rule::from(ip, 1000, 67) });
        assert!(rule.is_from(ip) && !rule.is_from([192, 0, 2, 2].into()));
        // A rule of multicast routing (RTNL_FAMILY_IPMR).
        body[0] = 128;
        assert_eq!(parse(&body), None);
    }
}
