//! The steps of the verbs.

use std::net::IpAddr;

use cni_common::plugin::{AddRequest, DelRequest, StatusRequest};
use cni_common::remark;
use cni_common::spec::ident::check_ifname;
use cni_common::spec::{AddResult, CniError, Code, Context, Failures, NetConf, Route};
use ferrule_kernel::netlink::ifb::{is_unknown_kind, probe};
use ferrule_kernel::netlink::route::MAIN_TABLE;
use ferrule_kernel::netlink::{Link, LinkId, Socket, addr, link, vrf};
use ferrule_kit::check::ensure;
use ferrule_kit::remedy;
use ferrule_kit::socket;
use ferrule_kit::steps::{Step, UndoStack, run_all};
use ferrule_kit::table::{self, Tables};
use serde::Deserialize;

use crate::kept::Kept;

#[derive(Default, Deserialize)]
#[serde(default)]
pub(crate) struct Conf {
    pub(crate) vrfname: String,
    /// 0: an unused one.
    table: u32,
}

fn read(config: &NetConf) -> Result<Conf, CniError> {
    let conf: Conf = config.decode()?;
    let is_valid = !conf.vrfname.is_empty() && check_ifname(&conf.vrfname).is_ok();
    let invalid = || CniError::invalid_config("configuration is expected to have a valid vrf name");
    if is_valid { Ok(conf) } else { Err(invalid().with_details(format!("vrfname is {:?}", conf.vrfname))) }
}

/// What ADD and CHECK need.
pub(crate) fn open<'a>(call: &'a AddRequest<'_>) -> Result<(Conf, &'a AddResult, Socket), CniError> {
    let conf = read(call.config)?;
    let result = call.earlier_result()?;
    Ok((conf, result, socket::route_in(call.sandbox.netns()?)?))
}

pub(crate) fn find(socket: &mut Socket, id: LinkId<'_>) -> Result<Option<Link>, CniError> {
    socket.link(id).context(|| format!("find a link of the container by {id:?}"))
}

/// The VRF of the configuration, if there is one.
pub(crate) fn configured(socket: &mut Socket, conf: &Conf) -> Result<Option<Link>, CniError> {
    let Conf { vrfname: name, table } = conf;
    let Some(found) = find(socket, LinkId::Name(name))? else { return Ok(None) };
    ensure(found.kind == vrf::KIND, || format!("Netlink {name} is not a VRF"))?;
    let present = found.vrf_table.unwrap_or_default();
    let other = || format!("VRF {name} already exist with different routing table {present}");
    ensure([0, present].contains(table), other)?;
    Ok(Some(found))
}

/// Makes the interface a port of the VRF, and moves its routes. A port of the VRF is left as it is.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let ((conf, result, mut socket), ifname) = (open(call)?, call.ifname);
    let _lock = table::lock(call.sandbox.netns()?)?;
    let present = configured(&mut socket, &conf)?;
    let missing = || CniError::internal(format!("could not get link by name {ifname}: Link not found"));
    let link = find(&mut socket, LinkId::Name(ifname))?.ok_or_else(missing)?;
    if let Some(master) = link.master {
        if present.is_some_and(|vrf| vrf.index == master) {
            return Ok(result.clone());
        }
        let name = find(&mut socket, LinkId::Index(master))?.map_or(String::new(), |link| link.name);
        return Err(CniError::internal(format!("interface {ifname} has already a master set: {name}")));
    }
    let tables = Tables::read(&mut socket)?;
    let kept = Kept::read(&mut socket, &link, &tables)?;
    let mut undo = UndoStack::default();
    let vrf = present.map_or_else(|| create(&mut socket, &conf, &tables, &mut undo), Ok)?;
    let what = format!("could not set the master of {ifname}");
    let enter = Step::new(what, link::set_master(link.index, vrf.index));
    let steps = kept.leave_main().chain([enter.undone_by(link::set_master(link.index, 0))]);
    undo.run(&mut socket, steps.collect())?;
    kept.restore(&mut socket, &link, vrf.vrf_table.unwrap_or_default()).inspect_err(|_| {
        undo.undo(&mut socket);
        let undone = kept.restore(&mut socket, &link, MAIN_TABLE);
        _ = undone.inspect_err(|error| remark!("failed to undo a failed ADD: {error}"));
    })?;
    Ok(result.clone())
}

fn create(socket: &mut Socket, conf: &Conf, tables: &Tables, undo: &mut UndoStack) -> Result<Link, CniError> {
    let name = &conf.vrfname;
    let table = if conf.table == 0 { tables.free(1).next().unwrap_or_default() } else { conf.table };
    let make = Step::new(format!("could not add VRF {name}"), vrf::create(name, table));
    let find = Step::new(format!("find VRF {name}"), link::get(LinkId::Name(name)));
    let found = undo.run(socket, vec![make.undone_by(link::delete(LinkId::Name(name))), find])?;
    let found = link::read(Ok(found)).context(|| format!("read VRF {name}"))?;
    found.ok_or_else(|| CniError::internal(format!("VRF {name} disappeared from the container")))
}

/// Checks the VRF, its table, the interface, and that the VRF's table has the routes of `prevResult` of an interface that is up.
pub fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let ((conf, result, mut socket), ifname) = (open(call)?, call.ifname);
    let name = &conf.vrfname;
    let missing = || CniError::internal(format!("VRF {name}: Link not found"));
    let vrf = configured(&mut socket, &conf)?.ok_or_else(missing)?;
    let is_port = |link: &Link| link.master == Some(vrf.index);
    let missing = || CniError::internal(format!("failed to find {ifname} associated to vrf {name}"));
    let link = find(&mut socket, LinkId::Name(ifname))?.filter(is_port).ok_or_else(missing)?;
    ensure(vrf.is_up(), || format!("interface {:?} of the container is down", vrf.name))?;
    // The plugin that made the interface checks whether it is up. Without that it has no routes.
    if !link.is_up() {
        return Ok(());
    }
    let table = vrf.vrf_table.unwrap_or_default();
    let missing = missing_routes(&mut socket, call, result, &link, table)?;
    missing.first().map_or(Ok(()), |route| {
        Err(CniError::internal(format!("route {} not found in table {table} of vrf {name}", route.dst)))
    })
}

/// The interface's routes of `prevResult` that the VRF's table does not have.
pub(crate) fn missing_routes<'a>(
    socket: &mut Socket,
    call: &AddRequest<'_>,
    result: &'a AddResult,
    link: &Link,
    table: u32,
) -> Result<Vec<&'a Route>, CniError> {
    let is_near = |gw| result.ips_of(call.ifname).any(|ip| ip.address.contains(gw));
    let is_own = |route: &&Route| route.table.is_none() && route.gw.is_some_and(is_near);
    let present = socket.stored_routes().context(|| "list the container's routes")?;
    let is_missing = |route: &&Route| {
        !present.iter().any(|there| {
            (there.table, there.dst) == (table, route.dst)
                && there.links.contains(&link.index)
                && route.gw.is_none_or(|gw| there.gws.contains(&gw))
        })
    };
    Ok(result.routes.iter().filter(is_own).filter(is_missing).collect())
}

/// Takes the interface out of its VRF, and removes the VRF if it has no other port. Needs no key of the configuration while the
/// interface has its name.
pub fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let Some(netns) = call.netns.opened() else { return Ok(()) };
    let mut socket = socket::route_in(netns)?;
    let _lock = table::lock_for_del(netns);
    let (link, conf) = (find(&mut socket, LinkId::Name(call.ifname))?, read(call.config).ok());
    let master = link.as_ref().and_then(|link| link.master).map(LinkId::Index);
    // Without a master, an ADD was killed, or the interface is gone.
    let mut ids = master.into_iter().chain(conf.as_ref().map(|conf| LinkId::Name(&conf.vrfname)));
    let is_vrf = |link: &Link| link.kind == vrf::KIND;
    let found = ids.find_map(|id| find(&mut socket, id).map(|link| link.filter(is_vrf)).transpose());
    let Some(vrf) = found.transpose()? else { return Ok(()) };
    let mut failures = Failures::default();
    let listed = |socket: &mut Socket| {
        socket.ports(vrf.index).context(|| format!("list the ports of vrf {}", vrf.name))
    };
    let leaving = match link.filter(|link| link.master == Some(vrf.index)) {
        Some(link) => vec![link],
        None => failures
            .keep(listed(&mut socket).and_then(|ports| renamed(&mut socket, call, ports)))
            .unwrap_or_default(),
    };
    let leave = |link: &Link| {
        Step::new(format!("take {} out of vrf {}", link.name, vrf.name), link::set_master(link.index, 0))
    };
    failures.keep(run_all(&mut socket, leaving.iter().map(leave).collect()));
    if failures.keep(listed(&mut socket)).is_some_and(|ports| ports.is_empty()) {
        let deleted = socket.delete_link(LinkId::Index(vrf.index));
        failures.keep(deleted.context(|| format!("remove vrf {}", vrf.name)));
    }
    failures.into_result()
}

/// Those of the ports with an address of `prevResult`: the container may have renamed the interface.
fn renamed(socket: &mut Socket, call: &DelRequest<'_>, mut ports: Vec<Link>) -> Result<Vec<Link>, CniError> {
    if ports.is_empty() {
        return Ok(ports);
    }
    let addresses = addr::read_all(socket.request(addr::list(0)));
    let addresses = addresses.context(|| "list the addresses of the container")?;
    let former = || call.prev_result.iter().flat_map(|result| result.ips_of(call.ifname));
    let is_former = |ip: IpAddr| former().any(|former| former.address.ip() == ip);
    ports.retain(|port| {
        addresses.iter().any(|(link, address)| *link == port.index && is_former(address.network.ip()))
    });
    Ok(ports)
}

/// Checks the configuration, and that the kernel has VRFs.
pub fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
    read(call.config).map_err(unavailable)?;
    let is_unknown = is_unknown_kind(&socket::route()?.request(probe(vrf::KIND)));
    let checked = ensure(!is_unknown, || "the kernel has no VRF devices (module vrf)".to_owned());
    checked.map_err(|error| unavailable(error).with_remedy(remedy::modules(vrf::KIND)))
}
