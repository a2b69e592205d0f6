//! The kernel's words about devices on a bus. A device whose link is in a pod leaves its bus or its driver without a message
//! about the link on the node.

use std::io;

use rtnetlink::sys::protocols::NETLINK_KOBJECT_UEVENT;
use rtnetlink::sys::{AsyncSocket as _, AsyncSocketExt as _, SocketAddr, TokioSocket};

/// The group of the kernel; udev sends to another one.
const KERNEL: u32 = 1;

/// A subscription. Ends with this value.
pub(super) struct Uevents(TokioSocket);

impl Uevents {
    /// Subscribes. Needs a tokio runtime.
    pub(super) fn open() -> io::Result<Uevents> {
        let mut socket = TokioSocket::new(NETLINK_KOBJECT_UEVENT)?;
        socket.socket_mut().bind(&SocketAddr::new(0, KERNEL))?;
        Ok(Uevents(socket))
    }

    /// The ID of the next device that leaves. An error means lost messages.
    pub(super) async fn next(&self) -> io::Result<String> {
        loop {
            let (message, from) = self.0.recv_from_full().await?;
            if let Some(id) = leaves(&message).filter(|_| from.port_number() == 0) {
                return Ok(id);
            }
        }
    }
}

/// The device that leaves its bus or driver by this message: `ACTION@PATH`, then `KEY=VALUE`, each with a zero byte at its end.
fn leaves(message: &[u8]) -> Option<String> {
    let mut fields = message.split(|byte| *byte == 0).filter_map(|field| std::str::from_utf8(field).ok());
    let (action, path) = fields.next()?.split_once('@')?;
    let is_network_bus = |field: &str| ["SUBSYSTEM=pci", "SUBSYSTEM=auxiliary"].contains(&field);
    let leaves = ["remove", "unbind"].contains(&action) && fields.any(is_network_bus);
    leaves.then(|| path.rsplit('/').next().map(str::to_owned))?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_that_leave() {
        let message = |action: &str, subsystem: &str| {
            let path = "/devices/pci0000:00/0000:03:00.1";
            format!("{action}@{path}\0ACTION={action}\0DEVPATH={path}\0SUBSYSTEM={subsystem}\0SEQNUM=1\0")
        };
        for (text, expected) in [
            (message("remove", "pci"), Some("0000:03:00.1")),
            (message("unbind", "auxiliary"), Some("0000:03:00.1")),
            (message("add", "pci"), None),
            (message("remove", "net"), None),
            ("libudev\0".to_owned(), None),
            (String::new(), None),
        ] {
            assert_eq!(leaves(text.as_bytes()).as_deref(), expected, "{text:?}");
        }
    }
}
