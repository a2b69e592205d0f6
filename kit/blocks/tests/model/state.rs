//! The state of the model.
//!
//! Node 0 has all faults, and each of its requests is on its way for some time. Node 1 runs the same code without faults, and each of its
//! requests is served at once: what it does falls between any two steps of node 0.

use std::net::IpAddr;

use ferrule_blocks::block::{Block, Size};
use ferrule_blocks::ledger::{Claim, Ledger, Network};

/// The boot of each machine that runs. A ledger of an earlier boot has none, an object of one has [`EARLIER`].
pub(crate) const BOOT: &str = "boot";
/// All boots that have ended.
pub(crate) const EARLIER: &str = "earlier";
/// The most requests that arrive after their sender has given up.
pub(crate) const DELAYED: usize = 1;

/// Which faults there are. All of them together have too many states for each run of the tests, and what connects them is in both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Faults {
    /// Lost requests, answers, ledgers and disks, and a Node that is deleted.
    Losses,
    /// An operator fences a node that is off, and node 1 takes its block. Requests are delayed.
    Fencing,
}

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
    /// A deletion has UID and version as its preconditions.
    Uid,
    /// The version is one of them.
    Version,
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
    /// Only the taint of its Node proves that a machine is off.
    Fenced,
    /// The Node with the taint is that machine's, not one that has its name by now.
    SameMachine,
    /// The taint is read after the object.
    ObjectFirst,
    /// After a boot a node makes sure that its own Node has no taint.
    OwnNode,
    /// After that it writes the boot into its objects.
    Renew,
}

impl Rule {
    /// Those that only fencing needs.
    pub(crate) fn faults(self) -> Faults {
        match self {
            Rule::Version
            | Rule::Fenced
            | Rule::SameMachine
            | Rule::ObjectFirst
            | Rule::OwnNode
            | Rule::Renew => Faults::Fencing,
            _ => Faults::Losses,
        }
    }

    pub(crate) const ALL: [Rule; 19] = [
        Rule::CompareAfterBoot,
        Rule::NoOwnerReference,
        Rule::CloseFirst,
        Rule::ProveEmpty,
        Rule::Uid,
        Rule::Version,
        Rule::NeverReopen,
        Rule::TakenIsTaken,
        Rule::LostIsNotCreated,
        Rule::LostIsNotDeleted,
        Rule::Lock,
        Rule::OwnStore,
        Rule::Adopt,
        Rule::Lose,
        Rule::Fenced,
        Rule::SameMachine,
        Rule::ObjectFirst,
        Rule::OwnNode,
        Rule::Renew,
    ];
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    pub(crate) faults: Faults,
    /// The object that has the block's name.
    pub(crate) object: Option<Claim>,
    pub(crate) nodes: [Node; 2],
    /// Requests whose senders have given up.
    pub(crate) delayed: Vec<Request>,
    /// The taint of the Node 0.
    pub(crate) taint: Taint,
    /// What node 1 knows to take the block from node 0. Each of its steps falls between any two of node 0's.
    pub(crate) taker: Taker,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Taint {
    Absent,
    /// Machine 0 is off.
    OfMachine,
    /// Another machine that has the name of node 0 is off.
    OfAnother,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Taker {
    Idle,
    /// Without [`Rule::ObjectFirst`]: the taint is there.
    Fenced,
    /// UID and version of the object.
    Seen(String, String),
    /// So is the taint. The deletion is on its way.
    Deletes(String, String),
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
#[allow(clippy::large_enum_variant, reason = "a box would hide the answer from patterns")]
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
        boot: &'static str,
    },
    /// The own Node for its taint.
    OwnNode,
    /// Writes the boot into the object.
    Renew {
        uid: String,
        version: String,
        boot: &'static str,
    },
    /// The list for [`Ledger::compare`].
    List,
    /// The object for [`Ledger::give_back`].
    Get,
    Delete {
        uid: String,
        version: String,
    },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Object(Option<Claim>),
    Created(Claim),
    Renewed(Claim),
    Taint(Taint),
    /// 409, or 404 for a deletion.
    Refused,
    Deleted,
}

pub(crate) fn block() -> Block {
    Block::of(IpAddr::from([10, 0, 0, 1]), Size::try_from(1).unwrap())
}

pub(crate) fn new_ledger() -> Ledger {
    let (network, domain) = ("net".to_owned(), "lan".to_owned());
    Ledger::new(Network { network, domain, data_dir: "/stores".into(), sets: Vec::new(), link: None })
}

impl World {
    pub(crate) fn new(faults: Faults) -> World {
        let node = |store: &str| Node {
            on: true,
            ledger: new_ledger(),
            store: store.to_owned(),
            used: false,
            answers: false,
            between: false,
            daemon: Daemon::Idle,
        };
        World {
            faults,
            object: None,
            nodes: [node("a1"), node("b1")],
            delayed: Vec::new(),
            taint: Taint::Absent,
            taker: Taker::Idle,
        }
    }

    /// A UID that nobody knows. Forgotten ones come again, so that there are few states.
    fn new_uid(&self) -> String {
        let mut known: Vec<&str> = self.nodes.iter().flat_map(|node| node.ledger.uids()).collect();
        known.extend(self.preconditions().map(|(uid, _)| uid));
        for node in &self.nodes {
            if let Daemon::Has(
                _,
                Answer::Object(Some(claim)) | Answer::Created(claim) | Answer::Renewed(claim),
            ) = &node.daemon
            {
                known.push(&claim.uid);
            }
        }
        unknown(&known)
    }

    /// UIDs and versions of the requests that are on their way or may be sent.
    fn preconditions(&self) -> impl Iterator<Item = (&str, &str)> {
        let waits = self.nodes.iter().filter_map(|node| match &node.daemon {
            Daemon::Idle => None,
            Daemon::Waits(request) | Daemon::Has(request, _) => Some(request),
        });
        let answers = self.nodes.iter().filter_map(|node| match &node.daemon {
            Daemon::Has(_, Answer::Object(Some(claim))) => Some((&*claim.uid, &*claim.version)),
            _ => None,
        });
        let of_requests = self.delayed.iter().chain(waits).filter_map(|request| match request {
            Request::Delete { uid, version } | Request::Renew { uid, version, .. } => {
                Some((&**uid, &**version))
            }
            _ => None,
        });
        let of_taker = match &self.taker {
            Taker::Seen(uid, version) | Taker::Deletes(uid, version) => Some((&**uid, &**version)),
            _ => None,
        };
        of_requests.chain(answers).chain(of_taker)
    }

    /// What the API server does with a request.
    pub(crate) fn serve(&mut self, request: &Request, without: Option<Rule>) -> Answer {
        match request {
            Request::Create { .. } if self.object.is_some() => Answer::Refused,
            Request::Create { node, store, boot } => {
                let claim = Claim {
                    block: block(),
                    uid: self.new_uid(),
                    version: unknown(&[]),
                    node: node.to_string(),
                    store: store.clone(),
                    network: "net".to_owned(),
                    boot: (*boot).to_owned(),
                    machine: String::new(),
                    slot: 0,
                };
                self.object = Some(claim.clone());
                Answer::Created(claim)
            }
            Request::List | Request::Get => Answer::Object(self.object.clone()),
            Request::OwnNode => Answer::Taint(self.taint),
            Request::Renew { uid, version, boot } => {
                let known: Vec<String> =
                    self.preconditions().map(|(_, version)| version.to_owned()).collect();
                let known: Vec<&str> = known.iter().map(String::as_str).chain([&**version]).collect();
                match &mut self.object {
                    Some(object) if object.uid == *uid && object.version == *version => {
                        (object.version, object.boot) = (unknown(&known), (*boot).to_owned());
                        Answer::Renewed(object.clone())
                    }
                    _ => Answer::Refused,
                }
            }
            Request::Delete { uid, version } => match &self.object {
                Some(object)
                    if without == Some(Rule::Uid)
                        || object.uid == *uid
                            && (object.version == *version || without == Some(Rule::Version)) =>
                {
                    self.object = None;
                    Answer::Deleted
                }
                _ => Answer::Refused,
            },
        }
    }
}

fn unknown(known: &[&str]) -> String {
    let all = ["0", "1", "2", "3", "4", "5", "6", "7"];
    all.into_iter().find(|one| !known.contains(one)).unwrap().to_owned()
}
