//! A Kubernetes API server for tests, in memory and without TLS. It knows no types: each path of the form
//! `/api/v1/…` or `/apis/GROUP/VERSION/…` names a resource, and an object is the JSON that a client has sent.
//!
//! - [`Store`] has the objects. The test reads and changes them by their paths, without a server.
//! - [`ApiServer`] serves a store. Two servers of one store are a cluster with two API servers.
//! - [`Faults`] are the faults of a server from the next request on, for all paths or for some; [`ApiServer::kill`] ends it.
//! - [`ApiServer::requests`] returns the clients' requests.
//!
//! It has, like a real server, revisions, conflicts, selectors, pages, bookmarks, 410 Gone, the end of a watch after
//! `timeoutSeconds`, the subresource `status`, finalizers. There is no validation, and an apply patch is a merge patch
//! that may create the object. The fields that only a type knows are a table in `select.rs`.
//!
//! Methods block. A server runs in a thread of its own, in the namespaces of the thread that has made it.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "failures of the test's own set-up panic")]

mod access;
mod answer;
mod faults;
mod patch;
mod path;
mod refusal;
mod select;
mod server;
mod store;
mod watch;

pub use access::Request;
pub use faults::Faults;
pub use server::ApiServer;
pub use store::Store;
