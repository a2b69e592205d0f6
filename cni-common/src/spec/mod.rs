//! The specification's types, without any kernel: versions, configurations, results, errors.

pub mod addr;
pub mod args;
pub mod config;
pub mod error;
pub mod ident;
pub mod json;
pub mod result;
pub mod version;
pub mod wire;

pub use args::CniArgs;
pub use config::{NetConf, ValidAttachment};
pub use error::{CniError, Code, Failures, Step};
pub use json::Json;
pub use result::{AddResult, Dns, Interface, IpConfig, Route};
pub use version::SpecVersion;
