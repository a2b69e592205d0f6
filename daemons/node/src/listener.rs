//! Waits for the kernel's messages about changes of other programs.

use std::io;
use std::time::Duration;

use ferrule_kernel::netlink::message::Received;
use ferrule_kernel::notices::Messages;
use tokio::io::unix::AsyncFd;

/// The wait after an error: a broken socket must not cause a busy loop.
const PAUSE: Duration = Duration::from_secs(1);

/// A subscription. It ends with this value.
pub struct Listener(AsyncFd<Messages>);

impl Listener {
    /// Needs a tokio runtime.
    #[allow(
        deprecated,
        reason = "its successor is unsafe; the descriptor of the messages stays the same while they live"
    )]
    pub fn new(messages: Messages) -> io::Result<Self> {
        AsyncFd::new(messages).map(Listener)
    }

    /// Waits until there may be messages for [`Listener::receive`]. Safe to cancel.
    pub async fn readable(&mut self) -> io::Result<()> {
        self.0.readable_mut().await.map(|mut ready| ready.clear_ready())
    }

    /// Passes on all messages that are there; `None` if the kernel has dropped some.
    pub fn receive(&mut self, mut each: impl FnMut(Option<&Received<'_>>)) -> io::Result<()> {
        while self.0.get_mut().receive(&mut each)? {}
        Ok(())
    }

    /// Ends when `is_damage` is true for a message, or when the kernel has dropped messages. Safe to cancel.
    pub async fn hear(&mut self, is_damage: impl Fn(&Received<'_>) -> bool) {
        let mut is_damaged = false;
        while !is_damaged {
            let ready = self.readable().await;
            let outcome =
                ready.and_then(|()| self.receive(|message| is_damaged |= message.is_none_or(&is_damage)));
            if let Err(error) = outcome {
                log!("cannot receive the kernel's messages: {error}");
                tokio::time::sleep(PAUSE).await;
                is_damaged = true;
            }
        }
    }
}
