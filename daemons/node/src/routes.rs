//! The routes to the pods of other nodes.

use std::collections::BTreeMap;
use std::io;

use ferrule_kernel::netlink::message::Message;
use ferrule_kernel::netlink::route;
use ferrule_kernel::netlink::{Error, Socket};
use ipnetwork::IpNetwork;
use nix::errno::Errno;

use crate::kernel::{Local, PROTOCOL, Route, Watch, metric};
use crate::plan::Way;
use crate::{vxlan, wireguard};

/// A change of one route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Change {
    /// No route has this destination and metric.
    Add(Route),
    /// Another route has them: ours with another way, or one that has replaced ours.
    Replace(Route),
    /// A route of ours that is not wanted.
    Remove(Route),
}

/// The result of [`sync`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Outcome {
    pub requests: usize,
    /// Why the kernel refused a route. The others are there.
    pub failures: BTreeMap<IpNetwork, String>,
    /// Why it takes no routes from this program, whatever they are.
    pub fault: Option<String>,
    /// The number of routes whose device does not exist.
    pub without_device: usize,
}

/// Makes the routes as wanted: one request for each that is different.
///
/// # Errors
/// The subscription broke.
pub fn sync(wanted: &BTreeMap<IpNetwork, Way>, pods: &[IpNetwork], watch: &mut Watch) -> io::Result<Outcome> {
    let (routes, without_device) = resolve(wanted, watch.local());
    let changes = diff(&routes, watch.local());
    let mut outcome = Outcome { requests: changes.len(), without_device, ..Outcome::default() };
    let answers = watch.socket().requests(changes.iter().map(request).collect());
    for (change, answer) in changes.into_iter().zip(answers) {
        let failure = answer.err().filter(|error| !is_done(&change, error));
        match (change, failure) {
            (Change::Add(route) | Change::Replace(route) | Change::Remove(route), Some(error)) => {
                // The kernel's routes are unknown now.
                watch.distrust();
                if [Errno::EPERM, Errno::ENOMEM, Errno::ENOBUFS].contains(&error.errno) {
                    outcome.fault = Some(format!("{}: {error}", route.dst));
                    continue;
                }
                outcome.failures.insert(route.dst, error.to_string());
            }
            (Change::Add(route) | Change::Replace(route), None) => watch.note(route.dst, Some(route)),
            (Change::Remove(route), None) => watch.note(route.dst, None),
        }
    }
    // The kernel's messages about these requests are there already, and say nothing new.
    watch.refresh(pods)?;
    Ok(outcome)
}

/// Removes all our routes. Returns how many there were.
///
/// # Errors
/// The kernel refuses a list or a request.
pub fn remove_all(socket: &mut Socket) -> Result<usize, Error> {
    let changes = diff(&BTreeMap::new(), &Local::read(socket)?);
    for (change, answer) in changes.iter().zip(socket.requests(changes.iter().map(request).collect())) {
        if let Err(error) = answer
            && !is_done(change, &error)
        {
            return Err(error);
        }
    }
    Ok(changes.len())
}

/// The routes of the ways, as the kernel will describe them, and the number of ways whose device is missing.
fn resolve(wanted: &BTreeMap<IpNetwork, Way>, local: &Local) -> (BTreeMap<IpNetwork, Route>, usize) {
    let index = |name: &str| {
        let mut links = local.links.iter().filter(|(_, link)| link.name == name && link.is_up);
        links.next().map(|(index, _)| *index)
    };
    let (vxlan, wireguard) = (index(vxlan::LINK), index(wireguard::LINK));
    let mut routes = BTreeMap::new();
    for (dst, way) in wanted {
        let (gateway, link) = match *way {
            Way::Direct { via, link } => (Some(via), Some(link)),
            Way::Vxlan(inner) => (Some(inner), vxlan),
            Way::WireGuard => (None, wireguard),
        };
        let Some(link) = link else { continue };
        let (gws, links) = (gateway.into_iter().collect(), vec![link]);
        let (dst, priority) = (*dst, metric(*dst));
        let route =
            Route { dst, priority, protocol: PROTOCOL, gws, links, is_unicast: true, is_tuned: false };
        routes.insert(dst, route);
    }
    let missing = wanted.len() - routes.len();
    (routes, missing)
}

/// The changes that lead to the wanted routes.
fn diff(wanted: &BTreeMap<IpNetwork, Route>, local: &Local) -> Vec<Change> {
    let mut changes = Vec::new();
    for (dst, route) in wanted {
        let with_this_metric: Vec<&Route> =
            local.to(*dst).filter(|found| found.priority == route.priority).collect();
        match with_this_metric.as_slice() {
            [] => changes.push(Change::Add(route.clone())),
            [found] if *found == route => {}
            found => {
                // Another one may come first (`ip route prepend`). The kernel replaces the first one, and refuses that while it has
                // the new one behind it.
                if found.contains(&route) {
                    changes.push(Change::Remove(route.clone()));
                }
                changes.push(Change::Replace(route.clone()));
            }
        }
    }
    // Last, so that a node always has a way.
    let is_unwanted =
        |route: &&Route| wanted.get(&route.dst).is_none_or(|wanted| wanted.priority != route.priority);
    let ours = local.routes.iter().filter(|route| route.is_ours());
    changes.extend(ours.filter(is_unwanted).cloned().map(Change::Remove));
    changes
}

fn request(change: &Change) -> Message {
    let (make, route): (fn(u32, &route::Route) -> Message, &Route) = match change {
        Change::Add(route) => (route::add_new, route),
        Change::Replace(route) => (route::replace, route),
        Change::Remove(route) => (route::delete, route),
    };
    let (gw, oif) = (route.gws.first().copied(), route.links.first().copied().unwrap_or_default());
    make(
        oif,
        &route::Route {
            dst: route.dst,
            gw,
            src: None,
            // The inner address of a VXLAN peer is on no network of the device.
            onlink: gw.is_some_and(|gw| route.dst.contains(gw)),
            mtu: 0,
            advmss: 0,
            priority: route.priority,
            table: None,
            scope: None,
            protocol: PROTOCOL,
        },
    )
}

/// Whether the error says that the route to remove was gone already.
fn is_done(change: &Change, error: &Error) -> bool {
    matches!(change, Change::Remove(_)) && [Errno::ESRCH, Errno::ENODEV].contains(&error.errno)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn route(dst: &str, gw: &str, protocol: u8) -> Route {
        let (dst, gws) = (dst.parse().unwrap(), vec![gw.parse().unwrap()]);
        Route { dst, priority: 0, protocol, gws, links: vec![2], is_unicast: true, is_tuned: false }
    }

    #[test]
    fn only_differences_are_changed_and_only_our_routes_removed() {
        let mut local = Local::default();
        local.routes.extend([
            route("10.0.1.0/24", "192.0.2.1", PROTOCOL),
            route("10.0.2.0/24", "192.0.2.9", PROTOCOL),
            route("10.0.3.0/24", "192.0.2.9", 3),
            route("10.0.5.0/24", "192.0.2.5", PROTOCOL),
            route("10.0.6.0/24", "192.0.2.6", 3),
            Route { priority: 5, ..route("10.0.1.0/24", "192.0.2.1", PROTOCOL) },
            route("10.0.7.0/24", "192.0.2.7", PROTOCOL),
            route("10.0.7.0/24", "192.0.2.9", 3),
            Route { is_tuned: true, ..route("10.0.8.0/24", "192.0.2.8", PROTOCOL) },
        ]);
        let wanted = ["1", "2", "3", "4", "7", "8"]
            .map(|n| route(&format!("10.0.{n}.0/24"), &format!("192.0.2.{n}"), PROTOCOL));
        let wanted: BTreeMap<_, _> = wanted.into_iter().map(|route| (route.dst, route)).collect();
        let of = |n: u8| route(&format!("10.0.{n}.0/24"), &format!("192.0.2.{n}"), PROTOCOL);
        assert_eq!(
            diff(&wanted, &local),
            [
                Change::Replace(of(2)),
                Change::Replace(of(3)),
                Change::Add(of(4)),
                Change::Remove(of(7)),
                Change::Replace(of(7)),
                Change::Replace(of(8)),
                Change::Remove(Route { priority: 5, ..of(1) }),
                Change::Remove(of(5)),
            ]
        );
    }

    #[test]
    fn a_way_through_a_device_waits_for_it() {
        let (dst, inner) = ("fd00:2::/64".parse().unwrap(), "fd00:2::".parse().unwrap());
        let wanted = BTreeMap::from([(dst, Way::Vxlan(inner))]);
        let mut local = Local::default();
        assert_eq!(resolve(&wanted, &local), (BTreeMap::new(), 1));
        let link =
            crate::kernel::Link { name: vxlan::LINK.into(), mtu: 1450, is_up: true, ..Default::default() };
        local.links.insert(7, link);
        let (routes, missing) = resolve(&wanted, &local);
        assert_eq!(
            (routes[&dst].priority, routes[&dst].links.as_slice(), missing),
            (1024, [7].as_slice(), 0)
        );
    }
}
