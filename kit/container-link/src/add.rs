//! ADD: parent, link, IPAM, addresses and routes.

use std::os::fd::AsFd as _;

use cni_common::plugin::{AddRequest, Attachment, Delegate};
use cni_common::spec::{AddResult, CniError};
use ferrule_kernel::netlink::link::{self, NewLink};
use ferrule_kernel::netlink::{Error, Link, LinkId, Socket, may_be_done};
use ferrule_kit::container::Container;
use ferrule_kit::hash::{identity, sha512};
use ferrule_kit::plan::Plan;
use ferrule_kit::steps::{UndoStack, report_undo};
use ferrule_kit::{ipam, socket};
use nix::errno::Errno;

use super::{ContainerLink, unknown_kind};

/// An ADD that has not made its link yet.
pub struct Attaching<'a> {
    call: &'a AddRequest<'a>,
    link: &'a ContainerLink,
    /// The container.
    pub container: Container<'a>,
    /// The link's MTU in bytes; 0 for the kernel's default.
    mtu: u32,
    /// A socket on the host, if the parent is there.
    host: Option<Socket>,
    /// The link's parent. A plugin may replace it before it makes the link.
    pub parent: Option<Link>,
    /// The addresses and routes of a network without IPAM.
    assigned: Option<AddResult>,
    ipam: Option<Delegate<'a>>,
}

impl<'a> Attaching<'a> {
    /// Checks that the container has no such interface yet, and finds the parent and the IPAM plugin. `assigned` are the addresses and
    /// routes of a network without IPAM.
    ///
    /// # Errors
    /// The interface exists, the parent or the IPAM plugin does not, or the parent's MTU is too small. Nothing has changed.
    pub fn begin(
        call: &'a AddRequest<'a>,
        link: &'a ContainerLink,
        assigned: Option<AddResult>,
    ) -> Result<Self, CniError> {
        let ipam = if assigned.is_some() { None } else { ipam::of_add(call)? };
        let mut container = Container::open(call.sandbox.netns()?, call.ifname)?;
        container.dad = link.dad;
        if container.interface()?.is_some() {
            return Err(name_taken(link.kind, call.ifname));
        }
        let mut attaching =
            Attaching { call, link, container, mtu: link.conf.mtu, host: None, parent: None, assigned, ipam };
        if let Some(parent) = &link.parent {
            attaching.host = if parent.in_container { None } else { Some(socket::route()?) };
            let found = parent.find(attaching.socket())?;
            attaching.mtu = parent.check_mtu(&found)?;
            attaching.parent = Some(found);
        }
        Ok(attaching)
    }

    /// The socket in the parent's namespace; in the container if there is no parent.
    pub fn socket(&mut self) -> &mut Socket {
        self.host.as_mut().unwrap_or(&mut self.container.socket)
    }

    /// Makes the link with one request, then attaches it.
    ///
    /// # Errors
    /// Nothing is left in the container, and IPAM has released the addresses.
    pub fn make(self) -> Result<AddResult, CniError> {
        self.make_by(Attaching::request)
    }

    /// As [`Attaching::make`], for a link that `make` creates in the container, down.
    pub fn make_by(
        mut self,
        make: impl FnOnce(&mut Self) -> Result<(), CniError>,
    ) -> Result<AddResult, CniError> {
        make(&mut self)?; // undoes itself
        let mut undo = UndoStack::default();
        undo.push(format!("make {:?}", self.call.ifname), link::delete(LinkId::Name(self.call.ifname)));
        let needs_link = ipam::needs_link(self.call.config);
        let ipam = self.ipam.take();
        let attached = ipam::add(ipam.as_ref(), self.call, |assigned| {
            let assigned = assigned.or_else(|| self.assigned.take());
            let attached = self.attach(assigned);
            if attached.is_err() && !needs_link {
                undo.undo(&mut self.container.socket);
            }
            attached
        });
        attached.inspect_err(|_| undo.undo(&mut self.container.socket))
    }

    /// Sends the request that makes the link. If the outcome is unknown, removes the link: it did not exist before.
    fn request(&mut self) -> Result<(), CniError> {
        let (ifname, kind) = (self.call.ifname, self.link.kind);
        let netns = self.call.sandbox.netns()?;
        let new = NewLink {
            kind,
            name: ifname,
            mac: self.link.conf.mac,
            mtu: self.mtu,
            parent: self.parent.as_ref().map(|parent| parent.index),
            data: self.link.data,
            netns: self.host.is_some().then(|| netns.as_fd()),
            ..NewLink::default()
        };
        let mut made = self.socket().request(new.request());
        if matches!(&made, Err(error) if error.errno == Errno::EEXIST)
            && self.host.is_some()
            && self.container.interface()?.is_none()
        {
            // Kernels before 6.13 look for the name on the host, unless the request has an index.
            let index = free_index(&Attachment::from(self.call));
            made = self.socket().request(NewLink { index, ..new }.request());
        }
        let Err(error) = &made else { return Ok(()) };
        if may_be_done(&made) {
            report_undo(self.container.socket.delete_link(LinkId::Name(ifname)));
        }
        Err(self.explain(error))
    }

    /// The kernel's error with the likely cause.
    fn explain(&mut self, error: &Error) -> CniError {
        let (kind, ifname) = (self.link.kind, self.call.ifname);
        if error.errno == Errno::EOPNOTSUPP {
            return unknown_kind(kind, error);
        }
        let failed = CniError::internal(format!("failed to create {kind}: {error}"));
        let Some(parent) = self.parent.clone() else { return failed };
        let name = &parent.name;
        let upper = parent.master.and_then(|index| self.socket().link(LinkId::Index(index)).ok().flatten());
        failed.with_details(match (error.errno, upper) {
            (Errno::EBUSY, Some(upper)) => format!("master {name:?} is a port of {:?}", upper.name),
            (Errno::EEXIST, _) => format!(
                "{} of master {name:?} is in use, perhaps by another container; macvlan with the key vlan shares a VLAN",
                self.link.data
            ),
            (Errno::EBUSY, None) => format!("master {name:?} carries links of another kind"),
            _ => format!("{kind} {ifname:?} on master {name:?}"),
        })
    }

    /// Gives the link its addresses and routes.
    fn attach(&mut self, assigned: Option<AddResult>) -> Result<AddResult, CniError> {
        let mut plan = Plan::new(&self.link.conf, assigned)?;
        let created = self.container.created()?;
        let link = self.container.configure(created.index, &plan)?;
        self.container.wait(&link, &plan.addresses())?;
        self.container.wait_for_router(&link, &mut plan)?;
        Ok(plan.result(self.call, &[], &link))
    }
}

fn name_taken(kind: &str, ifname: &str) -> CniError {
    let msg =
        format!("failed to create {kind}: the container already has an interface {ifname:?}: file exists");
    CniError::internal(msg)
}

/// An index that no other link has: above those that the kernel chooses.
fn free_index(attachment: &Attachment<'_>) -> u32 {
    let [a, b, c, ..] = sha512(&identity(attachment));
    1 << 30 | u32::from_be_bytes([0, a, b, c])
}
