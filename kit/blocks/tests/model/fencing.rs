//! The steps of an operator who fences node 0, and of node 1, which takes its block.

use crate::state::{EARLIER, Request, Rule, Taint, Taker, World};
use crate::steps::Steps;

impl Steps<'_> {
    /// An operator says by the taint that a machine is off, and removes it at any time.
    pub(crate) fn of_taint(&mut self) {
        if self.world.taint != Taint::Absent {
            self.add("the operator removes the taint", true, |world| world.taint = Taint::Absent);
            return;
        }
        if !self.world.nodes[0].on {
            self.add("the operator fences 0", true, |world| world.taint = Taint::OfMachine);
        }
        self.add("another machine gets the name of 0, and is fenced", false, |world| {
            world.taint = Taint::OfAnother
        });
    }

    /// Node 1 takes the block of node 0. It may give up at any time.
    pub(crate) fn of_taker(&mut self) {
        let object = self.world.object.as_ref().filter(|object| object.node == "0");
        let seen = object.map(|object| Taker::Seen(object.uid.clone(), object.version.clone()));
        let is_fenced = match self.world.taint {
            Taint::OfMachine => true,
            Taint::OfAnother => self.lacks(Rule::SameMachine),
            Taint::Absent => self.lacks(Rule::Fenced),
        };
        let becomes = |next: Taker| move |world: &mut World| world.taker = next;
        match (self.world.taker.clone(), seen) {
            (Taker::Idle, _) if self.lacks(Rule::ObjectFirst) && is_fenced => {
                self.add("1: reads the taint", true, becomes(Taker::Fenced));
            }
            (Taker::Fenced, Some(Taker::Seen(uid, version))) => {
                self.add("1: get for take", true, becomes(Taker::Deletes(uid, version)));
            }
            (Taker::Idle, Some(seen)) if !self.lacks(Rule::ObjectFirst) => {
                self.add("1: get for take", true, becomes(seen))
            }
            (Taker::Seen(uid, version), _) if is_fenced => {
                self.add("1: reads the taint", true, becomes(Taker::Deletes(uid, version)));
            }
            (Taker::Deletes(uid, version), _) => {
                let without = self.without;
                self.add("1: take", true, |world| {
                    world.taker = Taker::Idle;
                    world.serve(&Request::Delete { uid, version }, without);
                });
            }
            _ => {}
        }
        if self.world.taker != Taker::Idle {
            self.add("1: gives up to take", true, becomes(Taker::Idle));
        }
    }
}

impl World {
    /// A request whose UID or version is no longer that of the object will fail whenever it arrives: each of them is given once. Without it
    /// there are fewer states.
    pub(crate) fn drop_what_must_fail(&mut self, without: Option<Rule>) {
        let object = self.object.as_ref();
        let may_succeed = |uid: &str, version: &str| {
            without == Some(Rule::Uid)
                || object.is_some_and(|object| {
                    object.uid == uid && (object.version == version || without == Some(Rule::Version))
                })
        };
        self.delayed.retain(|request| match request {
            Request::Delete { uid, version } | Request::Renew { uid, version, .. } => {
                may_succeed(uid, version)
            }
            _ => true,
        });
        if let Taker::Seen(uid, version) | Taker::Deletes(uid, version) = &self.taker
            && !may_succeed(uid, version)
        {
            self.taker = Taker::Idle;
        }
    }

    /// Machine 0 has lost power.
    pub(crate) fn boot_ends(&mut self) {
        if let Some(object) = self.object.as_mut().filter(|object| object.node == "0") {
            EARLIER.clone_into(&mut object.boot);
        }
        for request in &mut self.delayed {
            if let Request::Create { boot, .. } | Request::Renew { boot, .. } = request {
                *boot = EARLIER;
            }
        }
    }
}
