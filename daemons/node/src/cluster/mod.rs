//! The nodes as the API server lists them, and the podCIDRs that are refused. Pure.

mod claims;
mod health;
mod key;
mod node;
mod space;

pub use claims::{Claims, Refusal, settle};
pub use health::{ANNOTATION as HEALTH_ANNOTATION, Health, Published};
pub use key::{key_text, parse_key};
pub use node::{ListMetadata, Node, Peer, Peers};
pub use space::{Space, gateway, inside, single};
