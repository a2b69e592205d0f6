//! A node of the cluster, with its daemon.

use std::fs;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::Duration;

use cni_lab::testing::{ask, ips_of, routes, serve};
use cni_lab::{Background, Node, Place as _, Pod, bin_dir, eventually};
use cni_runner::{Attachment, Network};
use ferrule_kit::fold::unfolded;
use serde_json::{Value, json};

use crate::lab::{API, HUB, LIMIT, PORT, node_object, wait};

pub(crate) const CONFLIST: &str = "/run/cni/net.d/10-ferrule.conflist";
const KUBECONFIG: &str = "/run/kubeconfig";
pub(crate) const TOKEN: &str = "/run/token";
const LOG: &str = "/run/log";
/// The identifier of the machine.
pub(crate) const MACHINE: &str = "/run/machine-id";

pub(crate) struct Member {
    pub(crate) name: &'static str,
    pub(crate) node: Node,
    number: usize,
    program: PathBuf,
    daemon: Option<Background>,
}

impl Member {
    /// A node with the uplink `eth0`, whose other end is at the hub. `c` is behind the router.
    pub(crate) fn new(hub: &Node, name: &'static str, program: PathBuf) -> Member {
        let number = 1 + ["a", "b", "c"].iter().position(|known| *known == name).unwrap();
        let member = Member { name, node: Node::new().unwrap(), number, program, daemon: None };
        let namespace = member.node.netns_path();
        hub.sh(&format!("ip link add to-{name} type veth peer name eth0 netns {}", namespace.display()))
            .unwrap();
        let master = if name == "c" { "nomaster" } else { "master lan" };
        hub.sh(&format!("ip link set to-{name} {master} up")).unwrap();
        member.sh("ip link set eth0 up");
        member.address("eth0");
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": API}}],
            "users": [{"name": "test", "user": {"tokenFile": TOKEN}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}]});
        member.node.write_file(KUBECONFIG, &kubeconfig.to_string()).unwrap();
        member.node.write_file(TOKEN, "first").unwrap();
        member.node.write_file(MACHINE, name).unwrap();
        member
    }

    /// Gives the link the node's addresses and default routes, as a network manager does.
    pub(crate) fn address(&self, link: &str) {
        let [v4, v6] = self.addresses();
        let [hub4, hub6] = HUB[usize::from(self.name == "c")];
        self.sh(&format!(
            "ip addr replace {v4}/24 dev {link}; ip addr replace {v6}/64 dev {link} nodad
            ip route replace default via {hub4}; ip -6 route replace default via {hub6}"
        ));
    }

    pub(crate) fn addresses(&self) -> [String; 2] {
        let number = self.number;
        match self.name {
            "c" => [format!("198.51.100.{number}"), format!("2001:db8:0:2::{number}")],
            _ => [format!("192.0.2.{number}"), format!("2001:db8::{number}")],
        }
    }

    pub(crate) fn pod_cidrs(&self) -> [String; 2] {
        [format!("10.244.{}.0/24", self.number), format!("fd00:244:{}::/64", self.number)]
    }

    pub(crate) fn object(&self) -> Value {
        let (addresses, pod_cidrs) = (self.addresses(), self.pod_cidrs());
        node_object(&addresses.each_ref().map(String::as_str), &pod_cidrs.each_ref().map(String::as_str))
    }

    pub(crate) fn sh(&self, script: &str) -> String {
        self.node.sh(&format!("set -e\n{script}")).unwrap()
    }

    /// The program with its files. `wrapper`: a command before it, such as strace. Standard error goes to the log.
    pub(crate) fn command(&self, wrapper: &str, arguments: &str) -> Command {
        let plugins = bin_dir().unwrap();
        let mut command = Command::new("sh");
        command.args(["-c", &format!(
            "exec {wrapper} {} --plugins {} --kubeconfig {KUBECONFIG} --node-name {} --conflist {CONFLIST} --no-repair --gc-every 0 --patience 2 \
             --machine-id {MACHINE} {arguments} 2>>{LOG}",
            self.program.display(), plugins.display(), self.name
        )]);
        command
    }

    /// Runs the program to its end.
    pub(crate) fn run(&self, arguments: &str) -> Output {
        self.node.exec(&mut self.command("", arguments)).unwrap()
    }

    pub(crate) fn start(&mut self, arguments: &str) {
        self.start_under("", arguments);
    }

    pub(crate) fn start_under(&mut self, wrapper: &str, arguments: &str) {
        assert!(self.daemon.is_none(), "it runs already");
        self.daemon = Some(self.node.spawn(self.command(wrapper, arguments)).unwrap());
    }

    pub(crate) fn pid(&self) -> u32 {
        self.daemon.as_ref().expect("a daemon").id()
    }

    /// Whether a daemon runs.
    pub(crate) fn runs(&mut self) -> bool {
        self.daemon.is_some() && self.is_running()
    }

    pub(crate) fn is_running(&mut self) -> bool {
        self.daemon.as_mut().expect("a daemon").child().try_wait().unwrap().is_none()
    }

    /// Ends the daemon by a signal such as `KILL`. Returns the exit status.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        let mut daemon = self.daemon.take().expect("a daemon");
        let pid = daemon.id().to_string();
        // It may have ended already.
        let _ = Command::new("kill").args([&format!("-{signal}"), &pid]).output().unwrap();
        daemon.child().wait().unwrap().code()
    }

    pub(crate) fn log(&self) -> String {
        self.node.read_file(LOG).unwrap_or_default()
    }

    /// The lines of the log with this text.
    pub(crate) fn lines(&self, text: &str) -> Vec<String> {
        self.log().lines().filter(|line| line.contains(text)).map(str::to_owned).collect()
    }

    pub(crate) fn until(&self, what: &str, condition: impl FnMut() -> bool) {
        assert!(eventually(LIMIT, condition), "{} has not: {what}\n{}", self.name, self.log());
    }

    /// The daemon's routes, as `10.244.2.0/24 via 192.0.2.2 dev eth0`, sorted.
    pub(crate) fn routes(&self) -> Vec<String> {
        let text = |route: &Value| {
            let words =
                ["dst", "gateway", "dev"].map(|key| route[key].as_str().unwrap_or("nothing").to_owned());
            format!("{} via {} dev {}", words[0], words[1], words[2])
        };
        let mut found: Vec<String> = ["proto 79", "-6 proto 79"]
            .iter()
            .flat_map(|arguments| routes(&self.node, arguments))
            .map(|route| text(&route))
            .collect();
        found.sort();
        found
    }

    /// The routes to another node, by its pod CIDRs.
    pub(crate) fn ways_to(&self, other: &Member) -> [String; 2] {
        let (cidrs, addresses) = (other.pod_cidrs(), other.addresses());
        let direct = (self.name == "c") == (other.name == "c");
        [0, 1].map(|family| {
            let (cidr, inner) = (&cidrs[family], cidrs[family].split('/').next().unwrap());
            match direct {
                true => format!("{cidr} via {} dev eth0", addresses[family]),
                false => format!("{cidr} via {inner} dev ferrule.vxlan"),
            }
        })
    }

    /// Waits until the daemon has exactly these routes.
    pub(crate) fn has_routes<T: AsRef<str>>(&self, expected: &[T]) {
        let mut expected: Vec<&str> = expected.iter().map(AsRef::as_ref).collect();
        expected.sort_unstable();
        let mut found = Vec::new();
        let same = eventually(LIMIT, || {
            found = self.routes();
            found == expected
        });
        assert!(same, "{}: {found:#?}, not {expected:#?}\n{}", self.name, self.log());
    }

    /// The conflist as a list of plugins.
    pub(crate) fn conflist(&self) -> Option<Value> {
        Some(unfolded(serde_json::from_str(&self.node.read_file(CONFLIST).ok()?).unwrap()))
    }

    /// The types of the conflist's plugins as they are in the file.
    pub(crate) fn types(&self) -> Vec<String> {
        let text = self.node.read_file(CONFLIST).unwrap_or_default();
        let value: Value = serde_json::from_str(&text).unwrap_or_default();
        let plugins = value["plugins"].as_array().into_iter().flatten();
        plugins.map(|plugin| plugin["type"].as_str().unwrap().to_owned()).collect()
    }

    /// Whether the node has a link of this name.
    pub(crate) fn node_has(&self, link: &str) -> bool {
        self.node.sh(&format!("ip link show {link}")).is_ok()
    }

    /// The daemon's messages to the kernel while the work lasts, and for some time after it, as strace shows them.
    pub(crate) fn requests(&self, work: impl FnOnce()) -> Vec<String> {
        let file = tempfile::NamedTempFile::new().unwrap();
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-yy", "-s", "0", "-e", "trace=sendto,sendmsg,write,writev", "-o"]);
        strace.arg(file.path()).args(["-p", &self.pid().to_string()]);
        let _strace = self.node.spawn(strace).unwrap();
        self.until("traced", || self.status("TracerPid") > 0);
        work();
        sleep(Duration::from_secs(1));
        let log = fs::read_to_string(file.path()).unwrap();
        log.lines().filter(|line| line.contains("<NETLINK:")).map(str::to_owned).collect()
    }

    /// Starts a pod as a runtime does, with a server.
    pub(crate) fn pod(&self, name: &str) -> Running<'_> {
        self.pod_with(name, |attachment| attachment)
    }

    /// As [`Member::pod`], with capabilities.
    pub(crate) fn pod_with(&self, name: &str, with: impl FnOnce(Attachment) -> Attachment) -> Running<'_> {
        let running = self.attach(name, with).unwrap();
        serve(&running.pod, name, PORT);
        running
    }

    /// A pod without a server, and its addresses; or why it does not start.
    pub(crate) fn try_pod(&self, name: &str) -> Result<(Pod, Vec<IpAddr>), String> {
        self.attach(name, |attachment| attachment).map(|running| (running.pod, running.addresses))
    }

    /// As [`Member::try_pod`], with CNI_ARGS.
    pub(crate) fn try_pod_with(&self, name: &str, args: &str) -> Result<(Pod, Vec<IpAddr>), String> {
        self.attach(name, |attachment| attachment.with_args(args))
            .map(|running| (running.pod, running.addresses))
    }

    fn attach(&self, name: &str, with: impl FnOnce(Attachment) -> Attachment) -> Result<Running<'_>, String> {
        let pod = self.node.pod(name).unwrap();
        pod.sh("ip link set lo up").unwrap();
        let network = self.node.run(|| Network::from_file(CONFLIST)).unwrap().unwrap();
        let attachment = with(pod.attachment("eth0"));
        let runtime = self.node.runtime([bin_dir().unwrap()]);
        let result = runtime.add(&network, &attachment).map_err(|error| error.to_string())?;
        let addresses =
            ips_of(&result).iter().map(|ip| ip.split('/').next().unwrap().parse().unwrap()).collect();
        Ok(Running { member: self, pod, network, attachment, addresses })
    }

    /// The answer of the daemon's server to this path: code and body.
    pub(crate) fn http(&self, path: &str) -> (u16, String) {
        let script = format!(
            "curl --silent --max-time 60 --write-out '\n%{{http_code}}' http://127.0.0.1:9477{path} || true"
        );
        let answer = self.node.sh(&script).unwrap();
        let (body, code) = answer.rsplit_once('\n').unwrap();
        (code.parse().unwrap(), body.to_owned())
    }

    /// A number of `/proc/PID/status`.
    pub(crate) fn status(&self, key: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let value = status.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'));
        value.unwrap().split_whitespace().next().unwrap().parse().unwrap()
    }
}

/// A pod that runs.
pub(crate) struct Running<'m> {
    member: &'m Member,
    pub(crate) pod: Pod,
    network: Network,
    attachment: Attachment,
    pub(crate) addresses: Vec<IpAddr>,
}

impl Running<'_> {
    /// Asks another pod by TCP and UDP in each family. It must see this pod's own address.
    pub(crate) fn reaches(&self, other: &Running<'_>) {
        for (own, to) in self.addresses.iter().zip(&other.addresses) {
            for protocol in ["tcp", "udp"] {
                let expected = Ok(format!("{} {own}", other.pod.name()));
                let to = SocketAddr::new(*to, PORT);
                // The first packet may come while the kernel looks for a neighbour or changes a route.
                wait(
                    &format!("{} to {to}: {expected:?}", self.pod.name()),
                    || ask(&self.pod, protocol, to),
                    |answer| *answer == expected,
                )
                .unwrap();
            }
        }
    }

    pub(crate) fn container_id(&self) -> String {
        self.attachment.container_id.clone()
    }

    /// The runtime reads the conflist anew.
    pub(crate) fn take_conflist(&mut self) {
        self.network = self.member.node.run(|| Network::from_file(CONFLIST)).unwrap().unwrap();
    }

    /// CHECK of its chain.
    pub(crate) fn is_sound(&self) -> bool {
        let runtime = self.member.node.runtime([bin_dir().unwrap()]);
        runtime.check(&self.network, &self.attachment).is_ok()
    }

    /// Ends the pod as a runtime does.
    pub(crate) fn end(self) {
        self.member.node.runtime([bin_dir().unwrap()]).del(&self.network, &self.attachment).unwrap();
        self.pod.delete().unwrap();
    }
}
