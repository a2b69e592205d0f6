//! Real processes and namespaces.

use std::process::{Child, Command, Stdio};

use super::process::{lives, parent_of};
use super::*;

#[test]
fn a_process_that_ends_while_its_namespace_is_read_is_no_obstacle() {
    use rustix::fs::{CWD, Mode, OFlags, openat, readlinkat};
    let mut child = Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = child.id();
    let link = openat(CWD, format!("/proc/{pid}/ns/net"), OFlags::PATH | OFlags::NOFOLLOW, Mode::empty());
    let link = link.unwrap();
    let denied = io::Error::from(ErrorKind::PermissionDenied);
    assert!(!has_ended(&format!("/proc/{pid}"), &denied), "a process that lives");
    child.kill().unwrap();
    child.wait().unwrap();
    // As in a readlink(2) that found the link before the process ended.
    let error: io::Error = readlinkat(&link, "", Vec::new()).unwrap_err().into();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert!(has_ended(&format!("/proc/{pid}"), &error));
}

fn whole() -> Sight {
    let own = fs::read_link("/proc/self/ns/net").ok().and_then(|link| inode_of(link.to_str()?));
    // Process 1 of a build machine may be out of reach.
    Sight { own: own.unwrap(), partial: None, is_within: true, is_elsewhere: false }
}

fn process_of(child: &Child, names: &[&str]) -> Option<Process> {
    let names = names.iter().map(|name| (*name).to_owned()).collect();
    processes(&whole(), &names).unwrap().into_iter().find(|one| one.pid == child.id())
}

/// What comes within ten seconds.
fn wait<T>(mut find: impl FnMut() -> Option<T>) -> T {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(start.elapsed().as_secs() < 10, "nothing has come");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Its namespace has no mount, and `/proc/PID/ns/net` leads nowhere.
#[test]
fn a_process_whose_main_thread_has_ended_keeps_its_namespace() {
    let script = "import ctypes, threading, time
threading.Thread(target=time.sleep, args=(1000,)).start()
ctypes.CDLL(None).pthread_exit(None)";
    let mut child =
        Command::new("unshare").args(["--net", "python3", "-c", script, "scene-thread"]).spawn().unwrap();
    let pid = child.id();
    wait(|| (!lives(&format!("/proc/{pid}/task/{pid}"))).then_some(()));
    let found = namespaces(&whole()).unwrap();
    let process = process_of(&child, &["scene-thread"]).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(found.iter().any(|namespace| namespace.processes == [pid]), "{found:?}");
    assert!(process.works_for.contains("scene-thread") && process.unjudged.is_none(), "{process:?}");
    assert_eq!(process_of(&child, &[]), None);
}

#[test]
fn a_process_names_its_container() {
    let mut child = Command::new("sh");
    child.args(["-c", "read _", "-id", "scene-shim"]).env("CNI_CONTAINERID", "scene-plugin");
    let mut child = child.stdin(Stdio::piped()).spawn().unwrap();
    let names = ["scene-shim", "scene-plugin", "scene", "-id"];
    let found = wait(|| process_of(&child, &names).filter(|one| !one.works_for.is_empty()));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(found.works_for.iter().eq(["-id", "scene-plugin", "scene-shim"]), "{found:?}");
    assert_eq!(found.container.as_deref(), Some("scene-plugin"));
}

#[test]
fn a_process_without_arguments_is_no_kernel_thread() {
    use std::os::unix::process::CommandExt as _;
    let mut child = Command::new("cat").arg0("").stdin(Stdio::piped()).spawn().unwrap();
    let found = wait(|| process_of(&child, &[]));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found.pid, child.id());
}

/// A container's process has any environment and arguments that it likes: they are no sign of life of another container.
#[test]
fn a_caller_is_in_the_nodes_pid_namespace() {
    let mut child = Command::new("unshare");
    child.args(["--pid", "--fork", "--kill-child", "sh", "-c", "sleep 1000; :", "scene-shim"]);
    let mut child = child.env("CNI_CONTAINERID", "scene-caller").spawn().unwrap();
    let names = || ["scene-caller", "scene-shim"].map(str::to_owned).into_iter().collect::<Names>();
    let all = || processes(&whole(), &names()).unwrap();
    let outside = wait(|| all().into_iter().find(|one| one.pid == child.id() && one.container.is_some()));
    let inside =
        wait(|| all().into_iter().find(|one| one.is_inside && parent_of(one.pid) == Some(child.id())));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!((outside.is_on_host, inside.is_on_host), (true, false));
    assert_eq!((outside.is_inside, outside.works_for.len(), inside.works_for.len()), (false, 2, 0));
}

#[test]
fn plugins_need_two_capabilities() {
    let lacks = |mask: &str| lacks(&format!("CapPrm:\t0\nCapEff:\t{mask}\n"));
    assert_eq!((lacks("000001ffffffffff"), lacks("0000000000201000")), (None, None));
    assert_eq!((lacks("0000000000200000"), lacks("1000")), (Some("CAP_NET_ADMIN"), Some("CAP_SYS_ADMIN")));
}
