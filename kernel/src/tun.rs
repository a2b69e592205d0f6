//! Makes persistent tap devices.
//!
//! Netlink cannot make them (`tun_validate` in drivers/net/tun.c refuses), so this is the one file of the workspace with
//! `unsafe`: four ioctl calls.
//!
//! # References
//! linux/if_tun.h; Documentation/networking/tuntap.rst.

#![allow(unsafe_code, reason = "neither std nor nix has a safe function for these ioctls")]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;

use nix::errno::Errno;
use nix::libc::{
    IFF_MULTI_QUEUE, IFF_NO_PI, IFF_TAP, IFF_VNET_HDR, IFNAMSIZ, TUNSETGROUP, TUNSETIFF, TUNSETOWNER,
    TUNSETPERSIST, c_ulong, ioctl,
};

/// Length of `struct ifreq`.
const IFREQ: usize = size_of::<nix::libc::ifreq>();
const DEVICE: &str = "/dev/net/tun";
/// The label of the program that this thread starts next.
const EXEC_LABEL: &str = "/proc/thread-self/attr/exec";

/// A tap device to make.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tap {
    /// Its name, of at most 15 bytes.
    pub name: String,
    /// The user who may open it.
    pub owner: Option<u32>,
    /// The group that may open it.
    pub group: Option<u32>,
    /// Whether it can be opened several times, once for each queue.
    pub multi_queue: bool,
}

impl Tap {
    /// Makes the device in the calling thread's network namespace, down and persistent. Its packets have a virtio header and
    /// no protocol information, unless the program that opens it chooses otherwise. A kill leaves a complete device or none:
    /// the kernel removes a device that is not persistent when it is closed.
    ///
    /// If a tap device of this name exists, changes that one: the caller checks.
    ///
    /// # Errors
    /// The device file cannot be opened, or an ioctl failed.
    pub fn make(&self) -> io::Result<()> {
        let file = open()?;
        let mut request = [0; IFREQ];
        if self.name.is_empty() || self.name.len() >= IFNAMSIZ {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        request[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | if self.multi_queue { IFF_MULTI_QUEUE } else { 0 };
        // The field has 16 bits.
        request[IFNAMSIZ..IFNAMSIZ + 2].copy_from_slice(&(flags as u16).to_ne_bytes());
        let fd = file.as_raw_fd();
        // SAFETY: `fd` is open during all calls. TUNSETIFF reads and writes one `struct ifreq`, and `request` has its size.
        // The kernel takes the argument of the others as a number.
        unsafe {
            Errno::result(ioctl(fd, TUNSETIFF, &raw mut request))?;
            if let Some(owner) = self.owner {
                Errno::result(ioctl(fd, TUNSETOWNER, c_ulong::from(owner)))?;
            }
            if let Some(group) = self.group {
                Errno::result(ioctl(fd, TUNSETGROUP, c_ulong::from(group)))?;
            }
            Errno::result(ioctl(fd, TUNSETPERSIST, c_ulong::from(true)))?;
        }
        Ok(())
    }
}

/// Opens the device file. That fails if the kernel has no tap devices.
pub fn open() -> io::Result<File> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("open {DEVICE}: {error}"));
    File::options().read(true).write(true).open(DEVICE).map_err(failed)
}

/// Sets the SELinux label of the program that the calling thread starts next; an empty one removes it. A tap device has
/// the label of the program that makes it.
pub fn label_next_program(label: &str) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("write {EXEC_LABEL}: {error}"));
    fs::write(EXEC_LABEL, label).map_err(failed)
}
