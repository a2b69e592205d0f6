//! The conflist, and what runtimes find in its folder.

use super::{Problems, State};
use crate::conflist::file;
use crate::plan::Plan;
use crate::status::Source;
use crate::word::Code;

impl State {
    /// Writes the conflist. The first time it waits for the ways to all nodes; later the conflist follows the podCIDRs at once. It is
    /// removed if the API server has taken all of them away.
    pub(super) fn conflist(&mut self, plan: &Plan, problems: &mut Problems) {
        let conflist = &mut self.status.conflist;
        let Some(pods) = &plan.desired.pods else {
            (conflist.written, conflist.networks) = (false, Vec::new());
            self.conflist = None;
            if self.status.api.source == Source::Server {
                match file::remove(&conflist.path) {
                    Ok(true) => log!("removed {}: this node has no podCIDR", conflist.path.display()),
                    Ok(false) => {}
                    Err(error) => drop(problems.insert("conflist", format!("{error:#}"))),
                }
            }
            return;
        };
        (conflist.networks, conflist.mtu) =
            (pods.networks.iter().map(ToString::to_string).collect(), pods.mtu);
        if !conflist.written && problems.keys().any(|part| !Code::of_part(part).word().serves()) {
            return;
        }
        match file::write(&conflist.path, &self.template.value(&self.node, pods)) {
            Ok(is_new) => {
                if is_new {
                    log!(
                        "wrote {}: {}, MTU {}",
                        conflist.path.display(),
                        conflist.networks.join(" "),
                        pods.mtu
                    );
                }
                conflist.written = true;
                self.conflist = file::watch(&conflist.path)
                    .map_err(|error| self.log.once(format!("watch {}: {error}", conflist.path.display())))
                    .ok();
            }
            Err(error) => {
                conflist.written = false;
                if file::remove_other(&conflist.path, pods).unwrap_or(false) {
                    log!("removed {}: it has former podCIDRs", conflist.path.display());
                }
                problems.insert("conflist", format!("{error:#}"));
            }
        }
    }
}
