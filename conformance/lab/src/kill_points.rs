//! Kill points of a plugin call: one before each system call whose effect is visible outside of the process.
//!
//! The state that a killed call leaves behind depends only on which of these system calls it has made. So
//! killing before each of them covers every case that timed kills hit by chance. `strace` records the system
//! calls and kills the plugin; programs that the plugin has started live on, as with any SIGKILL.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::fs;
use std::os::unix::process::ExitStatusExt as _;
use std::process::ExitStatus;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use nix::sys::signal::Signal;

use super::place::Place;
use super::strace;
use cni_runner::Exec;

/// System calls that change something outside of the process, wait for another process, or end the process.
/// The `?` tells strace to ignore the names that the architecture does not have.
const NOTICED: &str = "?open,?openat,?write,?writev,?pwrite64,?ftruncate,?fsync,?fdatasync,?flock,?fsetxattr,?setxattr,\
    ?utimensat,?fchmod,?chmod,?fchmodat,?chown,?fchown,?lchown,?fchownat,?copy_file_range,?sendfile,?link,?linkat,?symlink,?symlinkat,?unlink,?unlinkat,?rename,?renameat,?renameat2,\
    ?mkdir,?mkdirat,?rmdir,?connect,?sendto,?sendmsg,?setns,?unshare,?mount,?umount2,?ioctl,?fork,?vfork,?clone,?clone3,\
    ?poll,?ppoll,?wait4,?waitid,?exit_group";

/// Calls that wait, which a call makes only if something is not ready yet.
const WAITS: [&str; 4] = ["poll", "ppoll", "wait4", "waitid"];

/// What a call does, as far as it does not depend on the load of the machine: the names of its system calls, and the types of
/// its netlink requests. How often it makes each of them does depend on it, because plugins repeat lookups.
type Kinds = BTreeSet<String>;

/// The kinds of system calls in strace's lines.
fn kinds(log: &str) -> Kinds {
    let kind = |line: &str| {
        let (name, arguments) = line.split_once('(')?;
        let request = arguments.split_once("nlmsg_type=").and_then(|(_, rest)| rest.split(',').next());
        (!WAITS.contains(&name)).then(|| format!("{name} {}", request.unwrap_or_default()))
    };
    log.lines().filter_map(kind).collect()
}

/// A kill point: before the nth system call of this name, counted from 1.
#[derive(Debug, Clone)]
pub struct KillPoint {
    name: String,
    nth: usize,
    /// The kinds of the recorded call. All kill points of a call share it.
    kinds: Arc<Kinds>,
}

impl fmt::Display for KillPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "before {} {}", self.name, self.nth)
    }
}

impl KillPoint {
    /// Makes the call, which must succeed, and returns its kill points in the order of the system calls.
    pub fn all(place: &impl Place, exec: &Exec) -> anyhow::Result<Vec<KillPoint>> {
        KillPoint::of(place, exec, NOTICED)
    }

    /// As [`KillPoint::all`], but each request to the kernel and each answer, for [`KillPoint::pause`].
    pub fn requests(place: &impl Place, exec: &Exec) -> anyhow::Result<Vec<KillPoint>> {
        KillPoint::of(place, exec, "sendto,recvfrom")
    }

    fn of(place: &impl Place, exec: &Exec, names: &str) -> anyhow::Result<Vec<KillPoint>> {
        let log = strace::record(place, exec, &["-e", &format!("trace={names}")])?;
        let kinds = Arc::new(kinds(&log));
        let mut counts = HashMap::new();
        let mut kill_points = Vec::new();
        for line in log.lines() {
            let (name, arguments) = line.split_once('(').with_context(|| format!("strace wrote {line:?}"))?;
            let nth = *counts.entry(name.to_owned()).and_modify(|count| *count += 1).or_insert(1);
            // Opening for reading has no effect outside. Most of it is the dynamic linker of a debug build. Nor has a call that the
            // kernel restarts: a write of a forwarding sysctl does so thousands of times while others change links.
            let is_reading = arguments.contains("O_RDONLY") && !arguments.contains("O_CREAT");
            if !is_reading && !arguments.contains(" ERESTARTNOINTR ") {
                kill_points.push(KillPoint { name: name.to_owned(), nth, kinds: Arc::clone(&kinds) });
            }
        }
        // Every plugin has more than five. Fewer mean that strace traced another program or none.
        ensure!(kill_points.len() > 5, "strace found only {kill_points:?} in {}", exec.command);
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

    /// Makes the call and kills the plugin at this point. When this returns, all processes that the plugin had started have
    /// ended; a real runtime takes longer until its next call.
    ///
    /// A call that repeats less than the recorded one ends before the point. It must then have succeeded and have done all
    /// that the recorded one did: what has to hold after a kill holds after its end too.
    pub fn kill(&self, place: &impl Place, exec: &Exec) -> anyhow::Result<()> {
        let trace = format!("trace={NOTICED}");
        let inject = format!("inject={}:signal=KILL:when={}", self.name, self.nth);
        let log = tempfile::NamedTempFile::new()?;
        let options = ["-e", &trace, "-e", &inject, "-o", &log.path().to_string_lossy()];
        let status = place.run(|| strace::run(exec, &options))??;
        // strace ends by the same signal as the plugin.
        if status.signal() == Some(Signal::SIGKILL as i32) {
            return Ok(());
        }
        let (verb, made) = (&exec.command, kinds(&fs::read_to_string(log.path())?));
        let missing: Vec<_> = self.kinds.difference(&made).collect();
        ensure!(
            status.success() && missing.is_empty(),
            "{verb} ended without reaching the kill point {self}: {status}, not made: {missing:?}"
        );
        Ok(())
    }
}

/// Chooses what follows a kill, of several ways to go on. They see of the killed call only the state that it has left: so all of them
/// follow a kill whose state no kill before has left, and one in turn follows any other.
#[derive(Debug, Default)]
pub struct WaysOn {
    seen: BTreeSet<String>,
    turn: usize,
}

impl WaysOn {
    /// The ways that follow a kill. `state` has everything that they can see.
    pub fn after<'w, W>(&mut self, state: String, ways: &'w [W]) -> &'w [W] {
        if self.seen.insert(state) {
            return ways;
        }
        self.turn = (self.turn + 1) % ways.len().max(1);
        ways.get(self.turn..=self.turn).unwrap_or_default()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use crate::Machine;

    use super::*;

    /// A shell script that opens files for writing, and the calls of it.
    fn script(text: &str) -> (tempfile::TempDir, Exec) {
        let folder = tempfile::tempdir().unwrap();
        let exec = Exec::new(folder.path().join("steps"), "ADD");
        write(&exec, text);
        (folder, exec)
    }

    fn write(exec: &Exec, text: &str) {
        fs::write(&exec.binary, format!("#!/bin/sh\n{text}\n")).unwrap();
        fs::set_permissions(&exec.binary, fs::Permissions::from_mode(0o755)).unwrap();
    }

    #[test]
    fn all_ways_follow_a_new_state_and_one_in_turn_an_old_one() {
        let mut ways_on = WaysOn::default();
        let mut after = |state: &str| ways_on.after(state.to_owned(), &["DEL", "GC"]).to_vec();
        assert_eq!(after("none"), ["DEL", "GC"]);
        assert_eq!([after("none"), after("none"), after("none")].concat(), ["GC", "DEL", "GC"]);
        assert_eq!(after("half"), ["DEL", "GC"]);
    }

    const REPEATS: &str = "for step in 1 2 3 4 5 6 7 8 9; do : > /dev/null; done; (:)";

    #[test]
    fn a_call_may_repeat_less_than_the_recorded_one() {
        let (_folder, exec) = script(REPEATS);
        let kill_points = KillPoint::all(&Machine, &exec).unwrap();
        write(&exec, ": > /dev/null; (:)");
        for kill_point in &kill_points {
            kill_point.kill(&Machine, &exec).unwrap();
        }
    }

    #[test]
    fn a_call_that_takes_another_path_is_an_error() {
        let (_folder, exec) = script(REPEATS);
        let kill_points = KillPoint::all(&Machine, &exec).unwrap();
        let last_open = kill_points.iter().rfind(|point| point.name == "openat").unwrap();
        // It does less, or it fails.
        for (other, text) in
            [(": > /dev/null", "not made: [\""), (": > /dev/null; (:); exit 7", "exit status: 7")]
        {
            write(&exec, other);
            let error = last_open.kill(&Machine, &exec).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
    }
}
