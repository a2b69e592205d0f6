use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use ferrule_kernel::ip::IpFamily;

use super::*;
use crate::api::READY;
use crate::cluster::{Peer, Peers, Refusal};
use crate::plan::{Plan, State, Way};
use crate::proof::{Proof, Proofs};

/// Long after the start of the daemon.
const NOW: u64 = 1_000_000;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

fn proved() -> Proof {
    Proof::Proved { at: at(NOW - 5) }
}

fn lost(since: u64) -> Proof {
    Proof::Lost { since: at(since), why: "no answer".into() }
}

/// What a daemon knows, for tests to change.
struct Scene {
    now: u64,
    unknown: Option<&'static str>,
    is_deleted: bool,
    problems: BTreeMap<&'static str, String>,
    conflist: Conflist,
    plan: Plan,
    peers: Peers,
    proofs: Proofs,
}

impl Scene {
    /// All is well: nodes of these names, with both families.
    fn new(names: &[&str]) -> Scene {
        let networks: Vec<ipnetwork::IpNetwork> =
            ["10.0.0.0/24", "fd00::/64"].map(|text| text.parse().unwrap()).to_vec();
        let states: Vec<_> = networks.iter().map(|network| (*network, State::Way(Way::WireGuard))).collect();
        let peer = Peer { is_ready: true, networks, ..Peer::default() };
        let all = || names.iter().map(|name| (*name).to_owned());
        let both = || IpFamily::ALL.map(|family| (family, proved())).into();
        Scene {
            now: NOW,
            unknown: None,
            is_deleted: false,
            problems: BTreeMap::new(),
            conflist: Conflist::First,
            plan: Plan { nodes: all().map(|name| (name, states.clone())).collect(), ..Plan::default() },
            peers: all().map(|name| (name, peer.clone())).collect(),
            proofs: Proofs {
                local: both(),
                peers: all().map(|name| (name, both())).collect(),
                ..Proofs::none()
            },
        }
    }

    fn look(&self, book: &mut Book) -> Verdict {
        let facts = Facts {
            now: at(self.now),
            unknown: self.unknown,
            is_deleted: self.is_deleted,
            problems: &self.problems,
            notes: &[],
            conflist: &self.conflist,
            plan: &self.plan,
            peers: &self.peers,
            proofs: &self.proofs,
            patience: Duration::from_secs(60),
        };
        look(&facts, book)
    }

    fn verdict(&self) -> Verdict {
        self.look(&mut Book::default())
    }

    fn lose(&mut self, name: &str, families: &[IpFamily]) {
        for family in families {
            self.proofs.peers.get_mut(name).unwrap().insert(*family, lost(NOW - 100));
        }
    }
}

fn said(verdict: &Verdict) -> (Word, Vec<(Code, &str)>) {
    (verdict.word, verdict.reasons.iter().map(|reason| (reason.code, reason.about.as_str())).collect())
}

#[test]
fn the_word_of_each_trouble() {
    type Trouble = fn(&mut Scene);
    type Reasons = [(Code, &'static str)];
    let table: &[(&str, Trouble, Word, &Reasons)] = &[
        ("none", |_| {}, Word::Ready, &[]),
        (
            "new",
            |scene| (scene.unknown, scene.proofs) = (Some("no answer"), Proofs::none()),
            Word::Waiting,
            &[(Code::Api, "")],
        ),
        ("no Node object", |scene| scene.is_deleted = true, Word::NotReady, &[(Code::Node, "")]),
        ("no proof yet", |scene| scene.proofs.local.clear(), Word::Waiting, &[(Code::Unproved, "")]),
        (
            "no endpoint here, and older nodes",
            |scene| {
                let unknown = || Proof::Unknown("it is off".into());
                scene.proofs.local.values_mut().for_each(|proof| *proof = unknown());
                scene
                    .proofs
                    .peers
                    .values_mut()
                    .flat_map(BTreeMap::values_mut)
                    .for_each(|proof| *proof = unknown());
            },
            Word::Ready,
            &[],
        ),
        ("no node is known to the endpoint", |scene| scene.proofs.peers.clear(), Word::Ready, &[]),
        (
            "one family here",
            |scene| drop(scene.proofs.local.insert(IpFamily::V6, lost(NOW))),
            Word::Degraded,
            &[(Code::LocalFamily, "IPv6")],
        ),
        (
            "the only known family here",
            |scene| {
                scene.proofs.local.insert(IpFamily::V4, Proof::Unknown("no address".into()));
                scene.proofs.local.insert(IpFamily::V6, lost(NOW));
            },
            Word::NotReady,
            &[(Code::Local, "IPv6")],
        ),
        (
            "both families here",
            |scene| scene.proofs.local.values_mut().for_each(|proof| *proof = lost(NOW)),
            Word::NotReady,
            &[(Code::Local, "IPv4"), (Code::Local, "IPv6")],
        ),
        (
            "a part",
            |scene| drop(scene.problems.insert("vxlan", "E".into())),
            Word::NotReady,
            &[(Code::Vxlan, "")],
        ),
        (
            "a part without a code, so the conflist is not written",
            |scene| {
                scene.problems.insert("x", "E".into());
                scene.conflist = Conflist::Missing("not written".into());
            },
            Word::NotReady,
            &[(Code::Part, "x")],
        ),
        (
            "no conflist",
            |scene| scene.conflist = Conflist::Missing("not written".into()),
            Word::NotReady,
            &[(Code::Conflist, "")],
        ),
        (
            "another file is first",
            |scene| scene.conflist = Conflist::After("/x/05.conf".into()),
            Word::NotReady,
            &[(Code::First, "")],
        ),
        (
            "a node in one family, beside a wrong Node object",
            |scene| {
                scene.lose("b", &[IpFamily::V4]);
                let (node, what, why) = ("bad".into(), "10.0.0.0/8".into(), "it is so".into());
                scene.plan.refusals.insert(Refusal { node, what, why });
            },
            Word::Degraded,
            &[(Code::Peer, "b"), (Code::Refused, "bad 10.0.0.0/8")],
        ),
        (
            "one family of all nodes",
            |scene| ["b", "c", "d"].iter().for_each(|name| scene.lose(name, &[IpFamily::V6])),
            Word::Degraded,
            &[(Code::Peer, "b"), (Code::Peer, "c"), (Code::Peer, "d")],
        ),
        (
            "two nodes of three",
            |scene| ["b", "c"].iter().for_each(|name| scene.lose(name, &IpFamily::ALL)),
            Word::Degraded,
            &[(Code::Peer, "b"), (Code::Peer, "c")],
        ),
        (
            "all nodes",
            |scene| ["b", "c", "d"].iter().for_each(|name| scene.lose(name, &IpFamily::ALL)),
            Word::NotReady,
            &[(Code::Peers, "")],
        ),
        (
            "all nodes that are Ready are too few",
            |scene| {
                ["b", "c", "d"].iter().for_each(|name| scene.lose(name, &IpFamily::ALL));
                scene.peers.get_mut("d").unwrap().is_ready = false;
            },
            Word::Degraded,
            &[(Code::Peer, "b"), (Code::Peer, "c")],
        ),
    ];
    for (what, trouble, word, reasons) in table {
        let mut scene = Scene::new(&["b", "c", "d"]);
        trouble(&mut scene);
        assert_eq!(said(&scene.verdict()), (*word, reasons.to_vec()), "{what}");
    }
}

#[test]
fn nodes_that_are_not_ready_new_or_starting_again_are_not_lost() {
    let mut scene = Scene::new(&["b", "c", "d"]);
    let mut book = Book::default();
    assert_eq!(scene.look(&mut book).word, Word::Ready);
    let standing = |verdict: &Verdict| verdict.peers["b"].key();
    // It starts again: first nobody has noticed, then its Node is not Ready, then it is Ready again.
    scene.lose("b", &IpFamily::ALL);
    scene.proofs.peers.get_mut("b").unwrap().values_mut().for_each(|proof| *proof = lost(NOW));
    for (now, is_ready, expected, word) in [
        (NOW + 30, true, "restarting", Word::Ready),
        (NOW + 61, true, "lost", Word::Degraded),
        (NOW + 62, false, "not_ready", Word::Ready),
        (NOW + 600, true, "restarting", Word::Ready),
        (NOW + 659, true, "restarting", Word::Ready),
        (NOW + 660, true, "lost", Word::Degraded),
    ] {
        (scene.now, scene.peers.get_mut("b").unwrap().is_ready) = (now, is_ready);
        let verdict = scene.look(&mut book);
        assert_eq!((standing(&verdict), verdict.word), (expected, word), "{now}");
        assert_eq!(verdict.is_unsettled, expected == "restarting");
    }
    // It registers again, and has not answered since.
    scene.peers.get_mut("b").unwrap().uid = "2".into();
    assert_eq!(standing(&scene.look(&mut book)), "new");
    scene.now += 299;
    assert_eq!(standing(&scene.look(&mut book)), "new");
    scene.now += 1;
    assert_eq!(standing(&scene.look(&mut book)), "lost");
    // A daemon that starts sees how old the others are.
    let mut begin = Book::default();
    assert_eq!(standing(&scene.look(&mut begin)), "lost");
    let created = humantime::format_rfc3339_seconds(at(scene.now - 100)).to_string();
    scene.peers.get_mut("b").unwrap().created = created;
    assert_eq!(standing(&scene.look(&mut Book::default())), "new");
    // It is deleted.
    scene.plan.nodes.remove("b");
    let verdict = scene.look(&mut book);
    assert_eq!((verdict.word, verdict.peers.len()), (Word::Ready, 2));
}

#[test]
fn a_node_that_is_ready_and_has_no_way_for_long() {
    let mut scene = Scene::new(&["b", "c", "d"]);
    let mut book = Book::default();
    scene.look(&mut book);
    for states in scene.plan.nodes.values_mut() {
        states.iter_mut().for_each(|(_, state)| *state = State::Waits("no route".into()));
    }
    let verdict = scene.look(&mut book);
    assert_eq!((verdict.word, verdict.is_unsettled), (Word::Ready, true));
    scene.now += 60;
    assert_eq!(said(&scene.look(&mut book)), (Word::NotReady, vec![(Code::Peers, "")]));
    scene.peers.get_mut("b").unwrap().is_ready = false;
    assert_eq!(said(&scene.look(&mut book)).1, [(Code::Waits, "c"), (Code::Waits, "d")]);
}

#[test]
fn many_reasons_are_counted() {
    let mut scene = Scene::new(&[]);
    for number in 0..500 {
        let (node, what, why) = (format!("bad{number}"), "10.0.0.0/8".into(), "it is so".into());
        scene.plan.refusals.insert(Refusal { node, what, why });
    }
    let verdict = scene.verdict();
    assert_eq!((verdict.reasons.len(), verdict.counts[&Code::Refused]), (21, 500));
    assert_eq!(verdict.reasons[20].text, "… and 480 more");
    let events = Told::default().news("a", &verdict, at(NOW));
    assert!(
        events.len() == 20 && events.iter().all(|event| event.about.to_string().starts_with("node bad")),
        "{events:?}"
    );
}

#[test]
fn each_change_has_one_event() {
    let mut scene = Scene::new(&["b", "c", "d"]);
    let (mut book, mut told) = (Book::default(), Told::default());
    let mut news = |scene: &Scene, node: &str| {
        let events = told.news(node, &scene.look(&mut book), at(NOW));
        events.into_iter().map(|event| (event.about.to_string(), event.reason)).collect::<Vec<_>>()
    };
    let none: [(String, &str); 0] = [];
    assert_eq!(news(&scene, "a"), none);
    scene.lose("b", &IpFamily::ALL);
    assert_eq!(news(&scene, "a"), [("node b".to_owned(), "PodNetworkDegraded")]);
    assert_eq!(news(&scene, "a"), none);
    scene.problems.insert("vxlan", "E".into());
    assert_eq!(news(&scene, "a"), [("node a".to_owned(), "PodNetworkNotReady")]);
    scene.problems.insert("vxlan", "another text".into());
    assert_eq!(news(&scene, "a"), none);
    scene.problems.clear();
    assert_eq!(news(&scene, "a"), none);
    scene.lose("b", &[]);
    scene.proofs.peers.get_mut("b").unwrap().values_mut().for_each(|proof| *proof = proved());
    assert_eq!(news(&scene, "a"), [("node a".to_owned(), READY)]);
    assert_eq!(news(&scene, "a"), none);
    scene.proofs.local.clear();
    assert_eq!(news(&scene, "a"), none, "waiting has no event");
    // Another node names the same fault alike.
    scene.lose("b", &IpFamily::ALL);
    let of = |node| Told::default().news(node, &scene.verdict(), at(NOW)).remove(0);
    let fault = |node| (of(node).about, of(node).reason, of(node).fault);
    assert_eq!(fault("a"), fault("c"));
}

#[test]
fn the_words_are_those_of_the_readme() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("README.md");
    let readme = fs::read_to_string(path).unwrap();
    let mut keys = BTreeSet::new();
    for code in Code::ALL {
        assert!(keys.insert(code.key()), "{} twice", code.key());
        let begin = format!("| `{}` | {} | ", code.key(), code.word());
        let row = readme.lines().find(|line| line.starts_with(&begin));
        let row = row.unwrap_or_else(|| panic!("README.md has no row {begin}"));
        assert!(
            row.ends_with(&format!(" | {} |", code.remedy().replace('|', "\\|"))),
            "{row}\n{}",
            code.remedy()
        );
    }
    assert_eq!(Code::of_part("vxlan"), Code::Vxlan);
    assert_eq!(Code::of_part("nothing"), Code::Part);
}
