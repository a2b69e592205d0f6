//! What the kernel's rules do with the first packet of a flow: first the plugin's table, then that of `ferrule-node`.

use std::collections::BTreeMap;
use std::rc::Rc;

use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Error, Table, elements, generation, is_of_intervals, rules, table_state};

use crate::ruled::{Cause, Ruled, judge, not_enforced};
use crate::walk::{Packet, Rule, Set, Tables, Walk, allows, steps, walk};
use crate::{decided, table as announced};

/// The most rules of a chain that are shown.
const MOST: usize = 20;
/// How often the tables are read again if somebody changes them meanwhile.
const ATTEMPTS: usize = 5;

/// Where the kernel asks the rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// The node forwards the packet.
    Forward,
    /// The packet is for the node.
    Input,
}

impl Hook {
    /// The name of the base chain, in both tables.
    const fn chain(self) -> &'static str {
        match self {
            Hook::Forward => "forward",
            Hook::Input => "input",
        }
    }
}

/// Reads one table, as far as a walk asks for it.
pub struct InKernel<'s> {
    socket: &'s mut Socket,
    table: Table<'static>,
    rules: BTreeMap<String, Rc<[Rule]>>,
    sets: BTreeMap<String, Rc<Set>>,
}

impl<'s> InKernel<'s> {
    /// A table; one that does not exist is empty.
    pub fn new(socket: &'s mut Socket, table: Table<'static>) -> InKernel<'s> {
        InKernel { socket, table, rules: BTreeMap::new(), sets: BTreeMap::new() }
    }
}

impl Tables for InKernel<'_> {
    type Error = Error;

    fn rules(&mut self, chain: &str) -> Result<Rc<[Rule]>, Error> {
        if let Some(known) = self.rules.get(chain) {
            return Ok(Rc::clone(known));
        }
        let found: Rc<[Rule]> = rules(self.socket, self.table, chain)?.iter().map(steps).collect();
        self.rules.insert(chain.to_owned(), Rc::clone(&found));
        Ok(found)
    }

    fn set(&mut self, name: &str) -> Result<Rc<Set>, Error> {
        if let Some(known) = self.sets.get(name) {
            return Ok(Rc::clone(known));
        }
        let has_intervals = is_of_intervals(self.socket, self.table, name)?.unwrap_or_default();
        let found = Rc::new(Set::of(&elements(self.socket, self.table, name)?, has_intervals));
        self.sets.insert(name.to_owned(), Rc::clone(&found));
        Ok(found)
    }
}

/// What the rules do with the packet. The socket is one with whole dumps.
///
/// # Errors
/// The kernel refuses to list a table.
pub fn ruled(socket: &mut Socket, packet: &Packet, hook: Hook) -> Result<Ruled, Error> {
    let mut last = None;
    for _ in 0..ATTEMPTS {
        let before = generation(socket)?;
        let ruled = once(socket, packet, hook)?;
        if generation(socket)? == before {
            return Ok(ruled);
        }
        last = Some(ruled);
    }
    let mut ruled = last.unwrap_or_default();
    ruled.notes.push("the tables change while they are read: ask again".to_owned());
    Ok(ruled)
}

fn once(socket: &mut Socket, packet: &Packet, hook: Hook) -> Result<Ruled, Error> {
    let mut of = |table| -> Result<Option<Walk>, Error> {
        match table_state(socket, table)? {
            Some(state) if !state.is_dormant => {
                walk(&mut InKernel::new(socket, table), hook.chain(), packet).map(Some)
            }
            _ => Ok(None),
        }
    };
    let announced = of(announced::TABLE)?.unwrap_or_default();
    let Some(decided) = of(decided::TABLE)? else { return Ok(not_enforced(&announced, packet)) };
    let mut ruled = judge(&announced, &decided, packet);
    if let Some(at) = ruled.at.as_ref().filter(|_| ruled.cause == Cause::Policy) {
        let mut tables = InKernel::new(socket, decided::TABLE);
        for rule in tables.rules(&at.chain)?.iter().take(MOST) {
            ruled.allows.extend(allows(&mut tables, rule)?);
        }
    }
    Ok(ruled)
}
