//! The steps of the model: from a state to the next ones.

use ferrule_blocks::ledger::{GiveBack, State};

use crate::state::{Answer, BOOT, DELAYED, Daemon, Faults, Request, Rule, Taint, World, block, new_ledger};

/// A step: its name, whether it is no fault, and the state after it.
pub(crate) type Step = (String, bool, World);

/// Collects the steps.
pub(crate) struct Steps<'w> {
    pub(crate) world: &'w World,
    pub(crate) without: Option<Rule>,
    found: Vec<Step>,
}

/// All steps from this state.
pub(crate) fn steps(world: &World, without: Option<Rule>) -> Vec<Step> {
    let mut steps = Steps { world, without, found: Vec::new() };
    for n in 0..2 {
        steps.of_containers(n);
        steps.of_daemon(n);
        steps.of_machine(n);
    }
    steps.of_operator();
    if world.faults == Faults::Fencing {
        steps.of_taint();
        steps.of_taker();
    }
    for at in 0..world.delayed.len() {
        steps.add("a delayed request arrives", true, |world| {
            let request = world.delayed.remove(at);
            world.serve(&request, without);
        });
        steps.add("a delayed request is dropped", true, |world| drop(world.delayed.remove(at)));
    }
    steps.found
}

impl Steps<'_> {
    pub(crate) fn add(&mut self, name: &str, is_good: bool, change: impl FnOnce(&mut World)) {
        let mut world = self.world.clone();
        change(&mut world);
        while let Daemon::Waits(request) = &world.nodes[1].daemon {
            let request = request.clone();
            let answer = world.serve(&request, self.without);
            world.nodes[1].daemon = Daemon::Idle;
            world.apply(1, &request, &answer, self.without);
        }
        world.drop_what_must_fail(self.without);
        self.found.push((name.to_owned(), is_good, world));
    }

    pub(crate) fn lacks(&self, rule: Rule) -> bool {
        self.without == Some(rule)
    }

    fn of_containers(&mut self, n: usize) {
        let node = &self.world.nodes[n];
        if !node.on {
            return;
        }
        let is_open = node.ledger.open(BOOT).next().is_some();
        if is_open && !node.used && !node.between {
            match self.lacks(Rule::Lock) {
                false => self.add(&format!("{n}: ADD"), true, |world| {
                    (world.nodes[n].used, world.nodes[n].answers) = (true, true);
                }),
                true => self.add(&format!("{n}: ADD reads"), true, |world| world.nodes[n].between = true),
            }
        }
        if node.between {
            self.add(&format!("{n}: ADD reserves"), true, |world| {
                let node = &mut world.nodes[n];
                (node.used, node.answers, node.between) = (true, true, false);
            });
        }
        if node.used {
            self.add(&format!("{n}: DEL"), true, |world| {
                (world.nodes[n].used, world.nodes[n].answers) = (false, false);
            });
        }
    }

    fn of_daemon(&mut self, n: usize) {
        let (node, without) = (&self.world.nodes[n], self.without);
        if !node.on {
            return;
        }
        match &node.daemon {
            Daemon::Idle => self.of_idle_daemon(n),
            Daemon::Waits(request) => {
                self.add(&format!("{n}: {request:?} is answered"), true, |world| {
                    let answer = world.serve(request, without);
                    world.nodes[n].daemon = Daemon::Has(request.clone(), answer);
                });
                let has_losses = self.world.faults == Faults::Losses;
                if has_losses {
                    self.add(&format!("{n}: {request:?} is lost"), false, |world| {
                        world.forget(n, request, without)
                    });
                }
                if matches!(request, Request::Create { .. } | Request::Delete { .. } | Request::Renew { .. })
                {
                    if has_losses {
                        self.add(&format!("{n}: the answer to {request:?} is lost"), false, |world| {
                            world.serve(request, without);
                            world.forget(n, request, without);
                        });
                    }
                    if self.world.delayed.len() < DELAYED {
                        self.add(&format!("{n}: {request:?} is delayed"), false, |world| {
                            world.delayed.push(request.clone());
                            world.forget(n, request, without);
                        });
                    }
                }
            }
            Daemon::Has(request, answer) => {
                self.add(&format!("{n}: the daemon reads {answer:?}"), true, |world| {
                    world.nodes[n].daemon = Daemon::Idle;
                    world.apply(n, request, answer, without);
                });
                // A delay of the request is one too.
                if self.world.faults == Faults::Losses {
                    self.add(&format!("{n}: the daemon crashes"), false, |world| {
                        world.nodes[n].daemon = Daemon::Idle
                    });
                }
            }
        }
    }

    fn of_idle_daemon(&mut self, n: usize) {
        let node = &self.world.nodes[n];
        let (state, is_compared) = (node.ledger.state(&block()), node.ledger.boot == BOOT);
        let first = if is_compared || self.lacks(Rule::OwnNode) { Request::List } else { Request::OwnNode };
        self.add(&format!("{n}: compare"), true, |world| world.nodes[n].daemon = Daemon::Waits(first));
        if state.is_none() && is_compared {
            let request = Request::Create { node: n, store: node.store.clone(), boot: BOOT };
            self.add(&format!("{n}: create"), true, |world| world.nodes[n].daemon = Daemon::Waits(request));
        }
        if state == Some(State::Open) && is_compared {
            self.add(&format!("{n}: close"), true, |world| world.nodes[n].ledger.close(&block()));
        }
        let gives_open = self.lacks(Rule::CloseFirst) && state == Some(State::Open);
        if state == Some(State::Closed) || gives_open {
            self.add(&format!("{n}: get for give_back"), true, |world| {
                world.nodes[n].daemon = Daemon::Waits(Request::Get);
            });
        }
        if state == Some(State::Closed) && self.lacks(Rule::NeverReopen) {
            self.add(&format!("{n}: opens it again"), true, |world| world.nodes[n].reopen());
        }
    }

    fn of_machine(&mut self, n: usize) {
        let (node, without) = (&self.world.nodes[n], self.without);
        if !node.on {
            self.add(&format!("{n}: the machine boots"), true, |world| {
                let node = &mut world.nodes[n];
                node.on = true;
                if without == Some(Rule::CompareAfterBoot) {
                    node.ledger.boot = BOOT.to_owned();
                }
            });
            return;
        }
        // One node with these faults is enough: the other one sees them.
        if n == 1 {
            return;
        }
        self.add("0: the machine loses power", false, |world| {
            let node = &mut world.nodes[0];
            (node.on, node.answers, node.between, node.daemon) = (false, false, false, Daemon::Idle);
            node.ledger.boot = String::new();
            world.boot_ends();
        });
        if self.world.faults == Faults::Fencing {
            return;
        }
        if node.store == "a1" {
            self.add("0: the ledgers are lost while containers run", false, |world| {
                let node = &mut world.nodes[0];
                (node.ledger, node.store, node.daemon) = (new_ledger(), "a2".to_owned(), Daemon::Idle);
            });
            self.add("0: the disk is lost", false, |world| {
                let node = &mut world.nodes[0];
                (node.on, node.answers, node.used, node.between) = (false, false, false, false);
                (node.ledger, node.store, node.daemon) = (new_ledger(), "a2".to_owned(), Daemon::Idle);
                world.boot_ends();
            });
        }
        self.add("0: the Node object is deleted", false, |world| {
            if without == Some(Rule::NoOwnerReference) {
                world.object.take_if(|object| object.node == "0");
            }
        });
    }

    /// An operator deletes the object of a node that no longer runs, or that has lost its ledgers and its container.
    fn of_operator(&mut self) {
        let Some(object) = &self.world.object else { return };
        let node = &self.world.nodes[object.node.parse::<usize>().unwrap()];
        if !node.answers && (!node.on || node.store != object.store) {
            self.add("the operator deletes the object", true, |world| world.object = None);
        }
    }
}

impl World {
    /// The daemon gives up on a request. Nothing is known about what the API server has done.
    fn forget(&mut self, n: usize, request: &Request, without: Option<Rule>) {
        let node = &mut self.nodes[n];
        node.daemon = Daemon::Idle;
        match (request, without) {
            (Request::Create { .. }, Some(Rule::LostIsNotCreated)) => node.open_anyway(),
            (Request::Delete { .. }, Some(Rule::LostIsNotDeleted)) => node.ledger.returned(&block()),
            _ => {}
        }
    }

    fn apply(&mut self, n: usize, request: &Request, answer: &Answer, without: Option<Rule>) {
        let node = &mut self.nodes[n];
        match (request, answer) {
            (Request::Create { .. }, Answer::Created(claim)) => {
                node.ledger.claimed(claim, &node.store);
            }
            (Request::Create { .. }, _) if without == Some(Rule::TakenIsTaken) => node.open_anyway(),
            // A daemon cannot tell whose the taint is, and need not.
            (Request::OwnNode, Answer::Taint(taint)) if n == 1 || *taint == Taint::Absent => {
                node.daemon = Daemon::Waits(Request::List);
            }
            (Request::List, Answer::Object(claim)) => node.compare(claim.as_ref(), without),
            (Request::Renew { .. }, Answer::Renewed(claim)) => node.compare(Some(claim), without),
            (Request::Get, Answer::Object(claim)) => {
                let is_used = node.used && without != Some(Rule::ProveEmpty);
                let mut ledger = node.ledger.clone();
                ledger.close(&block());
                match ledger.give_back(&block(), claim.as_ref(), is_used) {
                    GiveBack::Not => {}
                    GiveBack::Delete(claim) => {
                        node.daemon = Daemon::Waits(Request::Delete {
                            uid: claim.uid.clone(),
                            version: claim.version.clone(),
                        });
                    }
                    GiveBack::Gone => node.ledger.returned(&block()),
                }
            }
            (Request::Delete { .. }, Answer::Deleted) => {
                node.ledger.close(&block());
                node.ledger.returned(&block());
            }
            _ => {}
        }
    }
}

impl crate::state::Node {
    fn compare(&mut self, claim: Option<&ferrule_blocks::ledger::Claim>, without: Option<Rule>) {
        let former = self.ledger.clone();
        let mut claims: Vec<_> = claim.into_iter().cloned().collect();
        match without {
            Some(Rule::OwnStore) => claims
                .iter_mut()
                .filter(|claim| claim.store.starts_with('a') == self.store.starts_with('a'))
                .for_each(|claim| self.store.clone_into(&mut claim.store)),
            Some(Rule::Adopt) => claims.retain(|_| self.ledger.state(&block()).is_some()),
            Some(Rule::Renew) => claims.iter_mut().for_each(|claim| BOOT.clone_into(&mut claim.boot)),
            _ => {}
        }
        if let Some(claim) = self.ledger.stale(&claims, &self.store, BOOT).next() {
            let (uid, version) = (claim.uid.clone(), claim.version.clone());
            self.daemon = Daemon::Waits(Request::Renew { uid, version, boot: BOOT });
            return;
        }
        self.ledger.compare(&claims, &self.store, BOOT, |_| self.used);
        if without == Some(Rule::Lose) && former.state(&block()) == Some(State::Open) {
            self.ledger = former;
            self.ledger.boot = BOOT.to_owned();
        }
    }

    /// What a daemon without the rule does.
    fn open_anyway(&mut self) {
        let claim = ferrule_blocks::ledger::Claim {
            block: block(),
            uid: "unknown".to_owned(),
            version: String::new(),
            node: String::new(),
            store: self.store.clone(),
            network: "net".to_owned(),
            boot: BOOT.to_owned(),
            machine: String::new(),
            slot: 0,
        };
        self.ledger.claimed(&claim, &self.store);
    }

    /// What a daemon without the rule does.
    fn reopen(&mut self) {
        let text = String::from_utf8(self.ledger.to_text()).unwrap().replace("\"closed\"", "\"open\"");
        self.ledger = serde_json::from_str(&text).unwrap();
    }
}
