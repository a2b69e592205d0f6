//! The daemon's table in the kernel.

use std::collections::BTreeSet;
use std::net::IpAddr;

use anyhow::{Context as _, Result, bail, ensure};
use ferrule_kernel::ip::{IpFamily, from_octets};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{
    self, Batch, DataType, Element, Error, Expr, Family, Table, TableState, chains as find_chains, elements,
    table_state,
};
use ferrule_node_policy::Ruleset;
use ferrule_node_policy::model::Direction;
use ferrule_node_policy::ruleset::Entry;
use ferrule_policy_kit::{denials, table as announced};
use nix::errno::Errno;

use super::layout::{self, COMMENT, TABLE};
use super::undecided::Place;

/// For a look whether the kernel knows owned tables.
const PROBE: Table<'static> = Table::new(Family::Inet, "ferrule_policy_probe");

/// The socket that owns the table.
pub(super) struct Owner {
    socket: Socket,
    /// The kernel's messages name it for our own changes.
    pub(super) port: u32,
    /// The kernel has no table that stays when its owner ends, so other programs can change ours.
    pub(super) is_plain: bool,
    /// The kernel knows no counters and limits of elements: before Linux 5.12.
    pub(super) is_blind: bool,
}

/// What an earlier daemon has left.
#[derive(Debug, Default)]
pub(super) struct Remains {
    pub(super) undecided: Vec<(Place, Element)>,
    pub(super) former: BTreeSet<IpAddr>,
    /// The addresses that were isolated in a direction.
    pub(super) isolated: BTreeSet<IpAddr>,
    pub(super) cut: Vec<Element>,
}

impl Owner {
    pub(super) fn open() -> Result<Owner> {
        let mut socket = Socket::netfilter()?.with_whole_dumps();
        nftables::probe(&mut socket, TABLE.family).context("the kernel has no nf_tables")?;
        let mut batch = Batch::new();
        batch.own_table(PROBE, None).delete_table(PROBE);
        let is_plain = match batch.commit(&mut socket) {
            Err(error) if is_unknown_flag(&error) => true,
            outcome => outcome.map(|()| false)?,
        };
        let mut batch = Batch::new();
        let exprs = [Expr::Counter, denials::LIMIT];
        batch.add_table(PROBE, None).add_set_of_exprs(PROBE, "probe", 1, DataType::Ipv4Addr, &exprs);
        batch.delete_table(PROBE);
        let is_blind = match batch.commit(&mut socket) {
            Err(error) if error.source.errno == Errno::EINVAL => true,
            outcome => outcome.map(|()| false)?,
        };
        Ok(Owner { port: socket.port()?, socket, is_plain, is_blind })
    }

    pub(super) fn socket(&mut self) -> &mut Socket {
        &mut self.socket
    }

    pub(super) fn commit(&mut self, batch: Batch) -> Result<(), Error> {
        batch.commit(&mut self.socket)
    }

    /// Makes the table, in place of an existing one, in one transaction.
    pub(super) fn make(&mut self, fill: impl FnOnce(&mut Batch, u32)) -> Result<(), Error> {
        let is_owned = table_state(&mut self.socket, TABLE)?.is_some_and(|state| state.is_persistent);
        let mut batch = Batch::new();
        if is_owned {
            batch.own_table(TABLE, None)
        } else {
            batch.add_table(TABLE, None)
        };
        batch.delete_table(TABLE);
        let comment = Some(COMMENT);
        if self.is_plain {
            batch.add_table(TABLE, comment)
        } else {
            batch.own_table(TABLE, comment)
        };
        let id = layout::add_sets(&mut batch, self.is_blind);
        let chains = layout::chains();
        for chain in &chains {
            batch.add_chain(TABLE, &chain.name, chain.hook, None);
        }
        fill(&mut batch, id);
        for chain in &chains {
            for rule in &chain.rules {
                batch.add_rule(TABLE, &chain.name, rule, None);
            }
        }
        self.commit(batch)
    }

    /// Claims a table that an earlier daemon owned, so that others cannot change it. Returns whether there is a table.
    pub(super) fn claim(&mut self) -> Result<bool, Error> {
        let Some(state) = table_state(&mut self.socket, TABLE)? else { return Ok(false) };
        if state.is_persistent {
            let mut batch = Batch::new();
            batch.own_table(TABLE, None);
            self.commit(batch)?;
        }
        Ok(true)
    }

    /// Checks that the table is ours, that the kernel uses it, and that its chains are as they should be.
    ///
    /// # Errors
    /// The first difference.
    pub(super) fn prove(&mut self) -> Result<()> {
        let Some(state) = table_state(&mut self.socket, TABLE)? else { bail!("table {TABLE} is missing") };
        ensure!(!state.is_dormant, "table {TABLE} is dormant");
        ensure!(self.is_plain || state.is_owned && state.is_persistent, "table {TABLE} is not this daemon's");
        let chains = layout::chains();
        let names: Vec<_> = chains.iter().map(|chain| (TABLE, chain.name.as_str())).collect();
        let found = find_chains(&mut self.socket, &names)?;
        for (chain, found) in chains.iter().zip(found) {
            chain
                .check(&mut self.socket, TABLE, found, "read the rules")
                .map_err(|error| anyhow::anyhow!("{}", error.msg))?;
        }
        Ok(())
    }

    /// Checks that the maps have what the ruleset has, and the health endpoint's addresses.
    ///
    /// # Errors
    /// The first map that differs.
    pub(super) fn prove_maps(&mut self, ruleset: &Ruleset, endpoint: &BTreeSet<Entry>) -> Result<()> {
        for direction in Direction::ALL {
            for of in IpFamily::ALL {
                let name = layout::map(direction, of);
                let found: BTreeSet<_> = elements(&mut self.socket, TABLE, name)?
                    .into_iter()
                    .filter_map(|element| from_octets(&element.key))
                    .collect();
                let is_own = |entry: &&Entry| entry.direction == direction && IpFamily::of(entry.pod) == of;
                let all = ruleset.maps.keys().chain(endpoint);
                let wanted: BTreeSet<_> = all.filter(is_own).map(|entry| entry.pod).collect();
                ensure!(found == wanted, "map {name} of table {TABLE} has other pods than it should have");
            }
        }
        Ok(())
    }

    /// Reads the elements that the API does not tell.
    pub(super) fn remains(&mut self) -> Result<Remains> {
        let mut remains = Remains { undecided: self.announced_in(TABLE)?, ..Remains::default() };
        for of in IpFamily::ALL {
            let mut read = |set| elements(&mut self.socket, TABLE, set);
            let addresses = |found: Vec<Element>| {
                found.into_iter().filter_map(|element| from_octets(&element.key)).collect::<Vec<_>>()
            };
            remains.former.extend(addresses(read(layout::former(of))?));
            remains.isolated.extend(addresses(read(layout::isolated(of))?));
        }
        remains.cut = self.cut()?;
        Ok(remains)
    }

    /// The ended flows.
    pub(super) fn cut(&mut self) -> Result<Vec<Element>> {
        let mut all = Vec::new();
        for of in IpFamily::ALL {
            all.extend(elements(&mut self.socket, TABLE, layout::cut(of))?);
        }
        Ok(all)
    }

    /// The elements of the plugin's table, or of its copies in ours.
    pub(super) fn announced_in(&mut self, table: Table<'static>) -> Result<Vec<(Place, Element)>> {
        let mut all = Vec::new();
        for (set, _) in announced::SETS {
            let found = elements(&mut self.socket, table, set)?;
            all.extend(found.into_iter().map(|element| ((set, element.key.clone()), element)));
        }
        Ok(all)
    }
}

/// The kernel does not know the flags of an owned table.
fn is_unknown_flag(error: &Error) -> bool {
    error.request.starts_with("own table") && matches!(error.source.errno, Errno::EOPNOTSUPP | Errno::EINVAL)
}

/// A table's flags; `None` without the table, also on a kernel without nf_tables.
fn state(socket: &mut Socket, table: Table<'_>) -> Result<Option<TableState>> {
    match table_state(socket, table) {
        Err(_) if nftables::probe(socket, table.family).is_err() => Ok(None),
        state => Ok(state?),
    }
}

/// Whether there is a table.
///
/// # Errors
/// The kernel refuses to say it.
pub(super) fn exists() -> Result<bool> {
    Ok(state(&mut Socket::netfilter()?, TABLE)?.is_some())
}

/// Removes the table and the plugin's: no daemon would release the pods in it. Without ours the plugin's is another program's, unless
/// `is_ours`: the plugin was ours, and since the node's start no daemon has made our table. Returns their names for the report.
///
/// # Errors
/// The kernel refuses it.
pub(super) fn remove(is_ours: bool) -> Result<Vec<String>> {
    let mut socket = Socket::netfilter()?;
    let own = state(&mut socket, TABLE)?;
    if own.is_none() && !is_ours {
        return Ok(Vec::new());
    }
    let announced = state(&mut socket, announced::TABLE)?.map(|_| announced::TABLE);
    let tables: Vec<Table<'_>> = own.map(|_| TABLE).into_iter().chain(announced).collect();
    let mut batch = Batch::new();
    if own.is_some_and(|state| state.is_persistent) {
        batch.own_table(TABLE, None);
    }
    for table in &tables {
        batch.delete_table(*table);
    }
    batch.commit(&mut socket)?;
    Ok(tables.iter().map(|table| format!("table {table}")).collect())
}
