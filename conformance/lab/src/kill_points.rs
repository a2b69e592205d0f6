//! Kill points of a plugin call: one before each system call whose effect is visible outside of the process.
//!
//! The state that a killed call leaves behind depends only on which of these system calls it has made. So
//! killing before each of them covers every case that timed kills hit by chance. `strace` records the system
//! calls and kills the plugin; programs that the plugin has started live on, as with any SIGKILL.

use std::collections::HashMap;
use std::fmt;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;

use super::place::Place;
use super::{remarks, strace};
use cni_runner::Exec;

/// System calls that change something outside of the process, wait for another process, or end the process.
/// The `?` tells strace to ignore the names that the architecture does not have.
const NOTICED: &str = "?open,?openat,?write,?writev,?pwrite64,?ftruncate,?fsync,?fdatasync,?flock,?fsetxattr,?setxattr,\
    ?utimensat,?fchmod,?chmod,?fchmodat,?chown,?fchown,?lchown,?fchownat,?copy_file_range,?sendfile,?link,?linkat,?symlink,?symlinkat,?unlink,?unlinkat,?rename,?renameat,?renameat2,\
    ?mkdir,?mkdirat,?rmdir,?connect,?sendto,?sendmsg,?setns,?unshare,?mount,?umount2,?ioctl,?fork,?vfork,?clone,?clone3,\
    ?poll,?ppoll,?wait4,?waitid,?exit_group";

/// One part in this many of a call's kill points may fail to recur: a plugin that retries because the kernel
/// was busy makes a few more system calls in one run than in another. If more are missing, the run took
/// another path.
const SPARE: usize = 3;

/// A kill point: before the nth system call of this name, counted from 1.
#[derive(Debug, Clone)]
pub struct KillPoint {
    name: String,
    nth: usize,
    /// How many kill points of the same call may still fail to recur. All kill points of a call share it.
    spare: Arc<AtomicUsize>,
}

impl fmt::Display for KillPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "before {} {}", self.name, self.nth)
    }
}

impl KillPoint {
    /// Makes the call, which must succeed, and returns its kill points in the order of the system calls.
    pub fn all(place: &impl Place, exec: &Exec) -> anyhow::Result<Vec<KillPoint>> {
        let log = strace::record(place, exec, &["-e", &format!("trace={NOTICED}")])?;
        let spare = Arc::new(AtomicUsize::new(0));
        let mut counts = HashMap::new();
        let mut kill_points = Vec::new();
        for line in log.lines() {
            let (name, arguments) = line.split_once('(').with_context(|| format!("strace wrote {line:?}"))?;
            let nth = *counts.entry(name.to_owned()).and_modify(|count| *count += 1).or_insert(1);
            // Opening for reading has no effect outside. Most of it is the dynamic linker of a debug build.
            if !arguments.contains("O_RDONLY") || arguments.contains("O_CREAT") {
                kill_points.push(KillPoint { name: name.to_owned(), nth, spare: Arc::clone(&spare) });
            }
        }
        // Every plugin has more than five. Fewer mean that strace traced another program or none.
        ensure!(kill_points.len() > 5, "strace found only {kill_points:?} in {}", exec.command);
        spare.store(kill_points.len() / SPARE, Ordering::Relaxed);
        Ok(kill_points)
    }

    /// Makes the call and lets the system call at this point fail with EIO. Returns the exit status. The last system
    /// call, which ends the process, cannot fail: `None`.
    pub fn fail(&self, place: &impl Place, exec: &Exec) -> anyhow::Result<Option<ExitStatus>> {
        if self.name == "exit_group" {
            return Ok(None);
        }
        let trace = format!("trace={}", self.name);
        let inject = format!("inject={}:error=EIO:when={}", self.name, self.nth);
        place.run(|| strace::run(exec, &["-e", &trace, "-e", &inject, "-o", "/dev/null"]))?.map(Some)
    }

    /// Makes the call and kills the plugin at this point. If the point does not recur, the call runs to its
    /// end and the closing lines of `./test.sh` name the point; that is an error for more than a third of a
    /// call's points. When this returns, all processes that
    /// the plugin had started have ended; a real runtime takes longer until its next call.
    pub fn kill(&self, place: &impl Place, exec: &Exec) -> anyhow::Result<()> {
        self.kill_or_say(place, exec, remarks::missed)
    }

    /// Makes the call, stops it right after the system call at this point, does `meanwhile`, and lets the call go on to its
    /// end. So another process gets its turn between any two steps, without a timer.
    pub fn pause(
        &self,
        place: &impl Place,
        exec: &Exec,
        meanwhile: impl FnOnce() + Send,
    ) -> anyhow::Result<ExitStatus> {
        let trace = format!("trace={}", self.name);
        let inject = format!("inject={}:signal=STOP:when={}", self.name, self.nth);
        place.run(|| strace::run_stopped(exec, &["-e", &trace, "-e", &inject], meanwhile))?
    }

    /// [`KillPoint::kill`], with a function for the remark about a missed point.
    fn kill_or_say(
        &self,
        place: &impl Place,
        exec: &Exec,
        missed: impl FnOnce(String),
    ) -> anyhow::Result<()> {
        let trace = format!("trace={}", self.name);
        let inject = format!("inject={}:signal=KILL:when={}", self.name, self.nth);
        let status = place.run(|| strace::run(exec, &["-e", &trace, "-e", &inject, "-o", "/dev/null"]))??;
        // strace ends by the same signal as the plugin.
        if status.signal() == Some(Signal::SIGKILL as i32) {
            return Ok(());
        }
        let plugin = exec.binary.file_name().unwrap_or_default().to_string_lossy();
        missed(format!("{plugin} {}, {self}: {status}", exec.command));
        let spared =
            self.spare.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        ensure!(
            spared.is_ok(),
            "{} ended without reaching the kill point {self}, like more than a third of its kill points: {status}",
            exec.command
        );
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::fs;
    use std::os::unix::fs::PermissionsExt as _;

    use crate::Machine;

    use super::*;

    #[test]
    fn missed_kill_points_are_named_and_more_than_a_third_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let exec = Exec::new(folder.path().join("steps"), "ADD");
        let write = |steps: &str| {
            fs::write(&exec.binary, format!("#!/bin/sh\nfor step in {steps}; do : > /dev/null; done\n"))
                .unwrap();
            fs::set_permissions(&exec.binary, fs::Permissions::from_mode(0o755)).unwrap();
        };
        write("1 2 3 4 5 6 7 8");
        let kill_points = KillPoint::all(&Machine, &exec).unwrap();
        // A call that opens one file less misses this kill point.
        let last = kill_points.iter().rfind(|kill_point| kill_point.name == "openat").unwrap();
        write("1 2 3 4 5 6 7");
        let mut missed = Vec::new();
        for kill_point in &kill_points {
            kill_point.kill_or_say(&Machine, &exec, |remark| missed.push(remark)).unwrap();
        }
        assert_eq!(missed, [format!("steps ADD, {last}: exit status: 0")]);
        write("");
        assert!(kill_points.iter().any(|point| point.kill_or_say(&Machine, &exec, drop).is_err()));
    }
}
