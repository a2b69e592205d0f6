//! Questions to `ferrule-node`.

use std::path::PathBuf;
use std::time::Duration;

use ferrule_kit::cluster::STATE;
use ferrule_policy_kit::ask::{Answer, Ask, ask};

/// How long an answer may take.
const LIMIT: Duration = Duration::from_secs(10);

/// The daemon. It is asked no more once it has not answered.
#[derive(Debug)]
pub struct Daemon {
    /// The folder of its socket.
    folder: PathBuf,
    /// Why it does not answer.
    pub failure: Option<String>,
}

impl Default for Daemon {
    fn default() -> Self {
        Daemon { folder: STATE.into(), failure: None }
    }
}

impl Daemon {
    /// Asks it. `None` if it does not answer, or cannot say anything; [`Daemon::failure`] has the reason.
    pub fn ask(&mut self, what: Ask) -> Option<Answer> {
        if self.failure.is_some() {
            return None;
        }
        match ask(&self.folder, what, LIMIT) {
            Ok(answer) => Some(answer),
            Err(error) => {
                let folder = self.folder.display();
                self.failure = Some(format!(
                    "ferrule-node does not answer in {folder} ({error}): only the kernel's rules are known, which have no names of policies"
                ));
                None
            }
        }
    }
}
