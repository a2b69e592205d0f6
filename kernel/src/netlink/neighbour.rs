//! Neighbour entries: the MAC address of an IP address, and the forwarding database (FDB) of a VXLAN, which has the outer
//! address of a MAC address.
//!
//! # References
//! linux/neighbour.h; rtnetlink(7).

use std::net::IpAddr;

use nix::errno::Errno;

use super::bridge::AF_BRIDGE;
use super::error::Error;
use super::mac::Mac;
use super::message::{F_CREATE, F_DUMP, F_REPLACE, Message, Received, find_attr, u16_at, u32_at};
use super::socket::{Socket, ignoring};
use crate::ip::{IpFamily, from_octets, octets};

/// `RTNLGRP_NEIGH`: the group that gets a message for each change.
pub const GROUP: u32 = 3;

const RTM_NEWNEIGH: u16 = 28;
const RTM_DELNEIGH: u16 = 29;
const RTM_GETNEIGH: u16 = 30;
const NDA_DST: u16 = 1;
const NDA_LLADDR: u16 = 2;
const NDA_IFINDEX: u16 = 8;
/// `NUD_PERMANENT`
const PERMANENT: u16 = 0x80;
/// `NTF_SELF`: of the link itself, not of its bridge.
const SELF: u8 = 2;
/// Length of `struct ndmsg`.
const NDMSG: usize = 12;

/// An entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Neighbour {
    /// Where it is.
    pub table: Table,
    /// The MAC address.
    pub mac: Mac,
    /// The IP address: that of the neighbour, or in the FDB of a VXLAN the outer one.
    pub ip: IpAddr,
    /// Whether it has no lifetime.
    pub is_permanent: bool,
}

/// A table of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Table {
    /// Of neighbours: finds the MAC address by the IP address.
    Neighbours,
    /// The FDB of a VXLAN: finds the outer address by the MAC address.
    Fdb,
}

impl Neighbour {
    /// What the kernel finds it by.
    pub fn key(&self) -> Key {
        match self.table {
            Table::Fdb => Key::Mac(self.mac),
            Table::Neighbours => Key::Ip(self.ip),
        }
    }

    fn request(&self, kind: u16, flags: u16, link: u32) -> Message {
        let (family, own) = match self.table {
            Table::Neighbours => (IpFamily::of(self.ip).number(), 0),
            Table::Fdb => (AF_BRIDGE, SELF),
        };
        let state = if self.is_permanent { PERMANENT } else { 0 };
        Message::new(kind, flags, &header(family, link, state, own))
            .attr(NDA_DST, &octets(self.ip))
            .attr(NDA_LLADDR, &self.mac.0)
    }

    /// A request that sets the entry. It replaces that of the same IP address, or in the FDB that of the same MAC address.
    pub fn set(&self, link: u32) -> Message {
        self.request(RTM_NEWNEIGH, F_CREATE | F_REPLACE, link)
    }

    /// A request that removes the entry; `ENOENT` if it does not exist.
    pub fn delete(&self, link: u32) -> Message {
        self.request(RTM_DELNEIGH, 0, link)
    }

    /// The entry in the kernel's description, with the index of its link. `None` for an entry of another kind: without a MAC or an IP
    /// address, or of a bridge.
    fn parse(body: &[u8]) -> Option<(u32, Neighbour)> {
        let attributes = body.get(NDMSG..)?;
        let neighbour = Neighbour {
            table: table_of(body)?,
            mac: mac(attributes)?,
            ip: ip(attributes)?,
            is_permanent: u16_at(body, 8) & PERMANENT != 0,
        };
        Some((u32_at(body, 4), neighbour))
    }
}

fn header(family: u8, link: u32, state: u16, flags: u8) -> [u8; NDMSG] {
    let mut header = [0; NDMSG];
    header[0] = family;
    header[4..8].copy_from_slice(&link.to_ne_bytes());
    header[8..10].copy_from_slice(&state.to_ne_bytes());
    header[10] = flags;
    header
}

/// What the kernel finds an entry by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Key {
    /// In the FDB.
    Mac(Mac),
    /// Of a neighbour.
    Ip(IpAddr),
}

/// A change of an entry of the link with this index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is there now.
    Set(u32, Neighbour),
    /// It is gone.
    Gone(u32, Key),
}

impl Change {
    /// Decodes a message of [`GROUP`]. `None` for all other entries.
    pub fn parse(message: &Received<'_>) -> Option<Change> {
        let Received { kind, body, .. } = *message;
        match kind {
            RTM_NEWNEIGH => Neighbour::parse(body).map(|(link, neighbour)| Change::Set(link, neighbour)),
            // A neighbour has no MAC address any more.
            RTM_DELNEIGH => {
                let attributes = body.get(NDMSG..)?;
                let key = match table_of(body)? {
                    Table::Fdb => Key::Mac(mac(attributes)?),
                    Table::Neighbours => Key::Ip(ip(attributes)?),
                };
                Some(Change::Gone(u32_at(body, 4), key))
            }
            _ => None,
        }
    }
}

/// The table in the kernel's description of an entry. `None` for the FDB of a bridge.
fn table_of(body: &[u8]) -> Option<Table> {
    match (*body.first()?, *body.get(10)?) {
        (AF_BRIDGE, flags) if flags & SELF != 0 => Some(Table::Fdb),
        (AF_BRIDGE, _) => None,
        _ => Some(Table::Neighbours),
    }
}

fn mac(attributes: &[u8]) -> Option<Mac> {
    find_attr(attributes, NDA_LLADDR)?.try_into().ok().map(Mac)
}

fn ip(attributes: &[u8]) -> Option<IpAddr> {
    from_octets(find_attr(attributes, NDA_DST)?)
}

/// A request that finds the entry of a neighbour of a link.
pub fn get(link: u32, ip: IpAddr) -> Message {
    Message::new(RTM_GETNEIGH, 0, &header(IpFamily::of(ip).number(), link, 0, 0))
        .attr(NDA_DST, &octets(ip))
        .one_answer()
}

/// A request for the entries of a link in its table of neighbours of one family, or in its FDB.
pub fn list(link: u32, family: Option<IpFamily>) -> Message {
    match family {
        Some(family) => {
            Message::new(RTM_GETNEIGH, F_DUMP, &header(family.number(), 0, 0, 0)).attr_u32(NDA_IFINDEX, link)
        }
        None => Message::new(RTM_GETNEIGH, F_DUMP, &header(AF_BRIDGE, link, 0, 0)),
    }
}

impl Socket {
    /// The entry of a neighbour of a link; `None` if there is none. Linux 5.0 or newer.
    ///
    /// # Errors
    /// `EOPNOTSUPP`: an older kernel.
    pub fn neighbour(&mut self, link: u32, ip: IpAddr) -> Result<Option<Neighbour>, Error> {
        let bodies = ignoring(self.request(get(link, ip)), &[Errno::ENOENT])?;
        Ok(bodies.first().and_then(|body| Neighbour::parse(body)).map(|(_, neighbour)| neighbour))
    }

    /// All entries of a link.
    pub fn neighbours(&mut self, link: u32) -> Result<Vec<Neighbour>, Error> {
        let mut found = Vec::new();
        for family in [None, Some(IpFamily::V4), Some(IpFamily::V6)] {
            let bodies = self.request(list(link, family))?;
            // Some kernels ignore the index and dump the entries of all links.
            let entries = bodies.iter().filter_map(|body| Neighbour::parse(body));
            found.extend(entries.filter(|(of, _)| *of == link).map(|(_, neighbour)| neighbour));
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::super::message::messages;
    use super::*;

    #[test]
    fn requests_are_decoded_as_changes() {
        for (table, ip) in
            [(Table::Fdb, "192.0.2.1"), (Table::Fdb, "fd00::1"), (Table::Neighbours, "10.1.0.0")]
        {
            let neighbour =
                Neighbour { table, mac: Mac::local([7; 6]), ip: ip.parse().unwrap(), is_permanent: true };
            for (request, wanted) in [
                (neighbour.set(5), Change::Set(5, neighbour)),
                (neighbour.delete(5), Change::Gone(5, neighbour.key())),
            ] {
                let bytes = request.finish(1, 0).unwrap();
                let change = messages(&bytes).find_map(|message| Change::parse(&message));
                assert_eq!(change, Some(wanted));
            }
        }
        assert_eq!(Neighbour::parse(&[0; 11]), None);
    }
}
