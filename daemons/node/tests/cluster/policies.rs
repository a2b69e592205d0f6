//! NetworkPolicies on three nodes, with pods that a kubelet would have started.

mod denied;

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread::{self, sleep};
use std::time::Duration;

use cni_lab::Place;
use cni_lab::testing::{ask, silent, udp_socket};
use cni_runner::Attachment;
use serde_json::{Value, json};

use crate::lab::{Cluster, PORT, wait};
use crate::member::{Member, Running};

const POLICY: &str = "/apis/networking.k8s.io/v1/namespaces/shop/networkpolicies/web";
const TICK: Duration = Duration::from_millis(2);

fn pod_path(namespace: &str, name: &str) -> String {
    format!("/api/v1/namespaces/{namespace}/pods/{name}")
}

impl Cluster {
    pub(crate) fn namespace(&self, name: &str, labels: &Value) {
        let object = json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"labels": labels}});
        self.store.put(&format!("/api/v1/namespaces/{name}"), object);
    }

    pub(crate) fn policy(&self, spec: &Value) {
        let object = json!({"kind": "NetworkPolicy", "apiVersion": "networking.k8s.io/v1", "spec": spec});
        self.store.put(POLICY, object);
    }

    /// The scheduler's part, then the runtime's. The label `app` is the name.
    pub(crate) fn start<'m>(&self, member: &'m Member, namespace: &str, name: &str) -> Running<'m> {
        self.start_with(member, namespace, name, |attachment| attachment)
    }

    /// As [`Cluster::start`], with capabilities.
    fn start_with<'m>(
        &self,
        member: &'m Member,
        namespace: &str,
        name: &str,
        with: impl FnOnce(Attachment) -> Attachment,
    ) -> Running<'m> {
        let object = json!({"kind": "Pod", "apiVersion": "v1", "metadata": {"labels": {"app": name}},
            "spec": {"nodeName": member.name}, "status": {"phase": "Pending"}});
        self.store.put(&pod_path(namespace, name), object);
        let uid = self.store.get(&pod_path(namespace, name)).unwrap()["metadata"]["uid"].clone();
        let args = format!(
            "IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name};K8S_POD_UID={}",
            uid.as_str().unwrap()
        );
        member.pod_with(name, |attachment| with(attachment.with_args(args)))
    }

    /// The kubelet's part, some seconds later: the other nodes learn the addresses.
    pub(crate) fn report(&self, namespace: &str, name: &str, running: &Running<'_>) {
        let addresses: Vec<Value> =
            running.addresses.iter().map(|ip| json!({"ip": ip.to_string()})).collect();
        let status = json!({"phase": "Running", "podIP": addresses[0]["ip"], "podIPs": addresses});
        self.store.patch(&pod_path(namespace, name), &json!({"status": status}));
    }
}

/// Who tries by TCP, and whether an answer must come.
type Try<'a> = (&'a str, &'a (dyn Fn(SocketAddr, bool) -> bool + Sync), bool);

fn end<P: Place + Sync>(place: &P) -> impl Fn(SocketAddr, bool) -> bool + Sync {
    move |to, passes| if passes { ask(place, "tcp", to).is_ok() } else { silent(place, "tcp", to) }
}

/// All of the tries at the same time, in both families.
fn tries(round: &str, to: &[IpAddr], all: &[Try<'_>]) {
    let wrong: Vec<String> = thread::scope(|scope| {
        let mut runs = Vec::new();
        for (who, end, passes) in all {
            for ip in to {
                runs.push(scope.spawn(move || {
                    let is_right = end(SocketAddr::new(*ip, PORT), *passes);
                    (!is_right).then(|| format!("{who} to {ip}: not {passes}"))
                }));
            }
        }
        runs.into_iter().filter_map(|run| run.join().unwrap()).collect()
    });
    assert!(wrong.is_empty(), "{round}: {wrong:#?}");
}

pub(crate) fn figure(member: &Member, name: &str) -> Option<u64> {
    let (_, text) = member.http("/metrics");
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok())
}

/// Waits until the node's policies are as these figures say.
pub(crate) fn until(member: &Member, undecided: u64, isolated: u64) {
    let names = ["active", "undecided_pods", "isolated_addresses"];
    wait(
        &format!("{}: {undecided} undecided, {isolated} isolated", member.name),
        || names.map(|name| figure(member, &format!("ferrule_node_policy_{name}"))),
        |found| *found == [Some(1), Some(undecided), Some(isolated)],
    );
}

/// Ends [`knock`], also if an assertion fails.
pub(crate) struct Over<'a>(pub(crate) &'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Relaxed);
    }
}

/// Sends in turns to UDP servers, and counts the answers, and behind these its rounds.
pub(crate) fn knock(sockets: &[UdpSocket], answers: &[AtomicUsize], is_over: &AtomicBool) {
    sockets.iter().for_each(|socket| socket.set_nonblocking(true).unwrap());
    while !is_over.load(Relaxed) {
        for (socket, count) in sockets.iter().zip(answers) {
            let _ = socket.send(b"?");
            while socket.recv(&mut [0; 64]).is_ok() {
                count.fetch_add(1, Relaxed);
            }
        }
        if let Some(rounds) = answers.get(sockets.len()) {
            rounds.fetch_add(1, Relaxed);
        }
        sleep(TICK);
    }
}

#[test]
fn policies_hold_on_three_nodes_whatever_is_away() {
    let mut cluster = Cluster::new();
    for name in ["shop", "open"] {
        cluster.namespace(name, &json!({}));
    }
    cluster.namespace("tools", &json!({"team": "ops"}));
    let from = json!([{"podSelector": {"matchLabels": {"app": "client"}}},
        {"namespaceSelector": {"matchLabels": {"team": "ops"}}}]);
    cluster.policy(&json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"from": from}]}));
    for member in cluster.members_mut() {
        member.start("--policy on --main ptp");
    }
    cluster.settled();
    let Cluster { a, b, c, .. } = &cluster;
    for member in [a, b, c] {
        until(member, 0, 0);
    }
    // The others' addresses come from their status, the own one from the announcement.
    let web = cluster.start(a, "shop", "web");
    let (client, tool, other) = (
        cluster.start(b, "shop", "client"),
        cluster.start(c, "tools", "tool"),
        cluster.start(b, "open", "other"),
    );
    for (namespace, name, running) in
        [("shop", "client", &client), ("tools", "tool", &tool), ("open", "other", &other)]
    {
        cluster.report(namespace, name, running);
    }
    until(a, 0, 2);
    until(b, 0, 0);
    let to = &web.addresses;
    let ends =
        (end(&client.pod), end(&tool.pod), end(&other.pod), end(&a.node), end(&b.node), end(&cluster.hub));
    let (of_client, of_tool, of_other, of_a, of_b, of_hub) = &ends;
    wait("the client's address is known", || ask(&client.pod, "tcp", (to[0], PORT).into()), Result::is_ok)
        .unwrap();
    wait("the tool's address is known", || ask(&tool.pod, "tcp", (to[1], PORT).into()), Result::is_ok)
        .unwrap();
    let usual: [Try<'_>; 6] = [
        ("client", of_client, true),
        ("tool", of_tool, true),
        ("other", of_other, false),
        ("its own node", of_a, true),
        ("another node", of_b, false),
        ("outside", of_hub, false),
    ];
    tries("at first", to, &usual);
    tries("from the pod", &client.addresses, &[("web", &end(&web.pod), true)]);

    cluster.report("shop", "web", &web);

    // A label of a namespace.
    cluster.store.patch("/api/v1/namespaces/tools", &json!({"metadata": {"labels": {"team": "other"}}}));
    let tool_asks = || silent(&tool.pod, "tcp", (to[0], PORT).into());
    wait("the tool is silent", tool_asks, |is_silent| *is_silent);
    tries("relabelled", to, &[("client", of_client, true), ("tool", of_tool, false)]);
    cluster.store.patch("/api/v1/namespaces/tools", &json!({"metadata": {"labels": {"team": "ops"}}}));
    wait("the tool may again", tool_asks, |is_silent| !*is_silent);
    drop(ends);
    let (to, pods) = (web.addresses.clone(), [web.pod, client.pod, tool.pod, other.pod]);
    away(&mut cluster, &to, &pods);
}

/// Daemon and API server end, and come back, in the middle of traffic.
fn away(cluster: &mut Cluster, to: &[IpAddr], pods: &[cni_lab::Pod; 4]) {
    let [_, client, tool, other] = pods;
    let socket =
        |from: &cni_lab::Pod| to.iter().map(|ip| udp_socket(from, (*ip, PORT).into())).collect::<Vec<_>>();
    let (allowed, denied) = (socket(client), socket(other));
    let answers = [const { AtomicUsize::new(0) }; 4];
    let is_over = AtomicBool::new(false);
    let counts = || answers.each_ref().map(|count| count.load(Relaxed));
    thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| knock(&allowed, &answers[..2], &is_over));
        scope.spawn(|| knock(&denied, &answers[2..], &is_over));
        let goes_on = |what: &str| {
            let before = counts();
            wait(what, counts, |now| now[0] > before[0] && now[1] > before[1]);
            assert_eq!(counts()[2..], [0, 0], "{what}: leaks");
        };
        goes_on("at first");
        cluster.server.kill();
        cluster.a.end("KILL");
        goes_on("without a daemon");
        // The table of the ended daemon holds, and so does the plugin.
        let late = {
            let args = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=late;K8S_POD_UID=late";
            cluster.a.try_pod_with("late", args).unwrap()
        };
        cluster.a.start("--policy on --main ptp");
        wait(
            "503",
            || cluster.a.http("/readyz"),
            |(code, text)| *code == 503 && text.contains("policy-unknown"),
        );
        wait(
            "one is undecided",
            || figure(&cluster.a, "ferrule_node_policy_undecided_pods"),
            |found| *found == Some(1),
        );
        goes_on("without the API server");
        assert!(silent(client, "udp", (late.1[0], PORT).into()));
        cluster.server.revive();
        // Its object never comes: it stays closed.
        until(&cluster.a, 1, 2);
        goes_on("with both again");
        cluster.a.sh("nft flush ruleset");
        goes_on("flushed");
    });
    let of_tool = end(tool);
    let of_other = end(other);
    let of_client = end(client);
    tries(
        "again",
        to,
        &[("client", &of_client, true), ("tool", &of_tool, true), ("other", &of_other, false)],
    );
    // Off: nobody is left behind a table.
    cluster.a.end("TERM");
    cluster.a.start("--main ptp");
    cluster.a.until("off", || !cluster.a.sh("nft list tables").contains("ferrule_po"));
    tries("off", to, &[("client", &of_client, true), ("tool", &of_tool, true), ("other", &of_other, true)]);
}
