//! Whether a reservation was made before the machine last started. What held it then cannot be alive now.
//!
//! A file of ours carries the kernel's boot ID in an extended attribute, which says it exactly and stays out of the
//! content. For files without one, made by the reference or on a file system without such attributes, the time of their
//! last change is compared with the time of the boot.
//!
//! That time is not what it seems. Now less the uptime is later than the boot by as much as the clock was set forward
//! since: by days on a virtual machine that was paused, by decades on a board without a battery. So it has to agree with
//! what the kernel wrote down at the boot by the clock of then: the time of `/dev/null`, a node of devtmpfs. The earlier
//! of the two counts, less a margin; in doubt a reservation is of this boot and stays.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::time::{Duration, SystemTime};

use rustix::fs::{XattrFlags, fgetxattr, fsetxattr};

/// The attribute that holds the boot ID.
const ATTRIBUTE: &str = "user.ferrule.boot";

/// How far the clock may drift or be set back and forth in a boot without a file of it being taken for an earlier one.
const MARGIN: Duration = Duration::from_secs(60);

/// The boot that this process runs in.
#[derive(Clone, Debug)]
pub struct Boot {
    id: Vec<u8>,
}

impl Boot {
    /// Asks the kernel. Where it does not tell its boot ID, files get none.
    pub fn current() -> Self {
        let id = fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Boot { id: id.trim_ascii().to_owned() }
    }

    /// Marks a new file as of this boot, if the file system allows it.
    pub fn mark(&self, file: impl AsFd) {
        if !self.id.is_empty() {
            // Not every file system has such attributes; the file's time is there in any case.
            let _ = fsetxattr(file, ATTRIBUTE, &self.id, XattrFlags::empty());
        }
    }

    /// Whether `file` was certainly made before this boot.
    pub fn is_after(&self, file: &File) -> bool {
        let mut value = [0; 64];
        match fgetxattr(file, ATTRIBUTE, &mut value[..]) {
            Ok(len) if len > 0 => !self.id.is_empty() && value[..len] != self.id,
            _ => {
                let time = file.metadata().and_then(|meta| meta.modified());
                time.is_ok_and(|time| is_before(time, start_of_boot()))
            }
        }
    }
}

/// When the kernel started, by the clock of now or by that of then, whichever is earlier; `None` if it is not known.
fn start_of_boot() -> Option<SystemTime> {
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let seconds: f64 = uptime.split_whitespace().next()?.parse().ok()?;
    let by_now = SystemTime::now().checked_sub(Duration::try_from_secs_f64(seconds).ok()?)?;
    let by_then = fs::metadata("/dev/null").and_then(|meta| meta.modified()).ok()?;
    Some(by_now.min(by_then))
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
        let (here, other) = (Boot::current(), Boot { id: b"another".to_vec() });
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
