//! Answers the plugin.

use ferrule_blocks::wire::{Answer, LONGEST, PROTOCOL, Request};
use ferrule_daemon::asked;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use super::Reply;

/// Answers until it is dropped.
pub(super) async fn run(listener: UnixListener, requests: mpsc::Sender<(Request, Reply)>) {
    let reply = move |request| answer(request, requests.clone());
    asked::answer(listener, LONGEST, "a request for a block", reply).await;
}

async fn answer(request: Request, requests: mpsc::Sender<(Request, Reply)>) -> Result<Answer, String> {
    if request.ferrule_blocks != PROTOCOL {
        let theirs = request.ferrule_blocks;
        return Err(format!("the plugin speaks version {theirs} of the protocol, not {PROTOCOL}"));
    }
    let (sender, answer) = oneshot::channel();
    requests.send((request, sender)).await.map_err(|error| error.to_string())?;
    answer.await.map(Answer::new).map_err(|error| error.to_string())
}
