//! Which messages of the kernel mean that an attachment may be damaged. Asks neither the kernel nor the clock.
//!
//! While pods come and go, the kernel sends dozens of messages for each. Those of nf_tables name the process, so the changes of
//! plugins are known. Those of links do not: a loss in a link that is deleted shortly after was the removal of a pod. A deleted
//! veth cannot be made again, so its deletion is ignored.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use ferrule_bandwidth::owner::Alias;
use ferrule_kernel::netlink::bridge::PortSettings;
use ferrule_kernel::netlink::{Link, Mac, notice};
use ferrule_kernel::nftables::notice as ruleset;
use ferrule_kernel::notices::Notice;

/// How long a link must outlive a loss. DEL removes limits before the veth: the plugins run one after the other.
pub const SETTLE: Duration = Duration::from_millis(300);

/// Names of tables that `iptables` makes. That of `macspoofchk` is `nat`, too.
const TABLES: [&str; 4] = ["filter", "mangle", "nat", "raw"];
/// The chains that have the jumps to our chains in such a table. `iptables -F` empties these too.
const CHAINS: [&str; 5] = ["FORWARD", "INPUT", "OUTPUT", "POSTROUTING", "PREROUTING"];
/// The table of firewalld, which has new zones after a reload.
const FIREWALLD: &str = "firewalld";
/// The table of `policy`. The daemon deletes its elements when it has decided, and without the table nothing is announced.
const UNDECIDED: &str = ferrule_policy_kit::table::TABLE.name;
/// The link that kube-proxy makes in IPVS mode, which changes the form of host ports.
const IPVS: &str = "kube-ipvs0";
/// The kinds of links on the host that plugins make.
const KINDS: [&str; 4] = ["bridge", "ifb", "netkit", "veth"];
/// The kinds of qdiscs and filters that `bandwidth` makes.
const SHAPING: [&str; 4] = ["clsact", "ingress", "tbf", "u32"];

/// What the messages so far say.
#[derive(Debug, Default)]
pub struct Damage {
    /// The names of processes whose changes of the ruleset are no damage.
    trusted: Vec<&'static str>,
    links: HashMap<u32, Known>,
    /// Links that have lost something, and when the loss counts unless the link is gone by then.
    suspects: HashMap<u32, Instant>,
    /// Whether the transaction whose messages are coming has removed something of ours.
    is_ruleset_hit: bool,
}

/// The state of a link.
#[derive(Debug, Default)]
struct Known {
    kind: String,
    mac: Mac,
    is_up: bool,
    master: Option<u32>,
    port: PortSettings,
    /// For an IFB: the index of the veth that it limits.
    limits: Option<u32>,
}

impl Damage {
    /// With the names of the plugins.
    pub fn new(plugins: impl Iterator<Item = &'static str>) -> Self {
        Damage { trusted: plugins.chain(["ferrule"]).collect(), ..Damage::default() }
    }

    /// Starts again from all links of the node.
    pub fn load(&mut self, links: &[Link]) {
        self.links = links.iter().filter_map(|link| Some((link.index, Known::of(link)?))).collect();
    }

    /// Takes a message. Returns whether it certainly means damage.
    pub fn take(&mut self, notice: &Notice, now: Instant) -> bool {
        match notice {
            Notice::Lost => true,
            Notice::Ruleset(notice) => self.take_ruleset(notice),
            Notice::Link(notice) => self.take_link(notice, now),
        }
    }

    fn take_ruleset(&mut self, notice: &ruleset::Notice) -> bool {
        let is_ours = |table: &str| table.starts_with("cni");
        let is_known = |table: &str| is_ours(table) || TABLES.contains(&table);
        self.is_ruleset_hit |= match notice {
            ruleset::Notice::Generation { process } => {
                let is_hit = std::mem::take(&mut self.is_ruleset_hit);
                return is_hit && !self.trusted.contains(&process.as_str());
            }
            ruleset::Notice::TableMade(table) => table == FIREWALLD,
            ruleset::Notice::TableGone(table) => is_known(table) || table == FIREWALLD,
            ruleset::Notice::RuleGone { table, chain } => {
                is_ours(table) || table == UNDECIDED || is_known(table) && CHAINS.contains(&chain.as_str())
            }
            ruleset::Notice::ElementGone(table) => is_ours(table),
        };
        false
    }

    fn take_link(&mut self, notice: &notice::Notice, now: Instant) -> bool {
        match notice {
            notice::Notice::Link(link) => {
                let Some(known) = Known::of(link) else { return false };
                let before = self.links.insert(link.index, known);
                if before.as_ref().is_some_and(|before| before.lost_in(&self.links[&link.index])) {
                    self.suspect(link.index, now);
                }
                return before.is_none() && link.name == IPVS;
            }
            notice::Notice::Port(index, settings) => {
                let Some(known) = self.links.get_mut(index) else { return false };
                let before = std::mem::replace(&mut known.port, *settings);
                if is_less(before, *settings) {
                    self.suspect(*index, now);
                }
            }
            notice::Notice::LinkGone(index) => {
                self.suspects.remove(index);
                let Some(gone) = self.links.remove(index) else { return false };
                if let Some(veth) = gone.limits {
                    self.suspect(veth, now);
                }
                return gone.kind == "bridge";
            }
            notice::Notice::AddressGone(index) | notice::Notice::RouteGone(index) => {
                self.suspect(*index, now)
            }
            notice::Notice::ShapingGone(index, kind) => {
                if SHAPING.contains(&kind.as_str()) {
                    self.suspect(*index, now);
                }
            }
            notice::Notice::ForwardingOff => return true,
        }
        false
    }

    fn suspect(&mut self, link: u32, now: Instant) {
        if self.links.contains_key(&link) {
            self.suspects.entry(link).or_insert(now + SETTLE);
        }
    }

    /// When the next loss counts.
    pub fn next(&self) -> Option<Instant> {
        self.suspects.values().min().copied()
    }

    /// Whether the loss of a link counts from now on.
    pub fn settle(&mut self, now: Instant) -> bool {
        let before = self.suspects.len();
        self.suspects.retain(|_, at| *at > now);
        self.suspects.len() < before
    }
}

impl Known {
    /// `None` for a link that no plugin makes and that changes nothing.
    fn of(link: &Link) -> Option<Known> {
        (KINDS.contains(&link.kind.as_str()) || link.name == IPVS).then(|| Known {
            kind: link.kind.clone(),
            mac: link.mac,
            is_up: link.is_up(),
            master: link.master,
            port: link.port,
            limits: Alias::parse(&link.alias).filter(|_| link.kind == "ifb").map(|alias| alias.veth),
        })
    }

    /// Whether the link has less now. The MAC address of a bridge may follow its ports.
    fn lost_in(&self, now: &Known) -> bool {
        self.is_up && !now.is_up
            || self.mac != now.mac && self.kind != "bridge"
            || self.master.is_some() && self.master != now.master
            || is_less(self.port, now.port)
    }
}

/// Whether a port has lost hairpin mode or isolation.
fn is_less(before: PortSettings, now: PortSettings) -> bool {
    let lost = |before, now| before == Some(true) && now == Some(false);
    lost(before.hairpin, now.hairpin) || lost(before.isolated, now.isolated)
}

#[cfg(test)]
mod tests {
    use ferrule_kernel::netlink::link::IFF_UP;

    use super::*;

    fn link(index: u32, kind: &str, master: Option<u32>) -> Link {
        Link {
            index,
            name: format!("l{index}"),
            kind: kind.to_owned(),
            flags: IFF_UP,
            master,
            ..Link::default()
        }
    }

    /// A bridge with the index 1, its ports 2 and 3, the IFB 4 of the port 2, and a NIC.
    fn node() -> Damage {
        let mut damage = Damage::new(["bridge", "portmap"].into_iter());
        let alias = "bandwidth network=pods container=c1 ifname=eth0 veth=2 hook=made".to_owned();
        let ifb = Link { alias, ..link(4, "ifb", None) };
        let port = Link { port: settings(true), ..link(2, "veth", Some(1)) };
        damage.load(&[link(1, "bridge", None), port, link(3, "veth", Some(1)), ifb, link(5, "", None)]);
        damage
    }

    fn settings(hairpin: bool) -> PortSettings {
        PortSettings { hairpin: Some(hairpin), isolated: None }
    }

    fn new(link: Link) -> Notice {
        Notice::Link(notice::Notice::Link(Box::new(link)))
    }

    fn gone(index: u32) -> Notice {
        Notice::Link(notice::Notice::LinkGone(index))
    }

    /// Whether these messages are damage, at once or when all links have settled.
    fn is_damage(messages: &[Notice]) -> bool {
        let (mut damage, now) = (node(), Instant::now());
        let mut is_certain = false;
        for message in messages {
            is_certain |= damage.take(message, now);
        }
        assert!(damage.next().is_none_or(|next| next == now + SETTLE));
        assert!(!damage.settle(now + SETTLE / 2));
        is_certain || damage.settle(now + SETTLE)
    }

    #[test]
    fn losses_of_links_that_stay() {
        let down = |index, kind, master| new(Link { flags: 0, ..link(index, kind, master) });
        for damage in [
            down(1, "bridge", None),
            down(2, "veth", Some(1)),
            new(link(2, "veth", None)),
            new(link(2, "veth", Some(9))),
            new(Link { port: settings(false), ..link(2, "veth", Some(1)) }),
            Notice::Link(notice::Notice::Port(2, settings(false))),
            new(Link { mac: Mac([2; 6]), ..link(3, "veth", Some(1)) }),
            Notice::Link(notice::Notice::AddressGone(1)),
            Notice::Link(notice::Notice::RouteGone(3)),
            Notice::Link(notice::Notice::ShapingGone(2, "ingress".to_owned())),
            Notice::Link(notice::Notice::ShapingGone(4, "tbf".to_owned())),
            Notice::Link(notice::Notice::ForwardingOff),
            new(Link { name: "kube-ipvs0".to_owned(), ..link(9, "dummy", None) }),
            gone(1),
            gone(4),
            Notice::Lost,
        ] {
            assert!(is_damage(std::slice::from_ref(&damage)), "{damage:?}");
        }
    }

    /// A pod that comes: the host's end of its pair becomes a port. A pod that goes: IFB, qdisc, then the pair.
    #[test]
    fn pods_that_come_and_go() {
        let down = |index, master| Link { flags: 0, ..link(index, "veth", master) };
        let comes = [new(down(7, None)), new(down(7, Some(1))), new(link(7, "veth", Some(1)))];
        assert!(!is_damage(&comes));
        let hairpin = [true, false].map(|hairpin| Notice::Link(notice::Notice::Port(3, settings(hairpin))));
        assert!(!is_damage(&hairpin[..1]) && is_damage(&hairpin));
        let shaping = Notice::Link(notice::Notice::ShapingGone(2, "ingress".to_owned()));
        let address = Notice::Link(notice::Notice::AddressGone(2));
        let route = Notice::Link(notice::Notice::RouteGone(2));
        assert!(!is_damage(&[
            gone(4),
            shaping,
            address,
            route,
            new(down(2, Some(1))),
            new(down(2, None)),
            gone(2)
        ]));
        // The NIC, and the default qdisc of a link.
        let nic = new(Link { flags: 0, ..link(5, "", None) });
        let default = Notice::Link(notice::Notice::ShapingGone(2, "fq_codel".to_owned()));
        assert!(!is_damage(&[nic, gone(5), Notice::Link(notice::Notice::AddressGone(5)), default]));
    }

    #[test]
    fn the_ruleset() {
        use ruleset::Notice::{ElementGone, Generation, RuleGone, TableGone, TableMade};
        let is_damage = |changes: Vec<ruleset::Notice>, process: &str| {
            let generation = Generation { process: process.to_owned() };
            is_damage(&changes.into_iter().chain([generation]).map(Notice::Ruleset).collect::<Vec<_>>())
        };
        let rule =
            |table: &str, chain: &str| vec![RuleGone { table: table.to_owned(), chain: chain.to_owned() }];
        let name = str::to_owned;
        for process in ["nft", "iptables", "(weird)", ""] {
            assert!(is_damage(vec![TableGone(name("cni_portmap"))], process));
            assert!(is_damage(vec![TableGone(name("other")), TableGone(name("filter"))], process));
            assert!(is_damage(vec![ElementGone(name("cni_firewall"))], process));
            assert!(is_damage(rule("cni_plugins_masquerade", "masq_checks"), process));
            assert!(is_damage(rule("nat", "POSTROUTING"), process));
            assert!(is_damage(vec![TableMade(name("firewalld"))], process));
            // Changes of other programs.
            assert!(!is_damage(vec![], process));
            assert!(!is_damage(vec![TableMade(name("cni_portmap")), TableGone(name("kube-proxy"))], process));
            assert!(!is_damage(rule("nat", "KUBE-SERVICES"), process));
            assert!(!is_damage(vec![ElementGone(name("filter"))], process));
        }
        for process in ["portmap", "bridge", "ferrule"] {
            assert!(!is_damage(vec![ElementGone(name("cni_portmap"))], process));
        }
        // A transaction ends with its generation.
        let mut damage = node();
        let now = Instant::now();
        let mut take = |notice| damage.take(&Notice::Ruleset(notice), now);
        assert!(!take(TableGone(name("nat"))));
        assert!(take(Generation { process: name("nft") }) && !take(Generation { process: name("nft") }));
    }

    #[test]
    fn lost_messages_start_again_from_all_links() {
        let mut damage = node();
        damage.load(&[link(8, "bridge", None)]);
        let now = Instant::now();
        assert!(!damage.take(&gone(1), now) && damage.take(&gone(8), now));
    }
}
