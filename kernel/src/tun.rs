//! Makes persistent tap devices.
//!
//! Netlink cannot make them (`tun_validate` in drivers/net/tun.c refuses), so this is the one file of the workspace with
//! `unsafe`: four ioctl calls.
//!
//! # References
//! linux/if_tun.h; Documentation/networking/tuntap.rst.

#![allow(unsafe_code, reason = "neither std nor nix has a safe function for TUNSETIFF")]

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd as _;

use nix::libc::c_int;

/// Length of `struct ifreq`.
const IFREQ: usize = size_of::<nix::libc::ifreq>();
/// `IFNAMSIZ`: the longest name with the terminating zero.
const NAME: usize = 16;
const DEVICE: &str = "/dev/net/tun";
/// The label of the program that this thread starts next.
const EXEC_LABEL: &str = "/proc/thread-self/attr/exec";

const IFF_TAP: u16 = 0x0002;
const IFF_MULTI_QUEUE: u16 = 0x0100;
const IFF_NO_PI: u16 = 0x1000;
const IFF_VNET_HDR: u16 = 0x4000;

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

mod ioctl {
    use super::{IFREQ, c_int};

    nix::ioctl_readwrite_bad!(
        /// `TUNSETIFF`
        set_if,
        nix::request_code_write!(b'T', 202, size_of::<c_int>()),
        [u8; IFREQ]
    );
    nix::ioctl_write_int_bad!(
        /// `TUNSETPERSIST`
        set_persist,
        nix::request_code_write!(b'T', 203, size_of::<c_int>())
    );
    nix::ioctl_write_int_bad!(
        /// `TUNSETOWNER`
        set_owner,
        nix::request_code_write!(b'T', 204, size_of::<c_int>())
    );
    nix::ioctl_write_int_bad!(
        /// `TUNSETGROUP`
        set_group,
        nix::request_code_write!(b'T', 206, size_of::<c_int>())
    );
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
        if self.name.is_empty() || self.name.len() >= NAME {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        request[..self.name.len()].copy_from_slice(self.name.as_bytes());
        let flags = IFF_TAP | IFF_NO_PI | IFF_VNET_HDR | if self.multi_queue { IFF_MULTI_QUEUE } else { 0 };
        request[NAME..NAME + 2].copy_from_slice(&flags.to_ne_bytes());
        let fd = file.as_raw_fd();
        // SAFETY: `fd` is open during all calls. TUNSETIFF reads and writes one `struct ifreq`, and `request` has its size.
        // The kernel takes the argument of the others as a number.
        unsafe {
            ioctl::set_if(fd, &raw mut request)?;
            if let Some(owner) = self.owner {
                ioctl::set_owner(fd, owner.cast_signed())?;
            }
            if let Some(group) = self.group {
                ioctl::set_group(fd, group.cast_signed())?;
            }
            ioctl::set_persist(fd, 1)?;
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
