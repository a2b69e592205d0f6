//! Writes the file if its content has changed, seldom, and beside the daemon's work: a disk may take seconds.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep_until, timeout};

use super::{Identity, content, write};
use crate::cluster::Peers;

/// The least time between two writes.
const EVERY: Duration = Duration::from_secs(10);
/// The time until the next attempt after an error.
const RETRY: Duration = Duration::from_secs(60);
/// How long a write may take at the end.
const LAST: Duration = Duration::from_secs(2);

pub struct Keeper {
    path: PathBuf,
    identity: Option<Identity>,
    /// The hash of the content that is on the disk.
    stored: Option<String>,
    is_dirty: bool,
    /// The next write comes not before.
    next: Instant,
    running: Option<JoinHandle<Result<String>>>,
    /// The last error, which is logged once.
    told: Option<String>,
}

impl Keeper {
    /// For the file at this path. Without an identity it does nothing.
    pub fn new(path: &Path, identity: Option<Identity>) -> Keeper {
        let stored = identity.as_ref().and_then(|identity| super::read(path, identity).ok()??.sum.into());
        let path = path.to_owned();
        Keeper { path, identity, stored, is_dirty: false, next: Instant::now(), running: None, told: None }
    }

    /// The nodes may have changed.
    pub fn suspect(&mut self) {
        self.is_dirty = self.identity.is_some();
    }

    /// Ends when [`Keeper::save`] is due. Safe to cancel.
    pub async fn due(&mut self) {
        if let Some(running) = &mut self.running {
            let outcome = running.await;
            self.running = None;
            self.note(outcome.unwrap_or_else(|error| Err(error.into())));
        }
        match self.is_dirty {
            true => sleep_until(self.next).await,
            false => std::future::pending().await,
        }
    }

    fn note(&mut self, outcome: Result<String>) {
        let path = self.path.display();
        match outcome {
            Ok(sum) => {
                if self.told.take().is_some() {
                    log!("plan file {path}: works again");
                }
                (self.stored, self.next) = (Some(sum), Instant::now() + EVERY);
            }
            Err(error) => {
                let error = format!("{error:#}");
                if self.told.as_ref() != Some(&error) {
                    log!("plan file {path}: {error}");
                }
                (self.told, self.next, self.is_dirty) = (Some(error), Instant::now() + RETRY, true);
            }
        }
    }

    /// Begins to write these nodes if the file has others. `None`: they are not to be kept.
    pub fn save(&mut self, peers: Option<&Peers>) {
        self.is_dirty = false;
        let (Some(identity), Some(peers)) = (&self.identity, peers) else { return };
        let Some((json, sum)) = content(identity, peers) else { return };
        if self.stored.as_ref() == Some(&sum) {
            self.next = Instant::now() + EVERY;
            return;
        }
        let path = self.path.clone();
        self.running = Some(tokio::task::spawn_blocking(move || write(&path, &json, &sum).map(|()| sum)));
    }

    /// Writes what is due before the daemon ends.
    pub async fn finish(mut self, peers: Option<&Peers>) {
        let work = async {
            if let Some(running) = self.running.take() {
                let _ = running.await;
            }
            if self.is_dirty {
                self.save(peers);
            }
            if let Some(running) = self.running.take() {
                let _ = running.await;
            }
        };
        let _ = timeout(LAST, work).await;
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cluster::Peer;
    use crate::plan_file::read;

    async fn is_due(keeper: &mut Keeper) -> bool {
        timeout(Duration::from_millis(20), keeper.due()).await.is_ok()
    }

    #[tokio::test]
    async fn the_file_is_written_if_it_differs_and_seldom() {
        let folder = tempfile::tempdir().unwrap();
        let [path, id] = ["plan", "id"].map(|name| folder.path().join(name));
        fs::write(&id, "1").unwrap();
        let me = Identity::find("n1", &id).unwrap();
        let peers = Peers::from([("n1".into(), Peer::default()), ("n2".into(), Peer::default())]);
        let mut keeper = Keeper::new(&path, Some(me.clone()));
        assert!(!is_due(&mut keeper).await);
        keeper.suspect();
        assert!(is_due(&mut keeper).await);
        keeper.save(Some(&peers));
        while keeper.stored.is_none() {
            is_due(&mut keeper).await;
        }
        assert_eq!(read(&path, &me).unwrap().unwrap().peers, peers);
        keeper.suspect();
        assert!(!is_due(&mut keeper).await, "it was written a moment ago");
        keeper.save(Some(&peers));
        assert!(keeper.running.is_none(), "nothing has changed");
        // A daemon that starts with a good file does not write it, and one that ends does not wait.
        let mut keeper = Keeper::new(&path, Some(me.clone()));
        keeper.save(Some(&peers));
        assert!(keeper.running.is_none());
        keeper.suspect();
        let one = Peers::from([("n1".into(), Peer::default())]);
        keeper.finish(Some(&one)).await;
        assert_eq!(read(&path, &me).unwrap().unwrap().peers, one);
    }
}
