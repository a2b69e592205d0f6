//! The reasons for a word that is not ready.

use std::fmt;

/// What the daemon says of its node. `/readyz`, `status`, the metrics and the events follow it. The worst reason decides.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Word {
    /// The pods of this node can talk.
    Ready,
    /// The pods of named nodes, or a named part of the traffic, are not reached.
    Degraded,
    /// New: nothing is proved yet.
    #[default]
    Waiting,
    /// The pods of this node do not work.
    NotReady,
}

impl Word {
    /// All words.
    pub const ALL: [Word; 4] = [Word::Ready, Word::Degraded, Word::Waiting, Word::NotReady];

    /// Whether `/readyz` is 200.
    pub fn serves(self) -> bool {
        self <= Word::Degraded
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Word::Ready => "ready",
            Word::Degraded => "degraded",
            Word::Waiting => "waiting",
            Word::NotReady => "not ready",
        })
    }
}

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    pub code: Code,
    /// What it is about: a node's name, and what of it; a part or a network. Empty if it is this node as a whole. Code and this name
    /// the fault: the text may change.
    pub about: String,
    /// What is wrong, for people.
    pub text: String,
}

/// The kinds of reasons. README.md has a row for each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// Neither the API server nor a file has told of the cluster.
    Api,
    /// The health endpoint has no answer yet.
    Unproved,
    /// The API server has no Node of this name any more.
    Node,
    /// Packets of this node's pods get lost on this node.
    Local,
    /// The same in one family, and the other one works.
    LocalFamily,
    /// The conflist is missing, not ours, or cannot be written.
    Conflist,
    /// Runtimes take another file.
    First,
    /// Routes.
    Routes,
    Vxlan,
    Wireguard,
    Masquerade,
    /// Another part of the kernel could not be set up.
    Part,
    /// No other node's pods are reached.
    Peers,
    /// A node's pods are not reached.
    Peer,
    /// A node has no way for long.
    Waits,
    /// A podCIDR or an address is not used.
    Refused,
    /// Bridged packets pass no rules of Services.
    BridgeNetfilter,
    /// Bridged pods and others run on this node.
    BridgeMixed,
    /// New pods still get the plugin `bridge`, because of bridged pods.
    BridgeKept,
    /// The Node object has no podCIDR that this node can use.
    PodCidr,
    /// The pods of this node have one family instead of two.
    Family,
    /// The Node object's address is not that of this node.
    Address,
    /// Another network's links or routes are in the way of this node's pods.
    Leftover,
    /// Pods from before a change of podCIDRs still run.
    Former,
    /// The way to a node's pods is not the one that is wanted.
    Way,
    /// This node does not forward packets.
    Forwarding,
    /// The table that checks what pods send cannot be made.
    Guard,
    /// NetworkPolicies are not known yet.
    PolicyUnknown,
    /// NetworkPolicies do not hold.
    Policy,
    /// No health endpoint can prove that NetworkPolicies hold.
    PolicyUnproved,
}

impl Code {
    /// All codes, in the order of README.md.
    pub const ALL: [Code; 30] = [
        Code::Api,
        Code::Unproved,
        Code::Node,
        Code::Local,
        Code::LocalFamily,
        Code::Conflist,
        Code::First,
        Code::Routes,
        Code::Vxlan,
        Code::Wireguard,
        Code::Masquerade,
        Code::Part,
        Code::Peers,
        Code::Peer,
        Code::Waits,
        Code::Refused,
        Code::BridgeNetfilter,
        Code::BridgeMixed,
        Code::BridgeKept,
        Code::PodCidr,
        Code::Family,
        Code::Address,
        Code::Leftover,
        Code::Former,
        Code::Way,
        Code::Forwarding,
        Code::Guard,
        Code::PolicyUnknown,
        Code::Policy,
        Code::PolicyUnproved,
    ];

    /// The key, the word and the remedy.
    fn row(self) -> (&'static str, Word, &'static str) {
        use Word::{Degraded, NotReady, Ready, Waiting};
        match self {
            Code::Api => (
                "api",
                Waiting,
                "the text says why; kubectl get --raw /readyz; kubectl auth can-i watch nodes --as=system:serviceaccount:kube-system:ferrule-node",
            ),
            Code::Unproved => {
                ("unproved", Waiting, "wait some seconds; if it stays, the daemon's log says why")
            }
            Code::Node => (
                "node",
                NotReady,
                "systemctl restart kubelet makes the Node object again; or --node-name or --kubeconfig is of another cluster",
            ),
            Code::Local => (
                "local",
                NotReady,
                "nft list ruleset, iptables-legacy -S FORWARD and sysctl -a | grep rp_filter: what drops forwarded packets; ferrule doctor",
            ),
            Code::LocalFamily => (
                "local-family",
                Degraded,
                "nft list ruleset, iptables-legacy -S FORWARD and sysctl -a | grep -e forwarding -e rp_filter: what drops packets of this family",
            ),
            Code::Conflist => {
                ("conflist", NotReady, "move the named file away, or choose another --conflist")
            }
            Code::First => (
                "first",
                NotReady,
                "move the named file away, or give --conflist a name that comes before it",
            ),
            Code::Routes => (
                "routes",
                NotReady,
                "read the error; ip route show proto 79; ferrule doctor names what the kernel lacks",
            ),
            Code::Vxlan => (
                "vxlan",
                NotReady,
                "ip -d link show type vxlan: another program may have the name, or VNI and port: --vxlan-id, --vxlan-port",
            ),
            Code::Wireguard => {
                ("wireguard", NotReady, "modprobe wireguard; ip -d link show ferrule.wg; wg show ferrule.wg")
            }
            Code::Masquerade => (
                "masquerade",
                NotReady,
                "nft list table inet ferrule_node; modprobe nf_tables nft_masq; or --masquerade none",
            ),
            Code::Part => ("part", NotReady, "read the error; ferrule doctor names what the kernel lacks"),
            Code::Peers => (
                "peers",
                NotReady,
                "ferrule-node status shows how each node is reached; let the overlay's UDP port and the podCIDRs through the firewall between the nodes",
            ),
            Code::Peer => (
                "peer",
                Degraded,
                "ferrule-node status there; ping its InternalIP from here; the firewall between the two must let the overlay's UDP port or the podCIDRs through",
            ),
            Code::Waits => (
                "waits",
                Degraded,
                "kubectl describe node: its InternalIP, podCIDR or WireGuard key is missing; ferrule-node's log there",
            ),
            Code::Refused => (
                "refused",
                Degraded,
                "correct the Node object (kubectl edit node), or this node's addresses and routes",
            ),
            Code::BridgeNetfilter => (
                "bridge-netfilter",
                Degraded,
                "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1; name them in /etc/modules-load.d and /etc/sysctl.d; or change to ptp: kubectl drain the node, and restart it",
            ),
            Code::BridgeMixed => {
                ("bridge-mixed", Degraded, "kubectl drain the node, and restart it: its pods then get ptp")
            }
            Code::BridgeKept => {
                ("bridge-kept", Ready, "kubectl drain the node, and restart it: its pods then get ptp")
            }
            Code::PodCidr => (
                "podcidr",
                NotReady,
                "start kube-controller-manager with --allocate-node-cidrs and --cluster-cidr, or kubectl patch the Node's spec.podCIDRs",
            ),
            Code::Family => (
                "family",
                Degraded,
                "follow the text, or leave the family out of --cluster-cidr of kube-controller-manager",
            ),
            Code::Address => (
                "address",
                Degraded,
                "start the kubelet of the node with --node-ip and an address of its own",
            ),
            Code::Leftover => {
                ("leftover", Degraded, "drain the node, remove what the text names, and restart the node")
            }
            Code::Former => (
                "former",
                Degraded,
                "kubectl drain the node, or delete the pods; new ones get addresses of the new podCIDR",
            ),
            Code::Way => ("way", Degraded, "remove the route that the text names; ip route show shows all"),
            Code::Forwarding => (
                "forwarding",
                Degraded,
                "the text names the command; in a container the daemon needs a writable /proc/sys",
            ),
            Code::Guard => (
                "guard",
                Degraded,
                "a kernel with nft_fib_inet, Linux 5.6 or later; or --source-guard off and --mode routes or wireguard",
            ),
            Code::PolicyUnknown => (
                "policy-unknown",
                Waiting,
                "the text says why; kubectl auth can-i watch networkpolicies -A --as=system:serviceaccount:kube-system:ferrule-node",
            ),
            Code::Policy => (
                "policy",
                NotReady,
                "read the text; nft list table inet ferrule_policy; or --policy off, which opens all pods",
            ),
            Code::PolicyUnproved => (
                "policy-unproved",
                Ready,
                "--health on, two free addresses in each podCIDR, and ptp or a bridge with isGateway in --template",
            ),
        }
    }

    /// The word in metrics and events, such as `conflist`. A part's is its name in the log.
    pub fn key(self) -> &'static str {
        self.row().0
    }

    /// The code with the key of a part, else [`Code::Part`].
    pub fn of_part(part: &str) -> Code {
        Code::ALL.into_iter().find(|code| code.key() == part).unwrap_or(Code::Part)
    }

    /// What a node with this reason is at best.
    pub fn word(self) -> Word {
        self.row().1
    }

    /// Whether it is about another node, which `about` begins with.
    pub fn is_about_node(self) -> bool {
        matches!(self, Code::Peer | Code::Waits | Code::Refused | Code::Former | Code::Way)
    }

    /// What to do, for people.
    pub fn remedy(self) -> &'static str {
        self.row().2
    }
}
