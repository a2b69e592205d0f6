//! Decides what ADD does in a given state. Nothing here touches the kernel.

use cni_common::spec::CniError;
use ferrule_kernel::netlink::filter::Filter;
use ferrule_kernel::netlink::qdisc::{FIRST, Qdisc, Tbf};
use ferrule_kernel::netlink::{Link, Mac, ifb};

use crate::config::{Conf, Limit};
use crate::owner::{self, Whose};
use crate::shape::{self, Sizes};
use crate::state::{Host, Ifbs, IngressQdisc};
use cni_common::plugin::Attachment;

/// The preference of our filter in an ingress qdisc that ADD created; the reference uses the same. No other
/// filter of ours has it, so a filter of ours with this preference shows that the qdisc is ours.
pub const FIRST_PREFERENCE: u16 = 1;
/// The preference of our filter in an ingress qdisc of another program that has no filters yet. It is high,
/// so that the program's own filters precede ours.
const LATE_PREFERENCE: u16 = 0xc000;

/// The changes that ADD makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The index of the host's link.
    pub host: u32,
    /// The root qdisc for traffic to the container.
    pub ingress: Option<Root>,
    /// The IFB and filter for traffic from the container.
    pub egress: Option<Egress>,
}

/// The change of the host link's root qdisc.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root {
    /// Create it.
    Create(Tbf),
    /// Change its parameters.
    Change {
        /// The new parameters.
        to: Tbf,
        /// The current parameters, restored if a later step fails.
        from: Tbf,
    },
}

/// The changes for the traffic from the container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Egress {
    /// The IFB's name.
    pub name: String,
    /// The IFB's index, if it exists.
    pub existing: Option<u32>,
    /// The IFB's MTU in bytes.
    pub mtu: u32,
    /// The hardware address of a new IFB; `None` for the kernel's choice.
    pub mac: Option<Mac>,
    /// The IFB's new alias.
    pub alias: owner::Alias,
    /// The IFB's current alias; empty if the IFB does not exist.
    pub former_alias: String,
    /// The parameters of the IFB's qdisc; `None` if it stays as it is.
    pub tbf: Option<Tbf>,
    /// Whether ADD must create the ingress qdisc.
    pub creates_ingress_qdisc: bool,
    /// The filter's parent.
    pub parent: u32,
    /// Preference and handle of our filters that redirect to a deleted link. ADD deletes them.
    pub stale: Vec<(u16, u32)>,
    /// The new filter's preference; `None` if the filter exists.
    pub preference: Option<u16>,
}

impl Plan {
    /// Plans an ADD.
    ///
    /// # Errors
    /// The root qdisc is not ours, both IFB names are in use, or no preference is left for the filter.
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

/// The maximum packet sizes between the two links, in bytes.
pub fn sizes(container: &Link, host: &Host) -> Sizes {
    Sizes::new(container.mtu.max(host.link.mtu), container.gso_max.max(host.link.gso_max))
}

/// The parameters of our root qdisc, or of the reference's: a token bucket filter with handle `1:`.
pub fn ours(root: Option<&Qdisc>) -> Option<Tbf> {
    root.filter(|root| root.handle == FIRST).and_then(|root| root.tbf)
}

fn root(host: &Host, to: Tbf) -> Result<Root, CniError> {
    match &host.root {
        // A qdisc that the kernel attached by default has no handle.
        None => Ok(Root::Create(to)),
        Some(root) if root.handle == 0 => Ok(Root::Create(to)),
        Some(root) => ours(Some(root)).map(|from| Root::Change { to, from }).ok_or_else(|| {
            CniError::internal(format!(
                "create qdisc: {:?} already has a root qdisc: {} {:x}:",
                host.link.name,
                root.kind,
                root.handle >> 16
            ))
        }),
    }
}

fn egress(owner: &Attachment<'_>, host: &Host, ifbs: &Ifbs, tbf: Tbf) -> Result<Egress, CniError> {
    let ingress_qdisc = host.ingress_qdisc.as_ref();
    let filters = ingress_qdisc.map(|qdisc| qdisc.filters.as_slice()).unwrap_or_default();
    let (name, ifb) = choose_ifb(owner, ifbs, filters)?;
    let is_ours = |filter: &&Filter| filter.redirect.is_some() && filter.redirect == ifb.map(|ifb| ifb.index);
    let stale: Vec<(u16, u32)> = dangling(filters).map(|filter| (filter.preference, filter.handle)).collect();
    let is_first = |filter: &Filter| {
        filter.preference == FIRST_PREFERENCE && (is_ours(&filter) || filter.redirect == Some(0))
    };
    let has_own_qdisc = ingress_qdisc.is_none()
        || match ifb.map(|ifb| owner::whose(owner, ifb)) {
            Some(Whose::Own(alias)) => alias.has_own_qdisc,
            _ => filters.iter().any(is_first),
        };
    let preference = match filters.iter().any(|filter| is_ours(&filter)) {
        true => None,
        false => Some(filter_preference(ingress_qdisc, has_own_qdisc, &stale)?),
    };
    Ok(Egress {
        name,
        existing: ifb.map(|ifb| ifb.index),
        mtu: host.link.mtu,
        mac: None,
        alias: owner::alias(owner, host.link.index, has_own_qdisc),
        former_alias: ifb.map(|ifb| ifb.alias.clone()).unwrap_or_default(),
        tbf: Some(tbf),
        creates_ingress_qdisc: ingress_qdisc.is_none(),
        parent: ingress_qdisc.map_or(ferrule_kernel::netlink::filter::AT_INGRESS, IngressQdisc::parent),
        stale,
        preference,
    })
}

/// The filters that redirect to a deleted ifindex. They are ours, because only match-all redirects are
/// reported.
pub fn dangling(filters: &[Filter]) -> impl Iterator<Item = &Filter> {
    filters.iter().filter(|filter| filter.redirect == Some(0))
}

/// The name of the attachment's IFB, and the IFB if it exists.
///
/// # Errors
/// Other attachments or programs use both names.
fn choose_ifb<'l>(
    owner: &Attachment<'_>,
    ifbs: &'l Ifbs,
    filters: &[Filter],
) -> Result<(String, Option<&'l Link>), CniError> {
    let redirects_to = |link: &Link| filters.iter().any(|filter| filter.redirect == Some(link.index));
    let is_ifb = |link: &&Link| link.kind == ifb::KIND;
    // Only this attachment uses this name, so an IFB without an alias is its own too.
    let is_own = |link: &&Link| owner::whose(owner, link) != Whose::Other;
    if let Some(link) = ifbs.own.as_ref().filter(is_ifb).filter(is_own) {
        return Ok((owner::own_name(owner), Some(link)));
    }
    let is_shared = |link: &&Link| is_own(link) && (!link.alias.is_empty() || redirects_to(link));
    if let Some(link) = ifbs.shared.as_ref().filter(is_ifb).filter(is_shared) {
        return Ok((owner::shared_name(owner), Some(link)));
    }
    match (&ifbs.shared, &ifbs.own) {
        (None, _) => Ok((owner::shared_name(owner), None)),
        (Some(_), None) => Ok((owner::own_name(owner), None)),
        (Some(shared), Some(own)) => Err(CniError::internal(format!(
            "adding link: the ifb names {:?} and {:?} are in use (aliases {:?}, {:?})",
            shared.name, own.name, shared.alias, own.alias
        ))),
    }
}

/// The new filter's preference. In our own qdisc it is the reference's. In another program's qdisc the filter
/// comes last: the kernel does not pass a redirected packet to later filters, and those may protect the
/// container.
fn filter_preference(
    ingress_qdisc: Option<&IngressQdisc>,
    has_own_qdisc: bool,
    stale: &[(u16, u32)],
) -> Result<u16, CniError> {
    let Some(ingress_qdisc) = ingress_qdisc else { return Ok(FIRST_PREFERENCE) };
    let others = ingress_qdisc.filters.iter().filter(|filter| {
        !filter.is_table && filter.handle != 0 && !stale.contains(&(filter.preference, filter.handle))
    });
    let Some(last) = others.map(|filter| filter.preference).max() else {
        return Ok(if has_own_qdisc { FIRST_PREFERENCE } else { LATE_PREFERENCE });
    };
    last.max(LATE_PREFERENCE).checked_add(1).ok_or_else(|| {
        let kind = &ingress_qdisc.kind;
        CniError::internal(format!(
            "add filter: no preference is left after the last filter of the {kind} qdisc"
        ))
    })
}

/// The attachment's IFB, if it exists; for CHECK.
pub fn existing<'l>(owner: &Attachment<'_>, ifbs: &'l Ifbs, filters: &[Filter]) -> Option<&'l Link> {
    choose_ifb(owner, ifbs, filters).ok().and_then(|(_, link)| link)
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
        let ingress_qdisc = IngressQdisc { kind: kind.to_owned(), filters: filters.to_vec() };
        Host {
            link: Link { index: 7, mtu: 1500, ..Link::default() },
            root: None,
            ingress_qdisc: Some(ingress_qdisc),
        }
    }

    fn ifb(name: String, alias: String) -> Option<Link> {
        Some(Link { index: 9, name, alias, kind: ifb::KIND.to_owned(), ..Link::default() })
    }

    fn plan(host: &Host, ifbs: &Ifbs) -> Egress {
        egress(&OWNER, host, ifbs, TBF).unwrap()
    }

    #[test]
    fn first_interface_gets_the_references_name_and_preference() {
        let bare = Host { ingress_qdisc: None, ..host("", &[]) };
        let egress = plan(&bare, &Ifbs::default());
        assert_eq!((egress.name, egress.existing, egress.mtu), (owner::shared_name(&OWNER), None, 1500));
        assert_eq!((egress.creates_ingress_qdisc, egress.preference), (true, Some(1)));
        assert_eq!(egress.alias, owner::alias(&OWNER, 7, true));
    }

    #[test]
    fn filter_comes_last_in_another_programs_qdisc() {
        for (filters, expected) in [
            (vec![], 0xc000),
            (vec![filter("bpf", 1, None)], 0xc001),
            (vec![filter("bpf", 1, None), filter("u32", 0xc000, Some(4))], 0xc001),
            (vec![filter("bpf", 0xfffe, None)], 0xffff),
        ] {
            let egress = plan(&host("clsact", &filters), &Ifbs::default());
            assert_eq!(
                (egress.creates_ingress_qdisc, egress.preference),
                (false, Some(expected)),
                "{filters:?}"
            );
            assert_eq!(egress.alias, owner::alias(&OWNER, 7, false));
        }
        let full = host("clsact", &[filter("bpf", 0xffff, None)]);
        assert!(
            super::egress(&OWNER, &full, &Ifbs::default(), TBF)
                .unwrap_err()
                .msg
                .contains("no preference is left")
        );
    }

    #[test]
    fn own_ifb_is_known_by_its_alias_or_by_a_filter() {
        let (shared, own) = (owner::shared_name(&OWNER), owner::own_name(&OWNER));
        let mine = owner::alias(&OWNER, 7, true).to_string();
        let other = owner::alias(&Attachment { ifname: "net1", ..OWNER }, 8, true).to_string();
        let redirecting = host("ingress", &[filter("u32", 1, Some(9))]);
        let empty = host("ingress", &[]);
        let name = |host: &Host, alias: &str| {
            let egress = plan(host, &Ifbs { shared: ifb(shared.clone(), alias.to_owned()), own: None });
            (egress.name, egress.existing)
        };
        assert_eq!(name(&empty, &mine), (shared.clone(), Some(9)));
        assert_eq!(name(&redirecting, ""), (shared.clone(), Some(9)));
        assert_eq!(name(&empty, ""), (own.clone(), None));
        assert_eq!(name(&empty, &other), (own.clone(), None));
        let both = Ifbs { shared: ifb(shared, other.clone()), own: ifb(own, other) };
        assert!(super::egress(&OWNER, &empty, &both, TBF).unwrap_err().msg.contains("are in use"));
    }

    #[test]
    fn existing_filter_is_kept_and_a_stale_one_replaced() {
        let ifbs = Ifbs {
            shared: ifb(owner::shared_name(&OWNER), owner::alias(&OWNER, 7, true).to_string()),
            own: None,
        };
        let redirecting = host("ingress", &[filter("u32", 1, Some(9))]);
        assert_eq!(plan(&redirecting, &ifbs).preference, None);
        let dangling = host("ingress", &[filter("u32", 1, Some(0))]);
        let egress = plan(&dangling, &Ifbs::default());
        assert_eq!((egress.stale, egress.preference), (vec![(1, 0x8000_0800)], Some(1)));
    }

    #[test]
    fn only_a_tbf_with_handle_1_is_changed() {
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
