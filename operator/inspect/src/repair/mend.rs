//! Calls the plugins: looks at attachments, and repairs those that are broken.

use std::cell::RefCell;
use std::collections::HashMap;
use std::error::Error;
use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::time::Duration;

use cni_common::plugin::{Delegate, Environment, Plugin, Repair};
use cni_common::spec::{CniError, NetConf};
use ferrule_kernel::budget::{self, Budget};
use ferrule_kernel::netlink::{Socket, addr};
use ferrule_kernel::netns;
use ferrule_kit::presence::Presence;

use super::guard::{Guard, changed};
use super::{Found, Step};
use crate::cache::Entry;
use crate::check::reason_to_skip;
use crate::sight::Sight;

/// What one container may cost, which has as many addresses, routes and rules as it likes. A million routes take a second, and are
/// not kept.
const BUDGET: Budget = Budget { time: Duration::from_secs(5), bytes: 16 << 20 };

/// Calls the plugins.
pub(super) struct Mender<'s> {
    plugins: &'static [&'static Plugin],
    path: String,
    pub(super) sight: &'s Sight,
    dry_run: bool,
    is_ended: &'s dyn Fn() -> bool,
    /// The rest of the budget of each container.
    budgets: RefCell<HashMap<Option<String>, Budget>>,
}

impl<'s> Mender<'s> {
    pub(super) fn new(
        plugins: &'static [&'static Plugin],
        path: String,
        sight: &'s Sight,
        dry_run: bool,
        is_ended: &'s dyn Fn() -> bool,
    ) -> Self {
        Mender { plugins, path, sight, dry_run, is_ended, budgets: RefCell::default() }
    }

    /// Checks an attachment, unless its namespace has another owner.
    pub(super) fn look<'e>(&self, entry: &'e Entry, superseded: Option<String>) -> Found<'e> {
        let skipped = reason_to_skip(entry, self.sight, None).or(superseded);
        let mut found = Found { entry, held: None, skipped, plugins: Vec::new() };
        if found.skipped.is_none() {
            found.held = open(entry);
            found.skipped = found.held.is_none().then(|| changed(entry));
        }
        if found.skipped.is_none() {
            let names = entry.plugins().into_iter().map(|plugin| plugin["type"].as_str().unwrap_or_default());
            let look = |(at, name): (usize, &str)| {
                let repair = self.look_at(entry, at);
                Step { plugin: name.to_owned(), repair, is_tried: false }
            };
            found.plugins = names.enumerate().map(look).collect();
        }
        found.held = found.held.take().filter(|_| found.is_broken());
        found
    }

    /// Repairs an attachment, or finds the obstacle.
    pub(super) fn mend(&self, found: &mut Found<'_>, guard: &Guard) {
        if !found.is_broken() {
            return;
        }
        found.skipped = match (self.is_ended)() {
            true => Some("ended by a signal".to_owned()),
            false => guard.obstacle(found.entry, self.sight),
        };
        if found.skipped.is_some() || self.dry_run {
            return;
        }
        for at in 0..found.plugins.len() {
            let has_interface = || {
                at == 0
                    || matches!(found.plugins[0].repair, Repair::Sound | Repair::Done(_))
                    || self.within(found.entry, || has_address(found.entry))
            };
            let found_now = match &found.plugins[at].repair {
                // A bridge that was made again may lack what a later plugin sets on it.
                Repair::Sound if found.plugins[..at].iter().any(|step| step.is_tried) && has_interface() => {
                    self.look_at(found.entry, at)
                }
                found_before => found_before.clone(),
            };
            let Repair::Possible(why) = found_now else {
                found.plugins[at].repair = found_now;
                continue;
            };
            // The plugins before this one took their time.
            found.skipped = guard.obstacle(found.entry, self.sight);
            if found.skipped.is_some() {
                break;
            }
            let is_tried = has_interface();
            let repair = match is_tried {
                true => self.repair(found.entry, at, &why),
                false => Repair::Failed(CniError::internal(format!(
                    "{why}; cannot be made again: the container has none of its addresses"
                ))),
            };
            let step = &mut found.plugins[at];
            (step.repair, step.is_tried) = (repair, is_tried);
        }
    }

    fn look_at(&self, entry: &Entry, plugin: usize) -> Repair {
        let look = || self.with(entry, plugin, &entry.netns, |delegate| delegate.look());
        self.within(entry, look).unwrap_or_else(Repair::Failed)
    }

    fn repair(&self, entry: &Entry, plugin: usize, why: &CniError) -> Repair {
        let repair = || self.with(entry, plugin, &entry.netns, |delegate| delegate.repair(why));
        self.within(entry, repair).unwrap_or_else(Repair::Failed)
    }

    /// Runs `work` within the rest of the container's budget: all its attachments share one.
    fn within<T>(&self, entry: &Entry, work: impl FnOnce() -> T) -> T {
        let container = entry.owner.container.clone();
        let mut budget = self.budgets.borrow().get(&container).copied().unwrap_or(BUDGET);
        let outcome = budget::within(&mut budget, work);
        self.budgets.borrow_mut().insert(container, budget);
        outcome
    }

    /// Calls a plugin of the chain with the request that libcni makes from the cache.
    pub(super) fn with<T>(
        &self,
        entry: &Entry,
        plugin: usize,
        netns: &str,
        call: impl FnOnce(Delegate<'_>) -> T,
    ) -> Result<T, CniError> {
        let plugin = entry.plugins()[plugin];
        let env = Environment {
            container_id: entry.owner.container.clone().unwrap_or_default(),
            ifname: entry.owner.ifname.clone().unwrap_or_default(),
            netns: netns.to_owned(),
            args: entry.args(),
            path: self.path.clone(),
            siblings: self.plugins,
            ..Environment::default()
        };
        let config = NetConf::parse(entry.request(plugin).into_bytes())?;
        Ok(call(Delegate::find(plugin["type"].as_str().unwrap_or_default(), &env, &config)?))
    }
}

/// Opens the namespace of the attachment. `None` if the path leads to another one than it did when the cached result was read.
fn open(entry: &Entry) -> Option<File> {
    let file = File::open(&entry.netns).ok()?;
    let meta = file.metadata().ok()?;
    (Presence::Present((meta.dev(), meta.ino())) == entry.netns_state).then_some(file)
}

/// Whether the container has one of the addresses of its result. A path in `/proc` may lead to another container by now; CHECK of
/// the plugin that has made the interface would have found that.
fn has_address(entry: &Entry) -> bool {
    let read = || -> Result<bool, Box<dyn Error>> {
        let mut socket = netns::enter(&File::open(&entry.netns)?, Socket::route)??.of_container();
        let mut is_there = false;
        socket.visit(addr::list(0), &mut |body| {
            is_there |= addr::parse(body).is_some_and(|found| entry.addresses.contains(&found.network.ip()));
        })?;
        Ok(is_there)
    };
    read().unwrap_or(false)
}
