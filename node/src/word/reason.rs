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
    /// Bridged packets pass no rules of Services.
    BridgeNetfilter,
    /// Bridged pods and others run on this node.
    BridgeMixed,
    /// New pods still get the plugin `bridge`, because of bridged pods.
    BridgeKept,
}

impl Code {
    /// All codes, in the order of README.md.
    pub const ALL: [Code; 5] =
        [Code::Part, Code::Conflist, Code::BridgeNetfilter, Code::BridgeMixed, Code::BridgeKept];

    /// The word in metrics and events, such as `conflist`.
    pub fn key(self) -> &'static str {
        match self {
            Code::Part => "part",
            Code::Conflist => "conflist",
            Code::BridgeNetfilter => "bridge_netfilter",
            Code::BridgeMixed => "bridge_mixed",
            Code::BridgeKept => "bridge_kept",
        }
    }

    /// What a node with this reason is at best.
    pub fn word(self) -> Word {
        match self {
            Code::Part | Code::Conflist => Word::NotReady,
            Code::BridgeNetfilter | Code::BridgeMixed => Word::Degraded,
            Code::BridgeKept => Word::Ready,
        }
    }

    /// What to do, for people.
    pub fn remedy(self) -> &'static str {
        match self {
            Code::Part => "read the error; ferrule doctor names what the kernel lacks",
            Code::Conflist => "move the named file away, or choose another --conflist",
            Code::BridgeNetfilter => {
                "modprobe br_netfilter; sysctl -w net.bridge.bridge-nf-call-iptables=1 net.bridge.bridge-nf-call-ip6tables=1; \
                 name them in /etc/modules-load.d and /etc/sysctl.d; or change to ptp: kubectl drain the node, and restart it"
            }
            Code::BridgeMixed | Code::BridgeKept => {
                "kubectl drain the node, and restart it: its pods then get ptp"
            }
        }
    }
}
