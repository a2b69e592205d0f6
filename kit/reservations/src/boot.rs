//! Tells whether a reservation was made before the last boot. Its container cannot be running then.
//!
//! Our files carry the kernel's boot ID in an extended attribute, which is exact and does not change the
//! content. Files without the attribute come from the reference or from a file system without extended
//! attributes; their mtime is compared with the boot time.
//!
//! The boot time is uncertain. `now - uptime` is too late if the clock was stepped forward after boot: by
//! days on a virtual machine that was paused, by decades on a board without a battery-backed clock. The mtime
//! of `/dev/null` in devtmpfs is the boot time by the clock at that time. The earlier of the two counts,
//! minus a margin: in doubt a reservation belongs to this boot and stays.

use std::cell::OnceCell;
use std::fs::{self, File};
use std::time::{Duration, SystemTime};

use ferrule_kernel::sysctl;
use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// The extended attribute with the boot ID.
const ATTRIBUTE: &str = "user.ferrule.boot";

/// How far the clock may drift or be stepped back during a boot before a file of this boot seems to be from
/// an earlier one.
const MARGIN: Duration = Duration::from_secs(60);

/// The current boot.
#[derive(Clone, Debug)]
pub struct Boot {
    id: Vec<u8>,
    started: OnceCell<Option<SystemTime>>,
}

impl Boot {
    /// Reads the boot ID from the kernel. If that fails, [`Boot::mark`] does nothing.
    pub fn current() -> Self {
        Boot { id: sysctl::boot_id().into_bytes(), started: OnceCell::new() }
    }

    /// The ID; empty if it is not known.
    pub fn id(&self) -> &str {
        str::from_utf8(&self.id).unwrap_or_default()
    }

    /// Marks a new file with the boot ID, if the file system supports extended attributes.
    pub fn mark(&self, file: &File) {
        if !self.id.is_empty() {
            // Without the attribute, `is_after` uses the mtime.
            let _ = fsetxattr(file, ATTRIBUTE, &self.id, XattrFlags::empty());
        }
    }

    /// Whether `file` was certainly made before this boot. False if that is unknown.
    pub fn is_after(&self, file: &File) -> bool {
        let mut value = [0; 64];
        match fgetxattr(file, ATTRIBUTE, &mut value[..]) {
            Ok(len) if len > 0 => !self.id.is_empty() && value[..len] != self.id,
            _ => {
                let time = file.metadata().and_then(|meta| meta.modified());
                time.is_ok_and(|time| is_before(time, *self.started.get_or_init(start_of_boot)))
            }
        }
    }
}

/// Whether the file has the mark of any boot, so that this program has made it.
pub fn is_marked(file: &File) -> bool {
    fgetxattr(file, ATTRIBUTE, &mut [0; 64][..]).is_ok_and(|len| len > 0)
}

/// The boot time: the earlier of `now - uptime` and the mtime of `/dev/null`; `None` if one of them is
/// unknown.
fn start_of_boot() -> Option<SystemTime> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    // 350735.47: the fraction does not matter, see MARGIN.
    let seconds = uptime.split('.').next()?.parse().ok()?;
    let from_uptime = SystemTime::now().checked_sub(Duration::from_secs(seconds))?;
    let from_devtmpfs = fs::metadata("/dev/null").and_then(|meta| meta.modified()).ok()?;
    Some(from_uptime.min(from_devtmpfs))
}

fn is_before(time: SystemTime, boot: Option<SystemTime>) -> bool {
    boot.and_then(|boot| boot.checked_sub(MARGIN)).is_some_and(|boot| time < boot)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_near_the_boot_count_as_this_boot() {
        let boot = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        assert!(is_before(boot - Duration::from_secs(61), Some(boot)));
        assert!(!is_before(boot - Duration::from_secs(59), Some(boot)));
        assert!(!is_before(boot - Duration::from_secs(61), None));
        assert!(!is_before(SystemTime::UNIX_EPOCH, Some(SystemTime::UNIX_EPOCH)));
    }

    #[test]
    fn marks_count_more_than_times() {
        let (here, other) = (Boot::current(), Boot { id: b"another".to_vec(), started: OnceCell::new() });
        let file = tempfile::tempfile().unwrap();
        assert!(!here.is_after(&file));
        file.set_modified(SystemTime::UNIX_EPOCH).unwrap();
        assert!(here.is_after(&file));
        here.mark(&file);
        assert!(!here.is_after(&file));
        other.mark(&file);
        assert!(here.is_after(&file));
        file.set_modified(SystemTime::now()).unwrap();
        assert!(here.is_after(&file));
    }
}
