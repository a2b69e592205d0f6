//! The sysctls by which this node forwards the packets of its pods.
//!
//! The kernel takes the routes from router advertisements away from a node that forwards IPv6, unless `accept_ra` of the link is 2. So
//! that value comes first. The former values are in a file that outlives a reboot: plugins turn forwarding on before the daemon runs.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{self, ErrorKind};
use std::net::IpAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::netlink::stored_route::BY_ROUTER;
use ferrule_kernel::{file, sysctl};
use ipnetwork::IpNetwork;

use crate::kernel::Local;

const FOLDER: &str = "/var/lib/ferrule";
const RECORD: &str = "forwarding.json";
const PENDING: &str = "forwarding.json.new";
const IPV6: &str = "net/ipv6/conf/all/forwarding";

/// The former values of the sysctls that the daemon has changed, by name.
type Former = BTreeMap<String, String>;

/// Turns forwarding on, as the plugins do for each pod. Returns what does not work; in a container `/proc/sys` may be read-only.
pub(crate) fn ensure(pods: &[IpNetwork], local: &Local) -> Vec<(String, String)> {
    let turn_on = |family| -> io::Result<()> {
        match family {
            IpFamily::V4 => sysctl::ensure("net/ipv4/ip_forward", "1"),
            IpFamily::V6 => {
                keep_routers(local)?;
                sysctl::ensure(IPV6, "1")
            }
        }
    };
    let fault = |network: &IpNetwork| {
        let family = IpFamily::of(network.ip());
        let error = turn_on(family).err()?;
        Some((family.to_string(), format!("this node does not forward {family} packets of pods: {error}")))
    };
    pods.iter().filter_map(fault).collect()
}

/// Sets `accept_ra` of the links with a router to 2.
fn keep_routers(local: &Local) -> io::Result<()> {
    let mut former = read().unwrap_or_default();
    let names = advertised(local).into_iter().map(accept_ra);
    let names: BTreeSet<String> = names.chain(former.keys().filter(|name| *name != IPV6).cloned()).collect();
    for name in names {
        // Who has set another value, such as 0 with a network manager, takes care of the routes.
        if sysctl::read(&name).is_ok_and(|value| value == "1") {
            former.insert(name.clone(), "1".to_owned());
            former.entry(IPV6.to_owned()).or_insert_with(|| sysctl::read(IPV6).unwrap_or_default());
            if let Err(error) = write(&former) {
                log!("{FOLDER}/{RECORD}: {error}: cleanup will not know the former value of {name}");
            }
            sysctl::write(&name, "2").map_err(|error| {
                let why = "a router's default route would go when this node forwards IPv6";
                io::Error::new(error.kind(), format!("{why}: sysctl -w {name}=2 keeps it ({error})"))
            })?;
            log!(
                "sets {name} to 2: the default route is a router's, and the kernel would drop it on a node that forwards IPv6"
            );
        }
    }
    Ok(())
}

fn accept_ra(link: &str) -> String {
    format!("net/ipv6/conf/{link}/accept_ra")
}

/// The links with a route that a router has advertised.
fn advertised(local: &Local) -> BTreeSet<&str> {
    let is_link_local = |gw: &IpAddr| matches!(gw, IpAddr::V6(gw) if gw.is_unicast_link_local());
    let routes = local.routes.iter().filter(|route| {
        let is_default = route.dst.prefix() == 0 && route.gws.iter().any(is_link_local);
        route.dst.is_ipv6() && (route.protocol == BY_ROUTER || is_default)
    });
    let links = routes.flat_map(|route| &route.links).filter_map(|link| local.links.get(link));
    links.map(|link| link.name.as_str()).collect()
}

fn read() -> io::Result<Former> {
    Ok(serde_json::from_slice(&file::read(&Path::new(FOLDER).join(RECORD))?)?)
}

fn write(former: &Former) -> io::Result<()> {
    let folder = Path::new(FOLDER);
    fs::create_dir_all(folder)?;
    file::replace_durably(&folder.join(RECORD), &folder.join(PENDING), 0o644, &serde_json::to_vec(former)?)
}

/// Sets the former values, those of links last. Returns what it has done, for the report.
///
/// # Errors
/// A sysctl cannot be set, or the file cannot be read or removed.
pub(crate) fn cleanup() -> Result<Vec<String>> {
    let path = Path::new(FOLDER).join(RECORD);
    let former = match read() {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        former => former.with_context(|| path.display().to_string())?,
    };
    let mut done = Vec::new();
    for (name, value) in &former {
        // Only names that this program writes: the file may be another's.
        let ours = if name == IPV6 { "1" } else { "2" };
        let is_ours = name == IPV6 || (name.starts_with("net/ipv6/conf/") && name.ends_with("/accept_ra"));
        // With forwarding on, the former value of accept_ra would cost the node its default route.
        let is_safe = name == IPV6 || sysctl::read(IPV6).is_ok_and(|value| value != "1");
        let is_it = is_ours && !name.contains("..") && ["0", "1"].contains(&value.as_str());
        if is_it && is_safe && sysctl::read(name).is_ok_and(|value| value == ours) {
            sysctl::write(name, value)?;
            done.push(format!("the value {ours} of {name}"));
        }
    }
    fs::remove_file(&path).with_context(|| format!("remove {}", path.display()))?;
    done.push(format!("file {}", path.display()));
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Link, Route};

    #[test]
    fn links_with_a_routers_route() {
        let mut local = Local::default();
        for (index, name) in [(1, "lo"), (2, "eth0"), (3, "eth1"), (4, "eth2"), (5, "eth3")] {
            local.links.insert(index, Link { name: name.into(), ..Link::default() });
        }
        for (dst, gw, link, protocol) in [
            ("::/0", Some("fe80::1"), 2, BY_ROUTER),
            ("::/0", Some("fe80::1"), 3, 3),
            ("2001:db8::/48", Some("fe80::1"), 4, BY_ROUTER),
            ("::/0", Some("2001:db8::1"), 5, 3),
            ("0.0.0.0/0", Some("192.0.2.1"), 1, 3),
        ] {
            local.routes.insert(Route {
                dst: dst.parse().unwrap(),
                gws: gw.map(|gw| gw.parse().unwrap()).into_iter().collect(),
                links: vec![link],
                protocol,
                priority: link,
                is_unicast: true,
                is_tuned: false,
            });
        }
        assert_eq!(advertised(&local), BTreeSet::from(["eth0", "eth1", "eth2"]));
    }
}
