//! What ADD is to do, given what there is. Nothing here touches the kernel.

use cni_common::netlink::filter::Filter;
use cni_common::netlink::qdisc::{FIRST, Qdisc, Tbf};
use cni_common::netlink::{Link, ifb};
use cni_common::spec::CniError;

use crate::config::{Conf, Limit};
use crate::owner::{self, Claim};
use crate::shape::{self, Sizes};
use crate::state::{Hook, Host, Ifbs};
use cni_common::plugin::Attachment;

/// The place of the filter at a hook of our own, as the reference has it. Nowhere else is it used, so a filter of ours there
/// tells that the hook is ours too.
pub const FIRST_PREFERENCE: u16 = 1;
/// The place at a hook that somebody else made and has put nothing at yet: far behind whatever may follow.
const LATE_PREFERENCE: u16 = 0xc000;

/// What to do to the host's link and beside it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The index of the host's link.
    pub host: u32,
    /// Towards the container.
    pub ingress: Option<Root>,
    /// From the container.
    pub egress: Option<Egress>,
}

/// What to do to the discipline of what the host's link sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// Make it.
    Create(Tbf),
    /// Give it new numbers, and these back if something fails.
    Change {
        /// The numbers it shall have.
        to: Tbf,
        /// The numbers it has.
        from: Tbf,
    },
}

/// What to do about the traffic from the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The IFB's name.
    pub name: String,
    /// The IFB's index, if it is there.
    pub existing: Option<u32>,
    /// The IFB's MTU in bytes.
    pub mtu: u32,
    /// What to write down at the IFB.
    pub alias: owner::Alias,
    /// What is written down there now; nothing at one that is not there.
    pub former_alias: String,
    /// The numbers of the IFB's discipline.
    pub tbf: Tbf,
    /// Whether there is no hook yet.
    pub makes_hook: bool,
    /// The parent of the filter.
    pub parent: u32,
    /// Filters of ours that lead nowhere and have to go: preference and handle.
    pub stale: Vec<(u16, u32)>,
    /// The place of the filter, `None` if it is there.
    pub preference: Option<u16>,
}

impl Plan {
    /// Works it out.
    ///
    /// # Errors
    /// A discipline of somebody else where ours belongs, an IFB's name that is taken, no place for the filter.
    pub fn new(
        conf: &Conf,
        owner: &Attachment<'_>,
        container: &Link,
        host: &Host,
        ifbs: &Ifbs,
    ) -> Result<Plan, CniError> {
        let sizes = sizes(container, host);
        let tbf = |limit: Limit| shape::tbf(limit, conf.numbers, sizes);
        Ok(Plan {
            host: host.link.index,
            ingress: conf.ingress.map(|limit| root(host, tbf(limit))).transpose()?,
            egress: conf.egress.map(|limit| egress(owner, host, ifbs, tbf(limit))).transpose()?,
        })
    }
}

/// What may come along between the two links, in bytes.
pub fn sizes(container: &Link, host: &Host) -> Sizes {
    Sizes::new(container.mtu.max(host.link.mtu), container.gso_max.max(host.link.gso_max))
}

/// Our token bucket filter's numbers, if the discipline is one: ours or the reference's, by its handle.
pub fn ours(root: Option<&Qdisc>) -> Option<Tbf> {
    root.filter(|root| root.handle == FIRST).and_then(|root| root.tbf)
}

fn root(host: &Host, to: Tbf) -> Result<Root, CniError> {
    match &host.root {
        // The kernel's own choice has no handle.
        None => Ok(Root::Create(to)),
        Some(root) if root.handle == 0 => Ok(Root::Create(to)),
        Some(root) => ours(Some(root)).map(|from| Root::Change { to, from }).ok_or_else(|| {
            CniError::internal(format!(
                "create qdisc: {:?} has a root qdisc of somebody else: {} {:x}:",
                host.link.name,
                root.kind,
                root.handle >> 16
            ))
        }),
    }
}

fn egress(owner: &Attachment<'_>, host: &Host, ifbs: &Ifbs, tbf: Tbf) -> Result<Egress, CniError> {
    let hook = host.hook.as_ref();
    let filters = hook.map(|hook| hook.filters.as_slice()).unwrap_or_default();
    let (name, ifb) = choose(owner, ifbs, filters)?;
    let to = |filter: &&Filter| filter.redirect.is_some() && filter.redirect == ifb.map(|ifb| ifb.index);
    let stale: Vec<(u16, u32)> = dangling(filters).map(|filter| (filter.preference, filter.handle)).collect();
    let origin = match ifb.map(|ifb| owner::claim(owner, ifb)) {
        Some(Claim::Own(alias)) if hook.is_some() => alias.hook,
        _ if hook.is_none() => owner::Hook::Made,
        _ if filters.iter().any(|filter| {
            filter.preference == FIRST_PREFERENCE && (to(&filter) || filter.redirect == Some(0))
        }) =>
        {
            owner::Hook::Made
        }
        _ => owner::Hook::Found,
    };
    let preference = match filters.iter().find(to) {
        Some(_) => None,
        None => Some(place(hook, origin, &stale)?),
    };
    Ok(Egress {
        name,
        existing: ifb.map(|ifb| ifb.index),
        mtu: host.link.mtu,
        alias: owner::alias(owner, host.link.index, origin),
        former_alias: ifb.map(|ifb| ifb.alias.clone()).unwrap_or_default(),
        tbf,
        makes_hook: hook.is_none(),
        parent: hook.map_or(cni_common::netlink::filter::AT_INGRESS, Hook::parent),
        stale,
        preference,
    })
}

/// The filters that lead to a link which is gone: of ours, since it takes a redirection of everything.
pub fn dangling(filters: &[Filter]) -> impl Iterator<Item = &Filter> {
    filters.iter().filter(|filter| filter.redirect == Some(0))
}

/// Which IFB the attachment has, or is to have.
///
/// # Errors
/// Both names are taken by somebody else.
fn choose<'l>(
    owner: &Attachment<'_>,
    ifbs: &'l Ifbs,
    filters: &[Filter],
) -> Result<(String, Option<&'l Link>), CniError> {
    let leads_to = |link: &Link| filters.iter().any(|filter| filter.redirect == Some(link.index));
    let is_ifb = |link: &&Link| link.kind == ifb::KIND;
    // Its name is no other attachment's, so no alias is as good as the right one.
    let is_own = |link: &&Link| owner::claim(owner, link) != Claim::Anothers;
    let is_own_shared = |link: &&Link| match owner::claim(owner, link) {
        Claim::Own(_) => true,
        Claim::Nobodys => leads_to(link),
        Claim::Anothers => false,
    };
    if let Some(link) = ifbs.own.as_ref().filter(is_ifb).filter(is_own) {
        return Ok((owner::own_name(owner), Some(link)));
    }
    if let Some(link) = ifbs.shared.as_ref().filter(is_ifb).filter(is_own_shared) {
        return Ok((owner::shared_name(owner), Some(link)));
    }
    match (&ifbs.shared, &ifbs.own) {
        (None, _) => Ok((owner::shared_name(owner), None)),
        (Some(_), None) => Ok((owner::own_name(owner), None)),
        (Some(shared), Some(own)) => Err(CniError::internal(format!(
            "adding link: {:?} and {:?} exist already and belong to somebody else ({:?}, {:?})",
            shared.name, own.name, shared.alias, own.alias
        ))),
    }
}

/// The place for the filter. At a hook of our own it is the reference's; at somebody else's it comes last, for a packet that
/// is sent to an IFB is not shown to any filter behind, and these may guard the container.
fn place(hook: Option<&Hook>, origin: owner::Hook, stale: &[(u16, u32)]) -> Result<u16, CniError> {
    let Some(hook) = hook else { return Ok(FIRST_PREFERENCE) };
    let others = hook.filters.iter().filter(|filter| {
        !filter.is_table && filter.handle != 0 && !stale.contains(&(filter.preference, filter.handle))
    });
    match others.map(|filter| filter.preference).max() {
        Some(last) => last.max(LATE_PREFERENCE).checked_add(1).ok_or_else(|| {
            CniError::internal(format!(
                "add filter: no place is left behind the last filter of the {} hook",
                hook.kind
            ))
        }),
        None if origin == owner::Hook::Made => Ok(FIRST_PREFERENCE),
        None => Ok(LATE_PREFERENCE),
    }
}

/// The IFB that an attachment has, given what there is: what CHECK looks at.
pub fn existing<'l>(owner: &Attachment<'_>, ifbs: &'l Ifbs, filters: &[Filter]) -> Option<&'l Link> {
    choose(owner, ifbs, filters).ok().and_then(|(_, link)| link)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OWNER: Attachment<'_> = Attachment { network: "pods", container_id: "0123", ifname: "eth0" };
    const TBF: Tbf = Tbf { rate: 1, limit: 2, buffer: 3, burst: None };

    fn filter(kind: &str, preference: u16, redirect: Option<u32>) -> Filter {
        Filter { kind: kind.to_owned(), preference, handle: 0x8000_0800, redirect, is_table: false }
    }

    fn host(kind: &str, filters: &[Filter]) -> Host {
        let hook = Hook { kind: kind.to_owned(), filters: filters.to_vec() };
        Host { link: Link { index: 7, mtu: 1500, ..Link::default() }, root: None, hook: Some(hook) }
    }

    fn ifb(name: String, alias: String) -> Option<Link> {
        Some(Link { index: 9, name, alias, kind: ifb::KIND.to_owned(), ..Link::default() })
    }

    fn plan(host: &Host, ifbs: &Ifbs) -> Egress {
        egress(&OWNER, host, ifbs, TBF).unwrap()
    }

    #[test]
    fn the_first_interface_gets_the_references_name_and_place() {
        let bare = Host { hook: None, ..host("", &[]) };
        let egress = plan(&bare, &Ifbs::default());
        assert_eq!((egress.name, egress.existing, egress.mtu), (owner::shared_name(&OWNER), None, 1500));
        assert_eq!((egress.makes_hook, egress.preference), (true, Some(1)));
        assert_eq!(egress.alias, owner::alias(&OWNER, 7, owner::Hook::Made));
    }

    #[test]
    fn at_somebody_elses_hook_the_filter_comes_last() {
        for (filters, place) in [
            (vec![], 0xc000),
            (vec![filter("bpf", 1, None)], 0xc001),
            (vec![filter("bpf", 1, None), filter("u32", 0xc000, Some(4))], 0xc001),
            (vec![filter("bpf", 0xfffe, None)], 0xffff),
        ] {
            let egress = plan(&host("clsact", &filters), &Ifbs::default());
            assert_eq!((egress.makes_hook, egress.preference), (false, Some(place)), "{filters:?}");
            assert_eq!(egress.alias, owner::alias(&OWNER, 7, owner::Hook::Found));
        }
        let full = host("clsact", &[filter("bpf", 0xffff, None)]);
        assert!(
            super::egress(&OWNER, &full, &Ifbs::default(), TBF).unwrap_err().msg.contains("no place is left")
        );
    }

    #[test]
    fn an_ifb_is_taken_for_ones_own_by_its_alias_or_by_what_leads_there() {
        let (shared, own) = (owner::shared_name(&OWNER), owner::own_name(&OWNER));
        let mine = owner::alias(&OWNER, 7, owner::Hook::Made).to_string();
        let other = owner::alias(&Attachment { ifname: "net1", ..OWNER }, 8, owner::Hook::Made).to_string();
        let leads = host("ingress", &[filter("u32", 1, Some(9))]);
        let empty = host("ingress", &[]);
        let name = |host: &Host, alias: &str| {
            let egress = plan(host, &Ifbs { shared: ifb(shared.clone(), alias.to_owned()), own: None });
            (egress.name, egress.existing)
        };
        assert_eq!(name(&empty, &mine), (shared.clone(), Some(9)));
        assert_eq!(name(&leads, ""), (shared.clone(), Some(9)));
        assert_eq!(name(&empty, ""), (own.clone(), None));
        assert_eq!(name(&empty, &other), (own.clone(), None));
        let both = Ifbs { shared: ifb(shared, other.clone()), own: ifb(own, other) };
        assert!(
            super::egress(&OWNER, &empty, &both, TBF).unwrap_err().msg.contains("belong to somebody else")
        );
    }

    #[test]
    fn what_is_there_is_not_made_again() {
        let ifbs = Ifbs {
            shared: ifb(owner::shared_name(&OWNER), owner::alias(&OWNER, 7, owner::Hook::Made).to_string()),
            own: None,
        };
        let leads = host("ingress", &[filter("u32", 1, Some(9))]);
        assert_eq!(plan(&leads, &ifbs).preference, None);
        let dangling = host("ingress", &[filter("u32", 1, Some(0))]);
        let egress = plan(&dangling, &Ifbs::default());
        assert_eq!((egress.stale, egress.preference), (vec![(1, 0x8000_0800)], Some(1)));
    }

    #[test]
    fn only_a_tbf_by_the_right_handle_is_changed() {
        let with = |kind: &str, handle, tbf| Host {
            root: Some(Qdisc { kind: kind.to_owned(), handle, tbf }),
            ..host("", &[])
        };
        let to = Tbf { rate: 5, ..TBF };
        assert_eq!(root(&with("noqueue", 0, None), to), Ok(Root::Create(to)));
        assert_eq!(root(&with("tbf", FIRST, Some(TBF)), to), Ok(Root::Change { to, from: TBF }));
        for (kind, handle, tbf) in [("tbf", 0x0007_0000, Some(TBF)), ("htb", FIRST, None)] {
            let error = root(&with(kind, handle, tbf), to).unwrap_err();
            assert!(error.msg.contains(&format!("{kind} {}:", handle >> 16)), "{error}");
        }
    }
}
