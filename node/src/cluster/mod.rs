//! What the API server says of the nodes, and what of it is refused. Pure.

mod claims;
mod node;
mod space;

pub use claims::{Claims, Refusal, settle};
pub use node::{Node, NodeList, Peer, Peers};
pub use space::{Space, inside, single};
