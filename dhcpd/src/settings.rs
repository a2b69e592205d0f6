//! What the container gets beside its address. Pure.
//!
//! A server may send anything, and the runtime writes some of it into `resolv.conf`. So only values that can be used remain:
//! the rest of the options is ignored, as if the server had not sent it.
//!
//! # References
//! RFC 2132 (options), RFC 3397 (119), RFC 3442 (121).

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use ferrule_dhcp::wire::{Lease, Route};

use crate::packet::Options;

const ROUTER: u8 = 3;
const NAME_SERVERS: u8 = 6;
const DOMAIN: u8 = 15;
const MTU: u8 = 26;
const STATIC_ROUTES: u8 = 33;
const TIME_SERVERS: u8 = 42;
const SEARCH: u8 = 119;
const CLASSLESS_ROUTES: u8 = 121;

/// The least MTU of IPv4 (RFC 2132, section 5.1).
const LEAST_MTU: u16 = 68;
/// The most names of a search list.
const MOST_NAMES: usize = 64;
/// The longest domain name.
const LONGEST_NAME: usize = 253;

/// Whether a host can have this address.
pub(crate) fn is_host(address: Ipv4Addr) -> bool {
    !matches!(address.octets(), [0 | 127 | 224..=239, ..] | [255, 255, 255, 255])
}

/// The settings, and the codes of options with something that cannot be used. Routes and the gateway count even if the server
/// sends them unasked, as in the reference; everything else only if the configuration requests it.
pub(crate) fn settings(options: &Options, requested: &[u8], own: Ipv4Addr) -> (Lease, BTreeSet<u8>) {
    let mut this = Reader { options, own, ignored: BTreeSet::new() };
    let asked = |code: u8| requested.contains(&code) && options.get(code).is_some();
    let mut lease =
        Lease { gateway: this.hosts(ROUTER).first().map(Ipv4Addr::to_string), ..Lease::default() };
    lease.routes = this.routes(lease.gateway.as_deref());
    let texts = |list: Vec<Ipv4Addr>| list.iter().map(Ipv4Addr::to_string).collect();
    if asked(NAME_SERVERS) {
        lease.nameservers = texts(this.hosts(NAME_SERVERS));
    }
    if asked(DOMAIN) {
        lease.domain = this.domain();
    }
    if asked(MTU) {
        lease.mtu = this.mtu();
    }
    if asked(TIME_SERVERS) {
        lease.ntp = texts(this.hosts(TIME_SERVERS));
    }
    if asked(SEARCH) {
        lease.search = this.search();
    }
    (lease, this.ignored)
}

struct Reader<'a> {
    options: &'a Options,
    /// The leased address.
    own: Ipv4Addr,
    ignored: BTreeSet<u8>,
}

impl Reader<'_> {
    /// Other hosts.
    fn hosts(&mut self, code: u8) -> Vec<Ipv4Addr> {
        if self.options.get(code).is_none() {
            return Vec::new();
        }
        let fields = self.options.fields::<4>(code).unwrap_or_default();
        let all = fields.iter().copied().map(Ipv4Addr::from);
        let hosts: Vec<_> = all.filter(|address| is_host(*address) && *address != self.own).collect();
        if hosts.is_empty() || hosts.len() < fields.len() {
            self.ignored.insert(code);
        }
        hosts
    }

    fn mtu(&mut self) -> u32 {
        match self.options.first(MTU).map(u16::from_be_bytes) {
            Some(mtu) => mtu.max(LEAST_MTU).into(),
            None => {
                self.ignored.insert(MTU);
                0
            }
        }
    }

    fn domain(&mut self) -> String {
        let content = self.options.get(DOMAIN).unwrap_or_default();
        let text = str::from_utf8(content).unwrap_or_default().trim_end_matches(['\0', '.']);
        if !is_name(text) {
            self.ignored.insert(DOMAIN);
            return String::new();
        }
        text.to_owned()
    }

    fn search(&mut self) -> Vec<String> {
        let content = self.options.get(SEARCH).unwrap_or_default();
        let (mut names, mut at) = (Vec::new(), 0);
        while at < content.len() && names.len() < MOST_NAMES {
            let Some((name, next)) = name_at(content, at) else {
                self.ignored.insert(SEARCH);
                break;
            };
            if is_name(&name) {
                names.push(name);
            } else {
                self.ignored.insert(SEARCH);
            }
            at = next;
        }
        names
    }

    /// Option 121, or else option 33 and the default route through the first router. The kernel has one route for each
    /// destination and metric, so the first one counts.
    fn routes(&mut self, router: Option<&str>) -> Vec<Route> {
        let mut found = self.classless();
        let code = if found.is_empty() { STATIC_ROUTES } else { CLASSLESS_ROUTES };
        if found.is_empty() {
            found = self.classful();
        }
        let mut seen = BTreeSet::new();
        let mut routes = Vec::new();
        for (destination, prefix, gateway) in found {
            let on_link = code == CLASSLESS_ROUTES && gateway.is_unspecified();
            let is_usable =
                (on_link || is_host(gateway)) && gateway != self.own && !destination.is_loopback();
            if is_usable && seen.insert((destination, prefix)) {
                routes.push(Route { dst: format!("{destination}/{prefix}"), gw: gateway.to_string() });
            } else {
                self.ignored.insert(code);
            }
        }
        if code == STATIC_ROUTES {
            let default = |gw: &str| Route { dst: "0.0.0.0/0".to_owned(), gw: gw.to_owned() };
            routes.extend(router.map(default));
        }
        routes
    }

    /// The routes of option 121. An invalid one makes all of them doubtful: where would the next one begin?
    fn classless(&mut self) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
        let mut rest = self.options.get(CLASSLESS_ROUTES).unwrap_or_default();
        let mut routes = Vec::new();
        while let [prefix, tail @ ..] = rest {
            let len = usize::from(prefix.div_ceil(8));
            let split = tail.split_at_checked(len).and_then(|(network, tail)| {
                let (gateway, tail) = tail.split_first_chunk::<4>()?;
                (len <= 4).then_some((network, gateway, tail))
            });
            let Some((network, gateway, tail)) = split.filter(|_| *prefix <= 32) else {
                self.ignored.insert(CLASSLESS_ROUTES);
                return Vec::new();
            };
            let mut octets = [0; 4];
            octets[..len].copy_from_slice(network);
            routes.push((truncated(octets.into(), *prefix), *prefix, Ipv4Addr::from(*gateway)));
            rest = tail;
        }
        routes
    }

    fn classful(&mut self) -> Vec<(Ipv4Addr, u8, Ipv4Addr)> {
        if self.options.get(STATIC_ROUTES).is_none() {
            return Vec::new();
        }
        let Some(pairs) = self.options.fields::<8>(STATIC_ROUTES) else {
            self.ignored.insert(STATIC_ROUTES);
            return Vec::new();
        };
        let mut routes = Vec::new();
        for [a, b, c, d, gateway @ ..] in pairs.iter().copied() {
            let prefix = match a {
                0 | 224.. => {
                    self.ignored.insert(STATIC_ROUTES);
                    continue;
                }
                1..128 => 8,
                128..192 => 16,
                192.. => 24,
            };
            routes.push((truncated([a, b, c, d].into(), prefix), prefix, gateway.into()));
        }
        routes
    }
}

fn truncated(address: Ipv4Addr, prefix: u8) -> Ipv4Addr {
    let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
    Ipv4Addr::from_bits(address.to_bits() & mask)
}

/// Whether it is a domain name of letters, digits, `-` and `_`: nothing else may get into `resolv.conf`.
fn is_name(text: &str) -> bool {
    let is_label = |label: &str| {
        (1..=63).contains(&label.len())
            && label.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
    };
    text.len() <= LONGEST_NAME && text.split('.').all(is_label)
}

/// The domain name at this offset, and where the next one begins (RFC 1035, section 4.1.4). A pointer must lead backwards, so
/// this ends.
fn name_at(content: &[u8], mut at: usize) -> Option<(String, usize)> {
    let (mut name, mut next, mut limit) = (String::new(), None, at);
    loop {
        let [first, rest @ ..] = content.get(at..)? else { return None };
        match first {
            0 => return Some((name, next.unwrap_or(at + 1))),
            1..=63 => {
                let label = rest.get(..usize::from(*first))?;
                if !name.is_empty() {
                    name.push('.');
                }
                // A byte that is no letter is refused later.
                name.extend(label.iter().map(|byte| char::from(*byte)));
                if name.len() > 2 * LONGEST_NAME {
                    return None;
                }
                at += 1 + label.len();
            }
            0xc0.. => {
                let target = usize::from(first & 0x3f) << 8 | usize::from(*rest.first()?);
                next.get_or_insert(at + 2);
                if target >= limit {
                    return None;
                }
                (at, limit) = (target, target);
            }
            _ => return None,
        }
    }
}

#[cfg(test)]
mod tests;
