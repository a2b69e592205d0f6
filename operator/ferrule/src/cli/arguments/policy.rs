//! The arguments of `ferrule policy`.

use clap::{Args, Subcommand};
use ferrule_inspect::policy::why::{Party, Port};

use super::{Cache, Node};

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Policy {
    /// Say why a connection is allowed or denied
    ///
    /// Asks the kernel's rules of this node, and ferrule-node for the policies behind them: in which direction, by which policy, by which of
    /// its entries, or what does not match in each of them. Warns where the two differ. Without the daemon the kernel answers alone.
    /// The address of a Service is followed to its backends by the rules of kube-proxy. What this node cannot know is a note: the
    /// node of the other pod may have to be asked, too. The question is for a new connection, not for one that is there.
    ///
    /// Exit status: 0 allowed, as far as this node decides; 1 failed; 2 wrong usage; 3 denied; 4 not known.
    Why(Why),
    /// Print what network policies deny on this node, while it happens
    ///
    /// A line for each flow: the time, the direction, the pod whose policies deny it, the other end, protocol and port. Packets of one flow
    /// within a second are one line. With the mode dry the line says what would be denied. Of each pod and direction the kernel notes two
    /// packets a second after the first 20; the counters in /metrics of ferrule-node have all of them. Several watches may run at once.
    /// If a pod that is given is not on this node, ends or comes back, a line says so.
    ///
    /// Exit status: 0 ended by a signal; 1 no policies are enforced here, or the kernel refuses; 2 wrong usage.
    Watch(Watch),
}

#[derive(Args, Debug)]
pub(in crate::cli) struct Why {
    /// Who begins the connection: a pod as NAMESPACE/NAME, or an address
    pub(in crate::cli) from: Party,
    /// Who gets it: the same, also the address of a Service
    pub(in crate::cli) to: Party,
    /// The destination port, with /tcp, /udp or /sctp [default: an ICMP echo request]
    pub(in crate::cli) port: Option<Port>,
    /// Print one JSON document
    #[arg(long)]
    pub(in crate::cli) json: bool,
    #[command(flatten)]
    pub(in crate::cli) cache: Cache,
    #[command(flatten)]
    pub(in crate::cli) node: Node,
}

#[derive(Args, Debug)]
pub(in crate::cli) struct Watch {
    /// Only denials with one of these at an end: pods as NAMESPACE/NAME, or addresses
    #[arg(value_name = "WHO")]
    pub(in crate::cli) ends: Vec<Party>,
    /// Only denials with a pod of this namespace at an end
    #[arg(long, value_name = "NAME")]
    pub(in crate::cli) namespace: Option<String>,
    /// Only what pods are not to get
    #[arg(long)]
    pub(in crate::cli) ingress: bool,
    /// Only what pods are not to send
    #[arg(long, conflicts_with = "ingress")]
    pub(in crate::cli) egress: bool,
    #[command(flatten)]
    pub(in crate::cli) cache: Cache,
    #[command(flatten)]
    pub(in crate::cli) node: Node,
}
