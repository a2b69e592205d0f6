//! The arguments of `ferrule policy`.

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(in crate::cli) enum Policy {
    /// Print what network policies deny on this node, while it happens
    ///
    /// A line for each flow: the time, the direction, the pod whose policies deny it, the other end, protocol and port. Packets of one flow
    /// within a second are one line. With the mode dry the line says what would be denied. Of each pod and direction the kernel notes two
    /// packets a second after the first 20; the counters in /metrics of ferrule-node have all of them. Several watches may run at once.
    ///
    /// Exit status: 0 ended by a signal; 1 no policies are enforced here, or the kernel refuses; 2 wrong usage.
    Watch,
}
