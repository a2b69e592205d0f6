//! For operators: whose every address, host port, rule and link of a node is, and what belongs to nothing alive.
//!
//! [`sight`] shows whether this process sees the whole node. [`node`] reads it: libcni's [`cache`], the namespaces and processes
//! of [`scene`], and the objects, by the readers in [`read`]. No reader knows a format: the plugins' libraries list their own
//! objects. They return a [`model`].
//! [`alive`] decides whether an owner is alive, [`collect`] removes what dead owners have left. [`view`] makes rows or JSON, [`table`]
//! prints the rows, [`graph`] draws them. [`check`] runs CHECK for all attachments, [`doctor`] finds what the node
//! lacks; both start plugins by [`process`]. [`repair`] calls the plugins of this program for attachments that CHECK refuses, and
//! [`watch`] runs it when the kernel reports damage. [`shape`] changes a container's limits.
//!
//! [`policy`] says why a packet passes or not, [`denials`] watches what policies deny.
//!
//! [`calls`] reads the log of calls. [`report`] packs what all of them say for a report of a fault. [`selftest`] attaches
//! two pods of its own and sends packets between them.
//!
//! [`alive`], [`graph`], [`model`], [`table`] and [`view`] ask neither the kernel nor the disk.

#![deny(missing_docs)]

pub mod alive;
pub mod cache;
pub mod calls;
pub mod check;
pub mod denials;
pub mod doctor;
mod gc;
pub mod graph;
pub mod model;
pub mod node;
pub mod policy;
pub mod process;
pub mod read;
pub mod repair;
pub mod report;
pub mod scene;
pub mod selftest;
pub mod shape;
pub mod sight;
pub mod table;
pub mod terminal;
pub mod text;
mod totals;
pub mod view;
pub mod watch;
mod why;

use cni_common::spec::CniError;

pub(crate) use cni_common::line;
pub use gc::collect;

use line::Text;
use model::Sockets;
use node::{Node, Roots};
use table::Style;
use view::{Query, View};

/// Reads the node and prints a view, as a table or as JSON. Also returns what could not be read.
///
/// # Errors
/// The kernel does not list the links.
pub fn inspect(
    roots: &Roots,
    query: &Query,
    style: Style,
    as_json: bool,
) -> Result<(Text, Vec<String>), CniError> {
    if query.view == View::Policies {
        return policy::applied::inspect(roots, style, as_json);
    }
    let mut node = Node::read(roots, &mut Sockets::open()?, matches!(query.view, View::Links | View::Why))?;
    node.judge();
    if node.has_doubt() {
        node.failures.extend(node.unseen());
        node.failures.extend(node.left_out.iter().map(|what| format!("left out: {what}")));
    }
    let text = match as_json {
        true => Text::json(query.json(&node)),
        false => Text::lines(query.text(&node, style)),
    };
    Ok((text, node.failures))
}
