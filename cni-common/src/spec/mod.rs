//! The types of the CNI specification: versions, configurations, results, errors. No system calls.

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
pub use error::{CniError, Code, Context, Failures, REMEDY};
pub use json::Json;
pub use result::{AddResult, Dns, Interface, IpConfig, Route};
pub use version::SpecVersion;
