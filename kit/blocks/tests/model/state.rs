//! The state of the model.
//!
//! Node 0 has all faults, and each of its requests is on its way for some time. Node 1 runs the same code without faults, and each of its
//! requests is served at once: what it does falls between any two steps of node 0.

use std::net::IpAddr;

use ferrule_blocks::block::{Block, Size};
use ferrule_blocks::ledger::{Claim, Ledger, Network};

/// The boot of each machine that runs. A ledger of an earlier boot has none.
pub(crate) const BOOT: &str = "boot";
/// The most requests that arrive after their sender has given up.
pub(crate) const DELAYED: usize = 1;

/// A rule of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// After a boot no block is open before the comparison.
    CompareAfterBoot,
    /// The end of a Node object is not the end of its machine: claims have no owner reference.
    NoOwnerReference,
    /// A block is closed before the deletion is sent.
    CloseFirst,
    /// A block with a used address is not given back.
    ProveEmpty,
    /// A deletion has the UID as its precondition.
    Uid,
    /// A closed block is never opened again.
    NeverReopen,
    /// 409 means that another node has the block.
    TakenIsTaken,
    /// A creation without an answer opens nothing.
    LostIsNotCreated,
    /// A deletion without an answer leaves the block closed in the ledger.
    LostIsNotDeleted,
    /// ADD and the daemon use the lock of the store.
    Lock,
    /// Only objects of this folder of ledgers are adopted, not those of this machine's former folder.
    OwnStore,
    /// Objects of this store that the ledger does not have are adopted.
    Adopt,
    /// A block that another node has by now is no longer open.
    Lose,
}

impl Rule {
    pub(crate) const ALL: [Rule; 13] = [
        Rule::CompareAfterBoot,
        Rule::NoOwnerReference,
        Rule::CloseFirst,
        Rule::ProveEmpty,
        Rule::Uid,
        Rule::NeverReopen,
        Rule::TakenIsTaken,
        Rule::LostIsNotCreated,
        Rule::LostIsNotDeleted,
        Rule::Lock,
        Rule::OwnStore,
        Rule::Adopt,
        Rule::Lose,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    /// The object that has the block's name.
    pub(crate) object: Option<Claim>,
    pub(crate) nodes: [Node; 2],
    /// Requests whose senders have given up.
    pub(crate) delayed: Vec<Request>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    /// The machine has power.
    pub(crate) on: bool,
    pub(crate) ledger: Ledger,
    /// The identifier of the folder of ledgers.
    pub(crate) store: String,
    /// Host-local's store has a file of the address.
    pub(crate) used: bool,
    /// A container uses the address.
    pub(crate) answers: bool,
    /// Without [`Rule::Lock`]: an ADD has seen an open block, and has not reserved yet.
    pub(crate) between: bool,
    pub(crate) daemon: Daemon,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Daemon {
    /// It has just started, or has nothing on its way: a crash forgets nothing else.
    Idle,
    /// The request is on its way.
    Waits(Request),
    /// The answer is there, and nothing is done with it yet.
    Has(Request, Answer),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Request {
    Create {
        node: usize,
        store: String,
    },
    /// The list for [`Ledger::compare`].
    List,
    /// The object for [`Ledger::give_back`].
    Get,
    Delete {
        uid: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Object(Option<Claim>),
    Created(Claim),
    /// 409, or 404 for a deletion.
    Refused,
    Deleted,
}

pub(crate) fn block() -> Block {
    Block::of(IpAddr::from([10, 0, 0, 1]), Size::try_from(1).unwrap())
}

pub(crate) fn new_ledger() -> Ledger {
    let (network, domain) = ("net".to_owned(), "lan".to_owned());
    Ledger::new(Network { network, domain, data_dir: "/stores".into(), sets: Vec::new() })
}

impl World {
    pub(crate) fn new() -> World {
        let node = |store: &str| Node {
            on: true,
            ledger: new_ledger(),
            store: store.to_owned(),
            used: false,
            answers: false,
            between: false,
            daemon: Daemon::Idle,
        };
        World { object: None, nodes: [node("a1"), node("b1")], delayed: Vec::new() }
    }

    /// A UID that nobody knows. Forgotten ones come again, so that there are few states.
    fn new_uid(&self) -> String {
        let mut known: Vec<&str> = self.nodes.iter().flat_map(|node| node.ledger.uids()).collect();
        let waits = self.nodes.iter().filter_map(|node| match &node.daemon {
            Daemon::Idle => None,
            Daemon::Waits(request) | Daemon::Has(request, _) => Some(request),
        });
        for request in self.delayed.iter().chain(waits) {
            if let Request::Delete { uid } = request {
                known.push(uid);
            }
        }
        for node in &self.nodes {
            if let Daemon::Has(_, Answer::Object(Some(claim)) | Answer::Created(claim)) = &node.daemon {
                known.push(&claim.uid);
            }
        }
        ["0", "1", "2", "3", "4", "5", "6", "7"]
            .into_iter()
            .find(|uid| !known.contains(uid))
            .unwrap()
            .to_owned()
    }

    /// What the API server does with a request.
    pub(crate) fn serve(&mut self, request: &Request, without: Option<Rule>) -> Answer {
        match request {
            Request::Create { .. } if self.object.is_some() => Answer::Refused,
            Request::Create { node, store } => {
                let claim = Claim {
                    block: block(),
                    uid: self.new_uid(),
                    version: String::new(),
                    node: node.to_string(),
                    store: store.clone(),
                    network: "net".to_owned(),
                    slot: 0,
                };
                self.object = Some(claim.clone());
                Answer::Created(claim)
            }
            Request::List | Request::Get => Answer::Object(self.object.clone()),
            Request::Delete { uid } => match &self.object {
                Some(object) if object.uid == *uid || without == Some(Rule::Uid) => {
                    self.object = None;
                    Answer::Deleted
                }
                _ => Answer::Refused,
            },
        }
    }
}
