//! The `shared` CNI plugin: assigns addresses of a network that several nodes share.
//!
//! The daemon `ferrule-node blocks` claims blocks of addresses from the API server, and notes them in a ledger. This plugin gives out the
//! addresses of the node's open blocks as `host-local` does, from the same kind of store. It asks the daemon only if the blocks are
//! full, or if an address of another block is requested. It has no credentials.
//!
//! - [`config`] decodes and checks the keys.
//! - [`client`] asks the daemon.
//! - [`list`] has the ledgers for operators.
//! - `probe` asks on a link whether another host has an address.
//!
//! The steps from the look at the ledger to the reservation are under the lock of the store, which the daemon takes before it changes the
//! ledger: see [`ferrule_blocks::ledger`].

#![deny(missing_docs)]

pub mod client;
pub mod config;
pub mod list;
mod probe;

use std::collections::BTreeSet;
use std::io::{self, ErrorKind, Read as _};
use std::net::IpAddr;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use cni_common::plugin::{AddRequest, Attachment, Plugin, StatusRequest};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code, Dns, IpConfig, SpecVersion};
use ferrule_blocks::block::Block;
use ferrule_blocks::ledger::{Ledger, MAX_FILE, State};
use ferrule_blocks::wire::{Foreign, Need, PROTOCOL, Request};
use ferrule_kernel::{file, sysctl};
use ferrule_kit::check::prev_result;
use ferrule_reservations::config::Config;
use ferrule_reservations::reservations::{Reservation, Reservations};
use ferrule_reservations::set::RangeSet;
use ferrule_reservations::{alloc, check, resolv, status, verbs};

use config::Shared;

/// The plugin.
pub const PLUGIN: Plugin =
    Plugin { check: check_all, gc: verbs::gc, status: can_add, ..Plugin::new("shared", add, verbs::del) };

/// How long ADD may take if the daemon has to claim blocks.
const LIMIT: Duration = Duration::from_secs(15);
/// How long the daemon has for an answer at the end of this time.
const LAST: Duration = Duration::from_secs(1);
/// How often ADD tries other addresses if hosts on the link answer for those that it was about to give.
const TRIES: usize = 4;
/// How much longer ADD waits before each further look at the ledger.
const PAUSE: Duration = Duration::from_millis(10);
/// No ledger of a few blocks is larger: one read(2) is enough.
const USUAL_FILE: usize = 4096;
/// How long STATUS, and a report to the daemon, wait for it.
pub const STATUS: Duration = Duration::from_secs(2);

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let shared = Shared::load(call.config, call.version, &call.env.args)?;
    let dns = shared.config.resolv_conf.as_deref().map_or(Ok(Dns::default()), resolv::read)?;
    let (attachment, deadline) = (Attachment::from(call), Instant::now() + LIMIT);
    let ips = match &shared.probe {
        Some(link) => reserve_unowned(&shared, &attachment, deadline, link)?,
        None => reserve(&shared, &attachment, deadline)?,
    };
    Ok(AddResult { ips, routes: shared.config.routes, dns, ..AddResult::default() })
}

/// Reserves addresses that no host on the link has.
fn reserve_unowned(
    shared: &Shared,
    attachment: &Attachment<'_>,
    deadline: Instant,
    link: &str,
) -> Result<Vec<IpConfig>, CniError> {
    let mut all = probe::Owners::new();
    for _ in 0..TRIES {
        let ips = reserve(shared, attachment, deadline)?;
        let owners = probe::owners(link, &ips);
        if owners.as_ref().is_ok_and(probe::Owners::is_empty) {
            return Ok(ips);
        }
        let mut reservations = Reservations::new(&shared.config.data_dir, attachment.network);
        let lock = reservations.store.lock()?;
        probe::put_aside(&mut reservations, attachment, owners.as_ref().unwrap_or(&probe::Owners::new()))?;
        reservations.finish(true);
        drop(lock);
        let owners = owners?;
        let said = probe::text(&owners);
        remark!("network {:?}: other hosts on {link} have {said}: put aside", attachment.network);
        report(shared, &owners);
        all.extend(owners);
        if all.keys().any(|ip| shared.config.requested.contains(ip)) {
            break;
        }
    }
    let (network, said) = (attachment.network, probe::text(&all));
    Err(CniError::new(Code::TryAgainLater, format!("network {network:?}: other hosts on {link} have {said}"))
        .with_remedy("leave out addresses of hosts outside of Kubernetes by \"exclude\""))
}

/// Reserves addresses. If the open blocks are full it asks the daemon for others.
fn reserve(
    shared: &Shared,
    attachment: &Attachment<'_>,
    deadline: Instant,
) -> Result<Vec<IpConfig>, CniError> {
    let mut pauses = 0..;
    loop {
        let needs = match attempt(shared, attachment)? {
            Attempt::Done(ips) => return Ok(ips),
            Attempt::Needs(needs) => needs,
        };
        // One that has answered until now has some time for the last answer too.
        let until = deadline.max(Instant::now() + LAST);
        client::ask(&shared.socket, &request(shared, needs), until).map_err(|error| CniError {
            msg: format!(
                "network {:?} has no address for this container: {}",
                shared.network.network, error.msg
            ),
            ..error
        })?;
        if Instant::now() > deadline {
            let (socket, ledger) = (shared.socket.display(), shared.ledger.display());
            let why = format!(
                "network {:?} has no address for this container: the daemon at {socket} has claimed one, and {ledger} has none",
                shared.network.network
            );
            return Err(CniError::new(Code::TryAgainLater, why)
                .with_remedy("give \"ledgers\" and --ledgers of ferrule-node blocks the same folder"));
        }
        // Other ADDs may have taken what the daemon has claimed.
        thread::sleep(PAUSE * pauses.next().unwrap_or_default());
    }
}

/// The outcome of a look at the blocks.
enum Attempt {
    Done(Vec<IpConfig>),
    Needs(Vec<Need>),
}

/// Reserves an address of each range set out of the open blocks.
///
/// Each set fills one block before it goes on to the next one, so that the others stay empty and can be given back. In a block the
/// addresses go round, as those of host-local.
fn attempt(shared: &Shared, attachment: &Attachment<'_>) -> Result<Attempt, CniError> {
    let config = &shared.config;
    let mut reservations = Reservations::new(&config.data_dir, attachment.network);
    reservations.store.create()?;
    let lock = reservations.store.lock()?;
    let open: Vec<Block> = match read_ledger(shared)? {
        Some(ledger) if ledger.network == shared.network => {
            ledger.open(reservations.store.boot_id()).collect()
        }
        // Without an open block ADD asks the daemon, which compares a changed configuration with that of other nodes.
        _ => Vec::new(),
    };
    let held = held(&mut reservations, attachment, shared)?;
    let is_usable = |block: &&Block| {
        config.requested.iter().any(|ip| block.contains(*ip)) || !shared.network.is_on_request(block)
    };
    let usable = || open.iter().filter(is_usable);
    let parts = |set: &RangeSet| usable().filter_map(|block| set.within(block.first, block.last())).collect();
    let parts: Vec<Vec<RangeSet>> = config.sets.iter().map(parts).collect();
    let needs = missing(shared, &open, &parts);
    if !needs.is_empty() {
        return Ok(Attempt::Needs(needs));
    }
    let wanted: Vec<IpAddr> = config.requested.iter().chain(held.iter().map(|(ip, _)| ip)).copied().collect();
    let last: Vec<Option<IpAddr>> = (0..parts.len()).map(|i| reservations.store.last_reserved(i)).collect();
    let preferred = parts.iter().zip(&last).filter_map(|(parts, last)| {
        let mut known =
            wanted.iter().chain(last).filter_map(|ip| parts.iter().find(|part| part.contains(*ip)));
        known.next().or(parts.first()).cloned()
    });
    let mut of_open = Config { sets: preferred.collect(), ..config.clone() };
    let mut outcome =
        alloc::allocate_beside(&mut reservations, attachment, &of_open, held, &last).map(Attempt::Done);
    if outcome.is_err() {
        let (is_changed, needs) = next_blocks(&mut of_open, &parts, &reservations)?;
        if !needs.is_empty() {
            outcome = Ok(Attempt::Needs(needs));
        } else if is_changed {
            outcome = alloc::allocate(&mut reservations, attachment, &of_open).map(Attempt::Done);
        }
    }
    reservations.finish(true);
    drop(lock);
    outcome
}

/// For each set that is full, and from which no address is requested: goes on to the first block with a free address, or with one of a container
/// from before the last boot. Returns whether there is such a set, and those without such a block.
fn next_blocks(
    of_open: &mut Config,
    parts: &[Vec<RangeSet>],
    reservations: &Reservations,
) -> Result<(bool, Vec<Need>), CniError> {
    let taken: BTreeSet<IpAddr> = reservations.store.addresses()?.into_iter().collect();
    let is_full = |set: &RangeSet| set.candidates(None).all(|ip| taken.contains(&ip));
    let is_former = |ip: IpAddr| {
        let owner = reservations.store.owner(ip);
        owner.is_some_and(|owner| owner.key().is_some()) && reservations.store.is_of_earlier_boot(ip)
    };
    let has_former = |set: &&RangeSet| set.candidates(None).any(is_former);
    let (mut is_changed, mut needs) = (false, Vec::new());
    for (i, set) in of_open.sets.iter_mut().enumerate() {
        if of_open.requested.iter().any(|ip| set.contains(*ip)) || !is_full(set) {
            continue;
        }
        let free = parts[i].iter().find(|part| !is_full(part));
        match free.or_else(|| parts[i].iter().find(has_former)) {
            Some(part) => (*set, is_changed) = (part.clone(), true),
            None => needs.push(Need::Set(i)),
        }
    }
    Ok((is_changed, needs))
}

/// What ADD needs in addition to the open blocks, before it looks at the addresses in use.
fn missing(shared: &Shared, open: &[Block], parts: &[Vec<RangeSet>]) -> Vec<Need> {
    let config = &shared.config;
    let is_of_network = |ip: &&IpAddr| config.sets.iter().any(|set| set.contains(**ip));
    let is_open = |ip: &IpAddr| open.iter().any(|block| block.contains(*ip));
    let requested = config.requested.iter().filter(is_of_network);
    let addresses = requested.clone().filter(|ip| !is_open(ip)).map(|ip| Need::Address(*ip));
    let wants_any = |i: &usize| !requested.clone().any(|ip| config.sets[*i].contains(*ip));
    let empty = (0..parts.len()).filter(|i| parts[*i].is_empty()).filter(wants_any).map(Need::Set);
    addresses.chain(empty).collect()
}

/// What the attachment had before the last boot. An attachment must not be added twice; [`alloc::allocate`] does not look at all blocks.
fn held(
    reservations: &mut Reservations,
    attachment: &Attachment<'_>,
    shared: &Shared,
) -> Result<Vec<Reservation>, CniError> {
    let held = reservations.of(attachment)?;
    let is_of_network = |ip: &IpAddr| shared.config.sets.iter().any(|set| set.contains(*ip));
    let mut of_network = held.iter().filter(|(ip, _)| is_of_network(ip));
    match of_network.find(|(ip, _)| !reservations.store.is_of_earlier_boot(*ip)) {
        Some((ip, _)) => Err(CniError::internal(format!(
            "{ip} has been allocated to {}, duplicate allocation is not allowed",
            attachment.container_id
        ))),
        None => Ok(held),
    }
}

/// The node's blocks for the network; `None` before the first one.
fn read_ledger(shared: &Shared) -> Result<Option<Ledger>, CniError> {
    let path = &shared.ledger;
    let broken = |why: String| CniError::new(Code::Io, format!("the ledger {}: {why}", path.display()));
    let Some(text) = read(path).map_err(|error| broken(error.to_string()))? else { return Ok(None) };
    let ledger = Ledger::parse(&text).map_err(broken)?;
    let (theirs, ours) = (&ledger.network, &shared.network);
    if (&theirs.domain, &theirs.data_dir) != (&ours.domain, &ours.data_dir)
        && ledger.states().next().is_some()
    {
        return Err(CniError::invalid_config(format!(
            "network {:?} has blocks of the domain {:?} with the stores in {}; this configuration has the domain {:?} and {}",
            ours.network,
            theirs.domain,
            theirs.data_dir.display(),
            ours.domain,
            ours.data_dir.display()
        ))
        .with_remedy("give the network another name, or keep \"domain\" and \"dataDir\""));
    }
    Ok(Some(ledger))
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    let mut file = match file::open_own(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    let mut text = vec![0; USUAL_FILE];
    let read = file.read(&mut text)?;
    text.truncate(read);
    if read == USUAL_FILE {
        file.take(MAX_FILE).read_to_end(&mut text)?;
    }
    Ok(Some(text))
}

fn request(shared: &Shared, needs: Vec<Need>) -> Request {
    Request { ferrule_blocks: PROTOCOL, network: Some(shared.network.clone()), needs, foreign: None }
}

/// Lets the daemon make an event. It is no reason for ADD to fail.
fn report(shared: &Shared, owners: &probe::Owners) {
    let foreign = Foreign {
        network: shared.network.network.clone(),
        owners: owners.iter().map(|(ip, mac)| (*ip, mac.0)).collect(),
    };
    let request = Request { ferrule_blocks: PROTOCOL, foreign: Some(foreign), ..Request::default() };
    if let Err(error) = client::ask(&shared.socket, &request, Instant::now() + STATUS) {
        remark!("there is no event about the other hosts: {}", error.msg);
    }
}

/// CHECK: the reservation as host-local has it, and that the address's block is still this node's. Each block of a container is in the ledger,
/// unless that was lost.
fn check_all(call: &AddRequest<'_>) -> Result<(), CniError> {
    let shared = Shared::load(call.config, call.version, &call.env.args)?;
    let result = prev_result(call)?;
    let mut reservations = Reservations::new(&shared.config.data_dir, call.config.name());
    check::check(&mut reservations, &Attachment::from(call), &shared.config.sets, result).map_err(
        |error| {
            let msg = error.msg.replacen("host-local: ", "shared: ", 1);
            CniError { msg, ..error }
        },
    )?;
    let ledger = read_ledger(&shared)?;
    let is_own = |ip: &IpAddr| {
        let mut blocks = ledger.iter().flat_map(Ledger::states);
        blocks.any(|(block, state)| state != State::Lost && block.contains(*ip))
    };
    let is_of_network = |ip: &IpAddr| shared.config.sets.iter().any(|set| set.contains(*ip));
    let mut ips = result.ips.iter().map(|ip| ip.address.ip()).filter(is_of_network);
    match ips.find(|ip| !is_own(ip)) {
        Some(ip) => Err(CniError::internal(format!(
            "shared: address {ip} is in a block that this node no longer has: another node may give it too"
        ))
        .with_remedy("start the container anew")),
        None => Ok(()),
    }
}

/// STATUS: without an open block the daemon has to answer.
fn can_add(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
    // STATUS has no CNI_ARGS. Its version is not known here.
    let shared = Shared::load(call.config, SpecVersion::NEWEST, "").map_err(unavailable)?;
    status::check_writable(&shared.config.data_dir.join(call.config.name()))?;
    if let Some(link) = &shared.probe {
        probe::link(link).map_err(unavailable)?;
    }
    let ledger = read_ledger(&shared).map_err(unavailable)?;
    // With another configuration ADD asks the daemon first.
    let is_usable = |ledger: &Ledger| {
        ledger.network == shared.network && ledger.open(&sysctl::boot_id()).next().is_some()
    };
    if ledger.as_ref().is_some_and(is_usable) {
        return Ok(());
    }
    let ping = Request { ferrule_blocks: PROTOCOL, ..Request::default() };
    client::ask(&shared.socket, &ping, Instant::now() + STATUS).map_err(unavailable)
}
