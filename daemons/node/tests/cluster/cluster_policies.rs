//! ClusterNetworkPolicies whose CRD comes, changes and goes while traffic runs, on one node.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;

use cni_lab::testing::udp_socket;
use serde_json::{Value, json};

use crate::lab::{CLUSTER_POLICIES, Cluster, PORT, wait};
use crate::policies::{Over, figure, knock};

const ARGUMENTS: &str = "--policy on --main ptp --longest-pause 1";
const CRD: &str =
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/clusternetworkpolicies.policy.networking.k8s.io";

/// A tool that gets no answer in so many rounds is silent.
const ROUNDS: usize = 50;

impl Cluster {
    /// The CRD serves this version; `None`: it is gone.
    fn crd(&self, version: Option<&str>) {
        match version {
            None => self.store.delete(CRD),
            Some(name) => {
                let versions = json!([{"name": name, "served": true}]);
                let object = json!({"kind": "CustomResourceDefinition", "spec": {"versions": versions}});
                self.store.put(CRD, object);
            }
        }
        let is_served = version == Some("v1alpha2");
        self.server.faults(|faults| {
            faults.absent.retain(|path| path != CLUSTER_POLICIES);
            faults.absent.extend((!is_served).then(|| CLUSTER_POLICIES.to_owned()));
        });
    }

    /// The same, and the server ends its watches, as a real one does.
    fn new_crd(&self, version: Option<&str>) {
        self.crd(version);
        self.server.kill();
        self.server.revive();
    }

    fn cluster_policy(&self, name: &str, priority: u32, rule: &Value) {
        let spec = json!({"tier": "Admin", "priority": priority,
            "subject": {"namespaces": {"matchLabels": {"team": "shop"}}}, "ingress": [rule]});
        let object = json!({"kind": "ClusterNetworkPolicy", "spec": spec});
        self.store.put(&format!("{CLUSTER_POLICIES}/{name}"), object);
    }
}

#[test]
fn the_crd_comes_changes_and_goes_while_traffic_runs() {
    let mut cluster = Cluster::new();
    for name in ["shop", "tools"] {
        cluster.namespace(name, &json!({"team": name}));
    }
    cluster.a.start(ARGUMENTS);
    cluster.a.until("a conflist", || cluster.a.conflist().is_some());
    let web = cluster.start(&cluster.a, "shop", "web");
    let client = cluster.start(&cluster.a, "shop", "client");
    let tool = cluster.start(&cluster.a, "tools", "tool");
    // Nothing isolates the pods yet, so the API has their addresses.
    for (namespace, name, running) in
        [("shop", "web", &web), ("shop", "client", &client), ("tools", "tool", &tool)]
    {
        cluster.report(namespace, name, running);
    }
    let counted = |a: &crate::member::Member| {
        ["active", "undecided_pods", "cluster_policies"]
            .map(|name| figure(a, &format!("ferrule_node_policy_{name}")))
    };
    wait("all are decided", || counted(&cluster.a), |found| *found == [Some(1), Some(0), Some(0)]);
    let sockets = |from: &cni_lab::Pod| {
        web.addresses.iter().map(|ip| udp_socket(from, (*ip, PORT).into())).collect::<Vec<_>>()
    };
    let (of_client, of_tool) = (sockets(&client.pod), sockets(&tool.pod));
    // The pods' ends of the links stay when the cluster is borrowed anew.
    let pods = (web.pod, client.pod, tool.pod);
    let from_tools = |action: &str| json!({"action": action, "from": [{"namespaces": {"matchLabels": {"team": "tools"}}}]});
    let answers = [const { AtomicUsize::new(0) }; 5];
    let is_over = AtomicBool::new(false);
    let counts = || answers.each_ref().map(|count| count.load(Relaxed));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| knock(&of_client, &answers[..2], &is_over));
        scope.spawn(|| knock(&of_tool, &answers[2..], &is_over));
        let client_goes_on = |what: &str| {
            let before = counts();
            wait(what, counts, |now| now[0] > before[0] && now[1] > before[1]);
        };
        let tool_goes = |what: &str| {
            let before = counts();
            wait(what, counts, |now| now[2] > before[2] && now[3] > before[3]);
        };
        // The client's answers show that the servers run.
        let rounds = |what: &str| {
            let before = counts();
            let are_over = |now: &[usize; 5]| [0, 1, 4].iter().all(|at| now[*at] > before[*at] + ROUNDS);
            wait(what, counts, are_over);
            [before, counts()].map(|counts| [counts[2], counts[3]])
        };
        let tool_is_silent = |what: &str| {
            wait(what, || rounds(what), |[before, now]| before == now);
        };
        // It was silent before.
        let still_silent = |what: &str| {
            let [before, now] = rounds(what);
            assert_eq!(before, now, "{what}: leaks");
            client_goes_on(what);
        };
        client_goes_on("without the CRD");
        tool_goes("without the CRD");
        cluster.cluster_policy("deny", 5, &from_tools("Deny"));
        cluster.new_crd(Some("v1alpha2"));
        tool_is_silent("it comes");
        cluster.cluster_policy("accept", 4, &from_tools("Accept"));
        tool_goes("a lower priority");
        cluster.cluster_policy("accept", 6, &from_tools("Accept"));
        tool_is_silent("a higher one");

        // The daemon is killed, the API server away, and the CRD of another version when both come back.
        cluster.server.kill();
        cluster.a.end("KILL");
        still_silent("without a daemon");
        cluster.a.start(ARGUMENTS);
        wait(
            "503",
            || cluster.a.http("/readyz"),
            |(code, text)| *code == 503 && text.contains("policy-unknown"),
        );
        still_silent("without the API server");
        cluster.crd(Some("v1"));
        cluster.server.revive();
        let why = "the CRD clusternetworkpolicies.policy.networking.k8s.io exists, and serves: v1";
        wait("why", || cluster.a.http("/readyz"), |(code, text)| *code == 503 && text.contains(why));
        still_silent("another version");
        cluster.new_crd(Some("v1alpha2"));
        wait("known again", || counted(&cluster.a), |found| *found == [Some(1), Some(0), Some(2)]);
        still_silent("known again");

        // The running daemon keeps the policies.
        cluster.new_crd(Some("v1"));
        let followed = || figure(&cluster.a, "ferrule_node_policy_followed");
        wait("not followed", followed, |found| *found == Some(0));
        still_silent("not followed");
        assert_eq!(counted(&cluster.a), [Some(1), Some(0), Some(2)]);
        cluster.new_crd(None);
        tool_goes("it is gone");
        wait("none", || counted(&cluster.a), |found| *found == [Some(1), Some(0), Some(0)]);
        client_goes_on("it is gone");

        // It comes in another version, goes, and comes back.
        wait("followed", followed, |found| *found == Some(1));
        cluster.crd(Some("v1"));
        wait("another version comes", followed, |found| *found == Some(0));
        cluster.crd(None);
        wait("it goes again", followed, |found| *found == Some(1));
        cluster.crd(Some("v1alpha2"));
        tool_is_silent("it is back");
        assert_eq!(counted(&cluster.a), [Some(1), Some(0), Some(2)]);
    });
    drop(pods);
}
