//! The nodes as the API server lists them, and the podCIDRs that are refused. Pure.

mod claims;
mod health;
mod node;
mod space;

pub use claims::{Claims, Refusal, settle};
pub use health::{ANNOTATION as HEALTH_ANNOTATION, Health, Published};
pub use node::{ListMetadata, Node, Peer, Peers};
pub use space::{Space, inside, single};
