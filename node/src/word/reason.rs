//! The reasons for a word that is not ready.

use super::Word;

/// One reason.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reason {
    pub code: Code,
    /// What it is about: a node's name, a part or a network. Empty if it is this node as a whole.
    pub about: String,
    /// What is wrong, for people.
    pub text: String,
}

/// The kinds of reasons. README.md has a row for each one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Code {
    /// A part of the kernel could not be set up.
    Part,
    /// The conflist is missing, not ours, or cannot be written.
    Conflist,
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
    Route,
    /// This node does not forward packets.
    Forwarding,
}

impl Code {
    /// All codes, in the order of README.md.
    pub const ALL: [Code; 9] = [
        Code::Part,
        Code::Conflist,
        Code::PodCidr,
        Code::Family,
        Code::Address,
        Code::Leftover,
        Code::Former,
        Code::Route,
        Code::Forwarding,
    ];

    /// The word in metrics and events, such as `conflist`.
    pub fn key(self) -> &'static str {
        match self {
            Code::Part => "part",
            Code::Conflist => "conflist",
            Code::PodCidr => "podcidr",
            Code::Family => "family",
            Code::Address => "address",
            Code::Leftover => "leftover",
            Code::Former => "former",
            Code::Route => "route",
            Code::Forwarding => "forwarding",
        }
    }

    /// What a node with this reason is at best.
    pub fn word(self) -> Word {
        match self {
            Code::Part | Code::Conflist | Code::PodCidr => Word::NotReady,
            Code::Family | Code::Address | Code::Leftover | Code::Former | Code::Route | Code::Forwarding => {
                Word::Degraded
            }
        }
    }

    /// What to do, for people.
    pub fn remedy(self) -> &'static str {
        match self {
            Code::Part => "read the error; ferrule doctor names what the kernel lacks",
            Code::Conflist => "move the named file away, or choose another --conflist",
            Code::PodCidr => {
                "start kube-controller-manager with --allocate-node-cidrs and --cluster-cidr, or kubectl patch the Node's spec.podCIDRs"
            }
            Code::Family => {
                "follow the text, or leave the family out of --cluster-cidr of kube-controller-manager"
            }
            Code::Address => "start the kubelet of the node with --node-ip and an address of its own",
            Code::Leftover => "drain the node, remove what the text names, and restart the node",
            Code::Former => {
                "kubectl drain the node, or delete the pods; new ones get addresses of the new podCIDR"
            }
            Code::Route => "remove the route that the text names; ip route show shows all",
            Code::Forwarding => "sysctl -w what the text names, or give the daemon a writable /proc/sys",
        }
    }
}
