//! What the daemon knows of the nodes: by the API server, or by the plan on disk.

use super::State;
use crate::api::Update;
use crate::cluster::Peers;
use crate::daemon::report;
use crate::plan_file::{self, Remembered};
use crate::status::Source;

impl State {
    /// Takes what the API server says. Returns whether a sync is due.
    pub(in crate::daemon) fn apply(&mut self, update: Update) -> bool {
        let is_new = self.take(update);
        self.has_new_peers |= is_new;
        is_new
    }

    fn take(&mut self, update: Update) -> bool {
        match (update, &mut self.peers) {
            (Update::List(list), peers) => {
                let is_first = self.status.api.source != Source::Server;
                let is_new = is_first || peers.as_ref() != Some(&list);
                if let (Some(uid), Some(me)) = (self.remembered.take(), list.get(&self.node))
                    && uid != me.uid
                {
                    log!("plan file: it is of a Node {} with another UID, and no longer counts", self.node);
                }
                *peers = Some(list);
                self.status.api.source = Source::Server;
                is_new
            }
            (Update::Changed(name, peer), Some(peers)) => {
                let is_new = peers.get(&name) != Some(&*peer);
                peers.insert(name, *peer);
                is_new
            }
            (Update::Gone(name), Some(peers)) => peers.remove(&name).is_some(),
            (Update::Servers(servers), _) => {
                let is_new = self.servers != servers;
                self.servers = servers;
                is_new
            }
            // A list comes before all changes.
            (Update::Changed(..) | Update::Gone(_), None) => false,
            (Update::State(state), _) => {
                report::api(&mut self.status, state.as_ref().err());
                let is_new = state.is_err() && self.remember();
                self.publish(state.is_err(), None);
                is_new
            }
        }
    }

    /// Whether nothing is known of the nodes, and the plan on disk was not read.
    pub(in crate::daemon) fn waits(&self) -> bool {
        self.identity.is_some() && self.status.api.source == Source::Nothing
    }

    /// Takes the nodes of the plan on disk if nothing else is known. Returns whether it has any.
    pub(in crate::daemon) fn remember(&mut self) -> bool {
        if self.status.api.source != Source::Nothing {
            return false;
        }
        // It is read once.
        let Some(identity) = self.identity.take() else { return false };
        let path = self.options.plan_file.display();
        match plan_file::read(&self.options.plan_file, &identity) {
            Ok(Some(Remembered { time, uid, peers, .. })) => {
                log!("the API server is away: goes by the plan file {path} of {time}, {} nodes", peers.len());
                (self.peers, self.remembered) = (Some(peers), Some(uid));
                self.has_new_peers = true;
                self.status.api.source = Source::File(time);
                true
            }
            Ok(None) => false,
            Err(error) => {
                log!("plan file {path}: passed over: {error:#}");
                false
            }
        }
    }

    /// The nodes as the API server has listed them.
    pub(in crate::daemon) fn answer(&self) -> Option<&Peers> {
        self.peers.as_ref().filter(|_| self.status.api.source == Source::Server)
    }
}
