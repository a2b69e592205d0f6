//! The names in the table of decided pods. `ferrule-node` makes it: one chain for each combination of policies that isolates a pod of this
//! node, under a name that is a hash, and sets of the peers.

use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::nftables::{Family, Table};

use crate::Direction;

/// The table.
pub const TABLE: Table<'static> = Table::new(Family::Inet, "ferrule_policy");

/// The addresses of pods that have ended and still have a link.
pub const fn former(of: IpFamily) -> &'static str {
    ["former4", "former6"][of as usize]
}

/// The addresses of pods that are isolated in a direction.
pub const fn isolated(of: IpFamily) -> &'static str {
    ["isolated4", "isolated6"][of as usize]
}

/// The same, each as source and destination.
pub const fn to_itself(of: IpFamily) -> &'static str {
    ["self4", "self6"][of as usize]
}

/// The addresses of the pods of this node, each twice.
pub const fn pods(of: IpFamily) -> &'static str {
    ["pods4", "pods6"][of as usize]
}

/// The node's ends of the links of pods whose egress is isolated.
pub const LINKS_OUT: &str = "links_out";

/// Source, destination, protocol and both ports of ended flows.
pub const fn cut(of: IpFamily) -> &'static str {
    ["cut4", "cut6"][of as usize]
}

/// From the pod's address to its chain.
pub const fn map(direction: Direction, of: IpFamily) -> &'static str {
    match direction {
        Direction::Ingress => ["to4", "to6"][of as usize],
        Direction::Egress => ["from4", "from6"][of as usize],
    }
}
