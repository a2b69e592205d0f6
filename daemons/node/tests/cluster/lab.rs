//! The hub with the API server, and the three nodes.

use std::cell::Cell;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use cni_lab::testing;
use cni_lab::{Node, Place as _, eventually};
use ferrule_fake_apiserver::{ApiServer, Store};
use serde_json::{Value, json};

use crate::judge;
use crate::member::Member;

/// How long a change may take on a busy test machine.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);
/// A TCP and UDP port of the hub and of each pod.
pub(crate) const PORT: u16 = 80;
/// The hub's addresses on the link of a and b, and on that of c.
pub(crate) const HUB: [[&str; 2]; 2] =
    [["192.0.2.254", "2001:db8::fe"], ["198.51.100.254", "2001:db8:0:2::fe"]];
/// The API server, on the hub.
pub(crate) const API: &str = "http://192.0.2.254:6443";
/// A second API server, which tests start.
pub(crate) const OTHER: &str = "http://192.0.2.254:6444";

pub(crate) struct Cluster {
    pub(crate) hub: Node,
    pub(crate) store: Store,
    pub(crate) server: ApiServer,
    pub(crate) a: Member,
    pub(crate) b: Member,
    pub(crate) c: Member,
    /// Why nobody judges: see [`Cluster::breaks`].
    pub(crate) broken: Cell<Option<&'static str>>,
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            judge::check(self);
        }
    }
}

impl Cluster {
    /// A cluster in which no daemon runs yet.
    pub(crate) fn new() -> Cluster {
        Cluster::of(env!("CARGO_BIN_EXE_ferrule-node").into())
    }

    /// A cluster with another build of the program.
    pub(crate) fn of(program: PathBuf) -> Cluster {
        let hub = Node::new().unwrap();
        hub.sh("ip link add lan type bridge && ip link set lan up
            echo 1 >/proc/sys/net/ipv4/ip_forward; echo 1 >/proc/sys/net/ipv6/conf/all/forwarding")
            .unwrap();
        let [a, b, c] = ["a", "b", "c"].map(|name| Member::new(&hub, name, program.clone()));
        for (link, addresses) in ["lan", "to-c"].into_iter().zip(HUB) {
            let [v4, v6] = addresses;
            hub.sh(&format!("ip addr add {v4}/24 dev {link}; ip addr add {v6}/64 dev {link} nodad")).unwrap();
        }
        testing::serve(&hub, "hub", PORT);
        let store = Store::default();
        for member in [&a, &b, &c] {
            store.put(&node_path(member.name), member.object());
        }
        let server = serve(&hub, &store, API);
        Cluster { hub, store, server, a, b, c, broken: Cell::new(None) }
    }

    /// A cluster whose daemons run and have done their work.
    pub(crate) fn started(arguments: &str) -> Cluster {
        let mut cluster = Cluster::new();
        for member in cluster.members_mut() {
            member.start(arguments);
        }
        cluster.settled();
        cluster
    }

    /// The test leaves the network in a state in which no word can agree with the pods, and why.
    #[allow(dead_code, reason = "for a test that breaks the network in such a way")]
    pub(crate) fn breaks(&self, why: &'static str) {
        self.broken.set(Some(why));
    }

    pub(crate) fn members(&self) -> [&Member; 3] {
        [&self.a, &self.b, &self.c]
    }

    pub(crate) fn members_mut(&mut self) -> [&mut Member; 3] {
        [&mut self.a, &mut self.b, &mut self.c]
    }

    /// Waits until each node has its ways to the others.
    pub(crate) fn settled(&self) {
        for member in self.members() {
            let others = self.members().into_iter().filter(|other| other.name != member.name);
            let expected: Vec<String> = others.flat_map(|other| member.ways_to(other)).collect();
            member.has_routes(&expected);
            member.until("a conflist", || member.conflist().is_some());
        }
    }

    /// Changes a Node object by a merge patch.
    pub(crate) fn patch(&self, name: &str, patch: &Value) {
        self.store.patch(&node_path(name), patch);
    }

    /// The Events that warn about this Node.
    pub(crate) fn warnings(&self, name: &str) -> Vec<Value> {
        let of = |event: &Value| {
            let about =
                if event["regarding"].is_null() { &event["involvedObject"] } else { &event["regarding"] };
            event["type"] == "Warning" && about["kind"] == "Node" && about["name"] == name
        };
        let groups = ["/api/v1/events", "/apis/events.k8s.io/v1/events"];
        groups.iter().flat_map(|path| self.store.list(path)).filter(of).collect()
    }
}

/// The paths of ClusterNetworkPolicies, whose CRD is not there at first.
pub(crate) const CLUSTER_POLICIES: &str = "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies";

/// Starts an API server with the rules of the manifest.
pub(crate) fn serve(hub: &Node, store: &Store, url: &str) -> ApiServer {
    let address: SocketAddr = url.strip_prefix("http://").unwrap().parse().unwrap();
    let server = hub.run(|| ApiServer::start(store, address)).unwrap();
    server.faults(|faults| {
        faults.rules = Some(rules());
        faults.absent = vec![CLUSTER_POLICIES.to_owned()];
    });
    server
}

fn rules() -> Vec<Value> {
    vec![
        json!({"apiGroups": [""], "resources": ["nodes"], "verbs": ["list", "patch", "watch"]}),
        json!({"apiGroups": [""], "resources": ["namespaces", "pods"], "verbs": ["list", "watch"]}),
        json!({"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": ["list", "watch"]}),
        json!({"apiGroups": ["policy.networking.k8s.io"], "resources": ["clusternetworkpolicies"], "verbs": ["list", "watch"]}),
        json!({"apiGroups": ["apiextensions.k8s.io"], "resources": ["customresourcedefinitions"],
            "resourceNames": ["clusternetworkpolicies.policy.networking.k8s.io"], "verbs": ["get"]}),
        json!({"apiGroups": ["", "events.k8s.io"], "resources": ["events"], "verbs": ["create", "patch"]}),
    ]
}

pub(crate) fn node_path(name: &str) -> String {
    format!("/api/v1/nodes/{name}")
}

pub(crate) fn node_object(addresses: &[&str], pod_cidrs: &[&str]) -> Value {
    let addresses: Vec<Value> =
        addresses.iter().map(|address| json!({"type": "InternalIP", "address": address})).collect();
    let conditions = json!([{"type": "Ready", "status": "True"}]);
    json!({"kind": "Node", "apiVersion": "v1", "status": {"addresses": addresses, "conditions": conditions},
        "spec": {"podCIDR": pod_cidrs.first(), "podCIDRs": pod_cidrs}})
}

/// Waits for a condition; `found` is for the message.
pub(crate) fn wait<T: std::fmt::Debug>(
    what: &str,
    mut find: impl FnMut() -> T,
    is_good: impl Fn(&T) -> bool,
) -> T {
    let mut found = find();
    eventually(LIMIT, || {
        found = find();
        is_good(&found)
    });
    assert!(is_good(&found), "not {what}: {found:#?}");
    found
}
