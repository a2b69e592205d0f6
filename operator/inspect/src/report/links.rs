//! Links, addresses and routes of the node and of the pods, by netlink.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use cni_common::netns::Netns;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::budget::{self, Budget};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kit::{netns, socket};
use itertools::Itertools as _;

use super::collect::{File, Found};
use super::known;
use crate::cache::Cache;
use crate::line::clean;
use crate::node::Roots;
use crate::sight::Sight;

/// The most routes of one namespace in the report.
const MOST: usize = 200;
/// How long all pods together may take.
const PODS: Duration = Duration::from_secs(4);
/// What one of them may take.
const POD: Budget = Budget { time: Duration::from_millis(500), bytes: 2 << 20 };
/// The local routing table.
const LOCAL_TABLE: u32 = 255;

pub(super) fn of_node() -> Found {
    let listed = socket::route().and_then(|mut socket| list(&mut socket, true));
    let mut found = listed.map_or_else(Found::failed, |text| Found::file(File::text("links-node.txt", text)));
    found.names.push(known::host());
    found
}

/// The namespaces of the cached results.
pub(super) fn of_pods(roots: &Roots) -> Found {
    let sight = Sight::of_check(roots.init, &roots.results);
    let cache = Cache::read(&roots.results, &sight);
    let names = known::names_of(&cache);
    let mut namespaces = BTreeMap::new();
    for entry in &cache.entries {
        let of_pod = namespaces.entry(entry.netns.as_str()).or_insert_with(Vec::new);
        of_pod.push(format!("{} {}", entry.pod.as_deref().unwrap_or_default(), entry.owner));
    }
    let (mut text, mut found) = (String::new(), Found { names, ..Found::default() });
    let end = Instant::now() + PODS;
    for (path, owners) in namespaces {
        if Instant::now() > end {
            found.failures.push("not all pods were listed: there was no time".to_owned());
            break;
        }
        let _ = writeln!(text, "{}", clean(&format!("== {path}: {}", owners.iter().join("; "))));
        let listed =
            Netns::open(path).map_err(|error| CniError::internal(error.to_string())).and_then(|namespace| {
                let list = || list(&mut socket::route()?.of_container(), false);
                netns::enter(&namespace, || budget::within(&mut POD.clone(), list))
            });
        match listed {
            Ok(listed) => text += &listed,
            Err(error) => text += &format!("{error}\n"),
        }
    }
    found.files.push(File::text("links-pods.txt", text));
    found
}

fn list(socket: &mut Socket, is_node: bool) -> Result<String, CniError> {
    let mut text = String::new();
    let links = socket.links_with_counters().context(|| "list the links".to_owned())?;
    let names: BTreeMap<u32, String> =
        links.iter().map(|(link, _)| (link.index, link.name.clone())).collect();
    let named = |index: u32| names.get(&index).cloned().unwrap_or_else(|| index.to_string());
    let addresses = socket.all_addresses().context(|| "list the addresses".to_owned())?;
    for (link, counters) in &links {
        let state = if link.is_up() { "up" } else { "down" };
        let kind = if link.kind.is_empty() { "device" } else { &link.kind };
        let master = link.master.map(|index| format!(" master {}", named(index))).unwrap_or_default();
        let peer = link.peer.map(|index| format!(" peer {index}")).unwrap_or_default();
        let _ = write!(
            text,
            "{}: {} {kind} {state} oper {} mtu {}",
            link.index, link.name, link.operstate, link.mtu
        );
        let _ = write!(text, " mac {}{master}{peer}", link.mac);
        if let Some(counters) = counters {
            let _ = write!(text, " rx {} B tx {} B", counters.rx_bytes, counters.tx_bytes);
            let _ = write!(text, " dropped {}/{}", counters.rx_dropped, counters.tx_dropped);
        }
        text.push('\n');
        for (_, address) in addresses.iter().filter(|(index, _)| *index == link.index) {
            let _ =
                writeln!(text, "    {} scope {} flags {:#x}", address.network, address.scope, address.flags);
        }
    }
    for rule in socket.rules().context(|| "list the rules".to_owned())? {
        let from = rule.src.map_or_else(|| "all".to_owned(), |src| src.to_string());
        let _ = writeln!(
            text,
            "rule {:?} {} from {from} table {}",
            rule.family,
            rule.priority.unwrap_or(0),
            rule.table
        );
    }
    if !is_node {
        return routes_of(socket, &named).map(|routes| text + &routes);
    }
    // A node may have all the routes of the internet.
    for family in IpFamily::ALL {
        let mut count = 0;
        let mut visit = |route: &_| {
            count += 1;
            if count <= MOST {
                text += &line(route, &named);
            }
        };
        let listed = socket.visit_routes(family, MAIN_TABLE, None, &mut visit);
        listed.context(|| "list the routes".to_owned())?;
        if count > MOST {
            let _ = writeln!(text, "{} more routes", count - MOST);
        }
    }
    Ok(text)
}

/// The routes of all tables but the local one.
fn routes_of(socket: &mut Socket, named: &dyn Fn(u32) -> String) -> Result<String, CniError> {
    let mut routes = socket.stored_routes().context(|| "list the routes".to_owned())?;
    routes.retain(|route| route.table != LOCAL_TABLE);
    let mut text: String = routes.iter().take(MOST).map(|route| line(route, named)).collect();
    if routes.len() > MOST {
        let _ = writeln!(text, "{} more routes", routes.len() - MOST);
    }
    Ok(text)
}

fn line(route: &ferrule_kernel::netlink::stored_route::StoredRoute, named: &dyn Fn(u32) -> String) -> String {
    let via = route.gws.iter().map(|gw| format!(" via {gw}")).join("");
    let dev = route.links.iter().map(|link| format!(" dev {}", named(*link))).join("");
    let src = route.src.map(|src| format!(" src {src}")).unwrap_or_default();
    let special = if route.is_unicast { "" } else { " not unicast" };
    format!(
        "route {}{via}{dev}{src} table {} metric {} proto {} scope {}{special}\n",
        route.dst, route.table, route.priority, route.protocol, route.scope
    )
}
