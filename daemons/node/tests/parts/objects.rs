//! Policies, Namespaces and Pods of an API server that is sound, slow or wrong.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser as _;
use cni_lab::eventually;
use ferrule_fake_apiserver::{ApiServer, Faults, Store};
use ferrule_node::api;
use ferrule_node::arguments::Arguments;
use ferrule_node::policy::objects::{self, Key, Kind, Told};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::sync::mpsc::Receiver;
use tokio::time::timeout;

use crate::lab::{LIMIT, runtime};

const PODS: &str = "/api/v1/pods";
const POLICIES: &str = "/apis/networking.k8s.io/v1/networkpolicies";

fn policy(namespace: &str, name: &str) -> String {
    format!("/apis/networking.k8s.io/v1/namespaces/{namespace}/networkpolicies/{name}")
}

const CLUSTER_API: &str = "/apis/policy.networking.k8s.io/";
const CRDS: &str = "/apis/apiextensions.k8s.io/";
const CRD: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusternetworkpolicies.policy.networking.k8s.io";

fn cluster_policy(name: &str) -> String {
    format!("{CLUSTER_API}v1alpha2/clusternetworkpolicies/{name}")
}

fn a_cluster_policy(tier: &str) -> Value {
    json!({"kind": "ClusterNetworkPolicy", "spec": {"tier": tier, "priority": 1, "subject": {"namespaces": {}}}})
}

fn crd(served: &str) -> Value {
    let versions = json!([{"name": "v1alpha1", "served": false}, {"name": served, "served": true}]);
    json!({"kind": "CustomResourceDefinition", "spec": {"versions": versions}})
}

fn pod(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

fn namespace(name: &str) -> String {
    format!("/api/v1/namespaces/{name}")
}

fn a_policy(app: &str) -> Value {
    json!({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1", "spec": {"podSelector": {"matchLabels": {"app": app}}}})
}

fn a_pod(app: &str, node: &str, address: &str) -> Value {
    json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"labels": {"app": app}}, "spec": {"nodeName": node},
        "status": {"phase": "Running", "podIPs": [{"ip": address}]}})
}

fn labelled(team: &str) -> Value {
    json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"labels": {"team": team}}})
}

/// The objects, as the receiver keeps them.
#[derive(Default)]
struct Known {
    /// `app` of policies and pods, the tier, `team` of namespaces; or why the object cannot be read.
    objects: BTreeMap<(Kind, Key), Result<String, String>>,
    lists: [usize; 4],
    states: BTreeMap<Kind, Result<(), String>>,
}

impl Known {
    fn take(&mut self, told: Told) {
        let key = |namespace: &str, name: &str| Key { namespace: namespace.into(), name: name.into() };
        match told {
            Told::Policy(policy) => {
                let at = (Kind::Policies, key(&policy.namespace, &policy.name));
                self.objects.insert(at, policy.unread.map_or(Ok(policy.pods.labels["app"].clone()), Err));
            }
            Told::ClusterPolicy(policy) => {
                let at = (Kind::ClusterPolicies, key(&policy.name, &policy.name));
                self.objects.insert(at, Ok(policy.tier));
            }
            Told::Namespace(namespace) => {
                let at = (Kind::Namespaces, key(&namespace.name, &namespace.name));
                let team = namespace.labels.get("team").map_or("none", String::as_str);
                self.objects.insert(at, Ok(team.to_owned()));
            }
            Told::Pod(pod) => {
                let at = (Kind::Pods, key(&pod.namespace, &pod.name));
                let own = if pod.local { "own " } else { "" };
                self.objects.insert(at, Ok(format!("{own}{}", pod.labels["app"])));
            }
            Told::Gone(kind, key) => drop(self.objects.remove(&(kind, key))),
            Told::Unread(kind, key, why) => drop(self.objects.insert((kind, key), Err(why))),
            Told::Listed(kind, names) => {
                self.objects.retain(|(of, key), _| *of != kind || names.has(&key.namespace, &key.name));
                self.lists[kind as usize] += 1;
            }
            Told::State(kind, state) => drop(self.states.insert(kind, state)),
        }
    }

    /// `Pods shop/web: own web`, and so on.
    fn text(&self) -> Vec<String> {
        let text = |((kind, key), said): (&(Kind, Key), &Result<String, String>)| match said {
            Ok(said) => format!("{kind} {key}: {said}"),
            Err(why) => format!("{kind} {key}: unread: {why}"),
        };
        self.objects.iter().map(text).collect()
    }
}

struct World {
    runtime: Runtime,
    store: Store,
    server: ApiServer,
    told: Receiver<Told>,
    known: Known,
    _folder: TempDir,
}

impl World {
    fn new(store: Store, idle: &str, faults: impl FnOnce(&mut Faults)) -> World {
        let server = ApiServer::start(&store, ([127, 0, 0, 1], 0).into());
        server.faults(faults);
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = folder.path().join("config");
        let text = json!({"current-context": "test", "clusters": [{"name": "test", "cluster": {"server": server.url()}}],
            "users": [{"name": "test", "user": {}}], "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
        fs::write(&kubeconfig, text.to_string()).unwrap();
        let words =
            ["x", "--longest-pause", "1", "--watch-idle", idle, "--kubeconfig", kubeconfig.to_str().unwrap()];
        let options = Arguments::parse_from(words).options;
        let (runtime, (sender, told)) = (runtime(), objects::channel());
        runtime.spawn(api::follow_objects(options, "n1".to_owned(), Arc::default(), sender, false));
        World { runtime, store, server, told, known: Known::default(), _folder: folder }
    }

    /// Takes messages until the condition holds.
    fn until(&mut self, what: &str, mut condition: impl FnMut(&Known) -> bool) {
        let end = Instant::now() + LIMIT;
        while !condition(&self.known) {
            let left = end.saturating_duration_since(Instant::now());
            let told = self.runtime.block_on(async { timeout(left, self.told.recv()).await });
            let Ok(Some(told)) = told else {
                panic!("not: {what}: {:#?} {:?} {:?}", self.known.text(), self.known.lists, self.known.states)
            };
            self.known.take(told);
        }
    }

    fn knows(&mut self, expected: &[&str]) {
        self.until(&format!("{expected:?}"), |known| known.text() == expected);
    }
}

fn small() -> Store {
    let store = Store::default();
    store.put(&namespace("shop"), labelled("a"));
    store.put(&policy("shop", "db"), a_policy("db"));
    store.put(&pod("shop", "web"), a_pod("web", "n1", "10.0.0.1"));
    store.put(&pod("shop", "db"), a_pod("db", "n2", "10.0.0.2"));
    store
}

const SMALL: [&str; 4] =
    ["NetworkPolicies shop/db: db", "Namespaces shop: a", "Pods shop/db: db", "Pods shop/web: own web"];

#[test]
fn each_change_is_told_and_a_reset_costs_no_list() {
    let mut world = World::new(small(), "60", |_| {});
    world.until("all lists", |known| known.lists == [1; 4]);
    world.knows(&SMALL);
    let change = |store: &Store| {
        store.delete(&pod("shop", "db"));
        store.patch(&namespace("shop"), &json!({"metadata": {"labels": {"team": "b"}}}));
        store.put(&policy("shop", "all"), a_policy("x"));
        store.delete(&policy("shop", "db"));
        store.patch(&pod("shop", "web"), &json!({"metadata": {"labels": {"app": "other"}}}));
    };
    let changed = ["NetworkPolicies shop/all: x", "Namespaces shop: b", "Pods shop/web: own other"];
    change(&world.store);
    world.knows(&changed);
    // Away, and what happens meanwhile.
    world.server.kill();
    world.until("away", |known| known.states.values().filter(|state| state.is_err()).count() == 4);
    world.store.put(&pod("shop", "new"), a_pod("new", "n3", "10.0.0.3"));
    world.server.revive();
    world.knows(&[
        "NetworkPolicies shop/all: x",
        "Namespaces shop: b",
        "Pods shop/new: new",
        "Pods shop/web: own other",
    ]);
    world.until("works", |known| known.states.values().all(Result::is_ok));
    let requests = world.server.requests();
    let lists: Vec<_> = requests.iter().filter(|request| request.verb == "list").collect();
    assert!(lists.iter().all(|list| list.query["resourceVersion"] == "0"), "from the cache: {lists:?}");
    assert_eq!((lists.len(), world.known.lists), (4, [1; 4]));
}

#[test]
fn faults_and_their_end() {
    let mut world = World::new(small(), "2", |_| {});
    world.knows(&SMALL);
    type Fault = (&'static str, fn(&mut Faults));
    let table: [Fault; 7] = [
        ("500", |faults| faults.code = Some(500)),
        ("no permission", |faults| faults.rules = Some(Vec::new())),
        ("no such resource", |faults| faults.absent = vec![POLICIES.to_owned(), PODS.to_owned()]),
        ("a redirected list", |faults| faults.proxy = Some(("list", 302, "moved"))),
        ("no list", |faults| faults.proxy = Some(("list", 200, "{\"metadata\":{},\"items\":null}"))),
        ("no watch", |faults| faults.proxy = Some(("watch", 200, "<html>\n"))),
        ("a mute watch", |faults| faults.mute = true),
    ];
    for (what, fault) in table {
        println!("{what}");
        world.server.faults(fault);
        world.server.kill();
        world.server.revive();
        // The history is gone: only a list has the change.
        world.store.delete(&pod("shop", "db"));
        world.store.put(&policy("shop", "new"), a_policy("new"));
        world.store.forget();
        if what != "a mute watch" {
            world.until("a word", |known| known.states.get(&Kind::Pods).is_some_and(Result::is_err));
        }
        world.server.faults(|faults| *faults = Faults::default());
        world.knows(&["NetworkPolicies shop/db: db", "NetworkPolicies shop/new: new", SMALL[1], SMALL[3]]);
        world.store.put(&pod("shop", "db"), a_pod("db", "n2", "10.0.0.2"));
        world.store.delete(&policy("shop", "new"));
        world.knows(&SMALL);
    }
}

#[test]
fn a_slow_kind_delays_no_other() {
    let mut world = World::new(small(), "60", |faults| (faults.of, faults.hang) = (PODS.to_owned(), true));
    world.until("the other lists", |known| known.lists == [1, 1, 1, 0]);
    world.store.delete(&policy("shop", "db"));
    world.knows(&["Namespaces shop: a"]);
    assert_eq!(world.known.lists, [1, 1, 1, 0]);
}

/// A 404 alone does not prove it.
#[test]
fn the_crd_of_cluster_policies_comes_changes_and_goes() {
    let lacks = |faults: &mut Faults| faults.absent = vec![CLUSTER_API.to_owned()];
    let mut world = World::new(small(), "60", lacks);
    let state_of = |known: &Known| known.states.get(&Kind::ClusterPolicies).cloned();
    world.until("a list without the kind", |known| known.lists == [1; 4] && state_of(known) == Some(Ok(())));
    world.knows(&SMALL);
    // It asks again and again.
    let count = |world: &World, is: &dyn Fn(&str) -> bool| {
        world.server.requests().iter().filter(|request| is(&request.path)).count()
    };
    let before = count(&world, &|path| path.starts_with(CLUSTER_API));
    let asks_again = || {
        world.runtime.block_on(async { tokio::time::sleep(Duration::from_millis(10)).await });
        count(&world, &|path| path.starts_with(CLUSTER_API)) > before + 1
    };
    assert!(eventually(LIMIT, asks_again));
    // It comes with another version, then with ours.
    world.store.put(CRD, crd("v1"));
    let serves = "exists, and serves: v1";
    world.until(serves, |known| {
        state_of(known).is_some_and(|state| state.is_err_and(|why| why.contains(serves)))
    });
    world.store.put(CRD, crd("v1alpha2"));
    world.store.put(&cluster_policy("deny"), a_cluster_policy("Admin"));
    world.server.faults(|faults| faults.absent.clear());
    let with = |tier: &str| {
        let mut all: Vec<String> = SMALL.map(str::to_owned).into();
        all.insert(1, format!("ClusterNetworkPolicies deny: {tier}"));
        all
    };
    world.until("the policy", |known| known.text() == with("Admin"));
    world.store.put(&cluster_policy("deny"), a_cluster_policy("Baseline"));
    world.until("its change", |known| known.text() == with("Baseline"));
    // Other versions, no proof, no permission: the policy stays.
    for (absent, served, rules, said) in [
        (&[CLUSTER_API][..], "v1", None, "exists, and serves: v1"),
        (
            &[CLUSTER_API, CRDS],
            "v1alpha2",
            None,
            "read the CRD clusternetworkpolicies.policy.networking.k8s.io",
        ),
        (&[], "v1alpha2", Some(Vec::new()), "ClusterNetworkPolicies: the API server answers 403"),
    ] {
        let lists = world.known.lists[Kind::ClusterPolicies as usize];
        world.store.put(CRD, crd(served));
        world.server.faults(|faults| {
            faults.absent = absent.iter().map(|path| path.to_string()).collect();
            faults.rules = rules;
        });
        world.server.kill();
        world.store.forget();
        world.server.revive();
        world.until(said, |known| {
            state_of(known).is_some_and(|state| state.is_err_and(|why| why.contains(said)))
        });
        assert_eq!(
            (world.known.text(), world.known.lists[Kind::ClusterPolicies as usize]),
            (with("Baseline"), lists)
        );
        world.server.faults(|faults| *faults = Faults::default());
        world.until("works again", |known| {
            known.lists[Kind::ClusterPolicies as usize] > lists && state_of(known) == Some(Ok(()))
        });
    }
    // It goes, without a word about its objects.
    world.store.delete(CRD);
    world.server.faults(lacks);
    world.server.kill();
    world.server.revive();
    world.knows(&SMALL);
    world.until("works", |known| state_of(known) == Some(Ok(())));
}

#[test]
fn what_cannot_be_read_is_told() {
    let store = small();
    let large = "x".repeat(9 << 20);
    let put = |store: &Store| {
        store.patch(&pod("shop", "db"), &json!({"metadata": {"zz": large}}));
        store.patch(&policy("shop", "db"), &json!({"spec": {"ingress": [{"ports": "all"}]}}));
        store.patch(&namespace("shop"), &json!({"metadata": {"labels": {"x": "y".repeat(20_000)}}}));
    };
    let expected = |world: &mut World| {
        let texts = [
            ("NetworkPolicies shop/db: unread: ", "expected a sequence"),
            ("Namespaces shop: none", ""),
            ("Pods shop/db: unread: ", "it has more than 8388608 bytes"),
            ("Pods shop/web: own web", ""),
        ];
        let is_so = |known: &Known| {
            let text = known.text();
            text.len() == 4
                && text
                    .iter()
                    .zip(texts)
                    .all(|(text, (begin, rest))| text.starts_with(begin) && text.contains(rest))
        };
        world.until("unread objects", is_so);
    };
    // In a watch, and in a list.
    let mut world = World::new(store.clone(), "60", |_| {});
    world.knows(&SMALL);
    put(&world.store);
    expected(&mut world);
    assert_eq!(world.known.lists, [1; 4]);
    expected(&mut World::new(store.clone(), "60", |_| {}));
    // And back.
    world.store.delete(&pod("shop", "db"));
    world.store.put(&pod("shop", "db"), a_pod("db", "n2", "10.0.0.2"));
    world.store.put(&policy("shop", "db"), a_policy("db"));
    world.store.put(&namespace("shop"), labelled("a"));
    world.knows(&SMALL);
}
