//! Deletes any number of rules of a table that other programs change too.

use super::{Batch, Error, Rule, Table, change};
use crate::netlink::Socket;

/// Deletes the rules that `select` returns, each with the name of its chain, in as many batches as they need; returns the
/// deleted ones. The kernel refuses a batch after any change of the ruleset since `select` has read it: another process may delete one
/// of the rules first, or make the table again, with other rules under these handles.
///
/// # Errors
/// Those of `select`; the kernel refuses a batch, or 200 concurrent changes.
pub fn delete_rules<'c>(
    socket: &mut Socket,
    table: Table<'_>,
    mut select: impl FnMut(&mut Socket) -> Result<Vec<(&'c str, Rule)>, Error>,
) -> Result<Vec<Rule>, Error> {
    let mut deleted = Vec::new();
    loop {
        let (part, is_last) = change(socket, |socket, batch| {
            let mut part = select(socket)?;
            let is_last = part.len() <= Batch::ROOM;
            part.truncate(Batch::ROOM);
            for (chain, rule) in &part {
                batch.delete_rule(table, chain, rule.handle);
            }
            Ok((part, is_last))
        })?;
        deleted.extend(part.into_iter().map(|(_, rule)| rule));
        if is_last {
            return Ok(deleted);
        }
    }
}
