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

use crate::packet::{Options, fields};

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
    let mut this = Reader { options, requested, own, ignored: BTreeSet::new() };
    let gateway = this.read(ROUTER, hosts).into_iter().next();
    let routes = this.routes(gateway.as_deref());
    let lease = Lease {
        address: String::new(),
        gateway,
        routes,
        nameservers: this.requested(NAME_SERVERS, hosts),
        domain: this.requested(DOMAIN, domain),
        search: this.requested(SEARCH, |content, _| search(content)),
        mtu: this.requested(MTU, mtu),
        ntp: this.requested(TIME_SERVERS, hosts),
    };
    (lease, this.ignored)
}

struct Reader<'a> {
    options: &'a Options,
    /// The codes that the configuration requests.
    requested: &'a [u8],
    /// The leased address.
    own: Ipv4Addr,
    ignored: BTreeSet<u8>,
}

impl Reader<'_> {
    /// What can be used of an option. `read` also says whether that is all of it.
    fn read<T: Default>(&mut self, code: u8, read: impl Fn(&[u8], Ipv4Addr) -> (T, bool)) -> T {
        let Some(content) = self.options.get(code) else { return T::default() };
        let (value, is_whole) = read(content, self.own);
        if !is_whole {
            self.ignored.insert(code);
        }
        value
    }

    /// [`Reader::read`], if the configuration requests the option.
    fn requested<T: Default>(&mut self, code: u8, read: impl Fn(&[u8], Ipv4Addr) -> (T, bool)) -> T {
        if self.requested.contains(&code) { self.read(code, read) } else { T::default() }
    }

    /// Option 121, or else option 33 and the default route through the first router. The kernel has one route for each
    /// destination and metric, so the first one counts.
    fn routes(&mut self, router: Option<&str>) -> Vec<Route> {
        let mut found = self.read(CLASSLESS_ROUTES, classless);
        let code = if found.is_empty() { STATIC_ROUTES } else { CLASSLESS_ROUTES };
        if found.is_empty() {
            found = self.read(STATIC_ROUTES, classful);
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
}

/// Other hosts.
fn hosts(content: &[u8], own: Ipv4Addr) -> (Vec<String>, bool) {
    let all = fields::<4>(content);
    let hosts = all.iter().copied().map(Ipv4Addr::from);
    let hosts: Vec<_> = hosts.filter(|host| is_host(*host) && *host != own).collect();
    let is_whole = !hosts.is_empty() && hosts.len() == all.len();
    (hosts.iter().map(Ipv4Addr::to_string).collect(), is_whole)
}

fn mtu(content: &[u8], _: Ipv4Addr) -> (u32, bool) {
    let mtu = fields(content).first().map(|mtu| u16::from_be_bytes(*mtu).max(LEAST_MTU).into());
    (mtu.unwrap_or(0), mtu.is_some())
}

fn domain(content: &[u8], _: Ipv4Addr) -> (String, bool) {
    let text = str::from_utf8(content).unwrap_or_default().trim_end_matches(['\0', '.']);
    if is_name(text) { (text.to_owned(), true) } else { (String::new(), false) }
}

/// The names of a search list, and whether they are all of it.
pub(crate) fn search(content: &[u8]) -> (Vec<String>, bool) {
    let (mut names, mut is_whole, mut at) = (Vec::new(), true, 0);
    while at < content.len() && names.len() < MOST_NAMES {
        let Some((name, next)) = name_at(content, at) else { return (names, false) };
        if is_name(&name) {
            names.push(name);
        } else {
            is_whole = false;
        }
        at = next;
    }
    (names, is_whole)
}

/// A destination, its prefix length, and the gateway.
type Hop = (Ipv4Addr, u8, Ipv4Addr);

/// The routes of option 121. An invalid one makes all of them doubtful: where would the next one begin?
fn classless(mut content: &[u8], _: Ipv4Addr) -> (Vec<Hop>, bool) {
    let mut routes = Vec::new();
    while let [prefix @ 0..=32, rest @ ..] = content {
        let mut octets = [0; 4];
        let len = usize::from(prefix.div_ceil(8));
        let Some((network, rest)) = rest.split_at_checked(len) else { break };
        let Some((gateway, rest)) = rest.split_first_chunk::<4>() else { break };
        octets[..len].copy_from_slice(network);
        routes.push((truncated(octets.into(), *prefix), *prefix, Ipv4Addr::from(*gateway)));
        content = rest;
    }
    if content.is_empty() { (routes, true) } else { (Vec::new(), false) }
}

fn classful(content: &[u8], _: Ipv4Addr) -> (Vec<Hop>, bool) {
    let all = fields::<8>(content);
    let route = |[a, b, c, d, gateway @ ..]: [u8; 8]| {
        let prefix = match a {
            0 | 224.. => return None,
            1..128 => 8,
            128..192 => 16,
            192.. => 24,
        };
        Some((truncated([a, b, c, d].into(), prefix), prefix, Ipv4Addr::from(gateway)))
    };
    let routes: Vec<_> = all.iter().copied().filter_map(route).collect();
    let is_whole = !all.is_empty() && routes.len() == all.len();
    (routes, is_whole)
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
