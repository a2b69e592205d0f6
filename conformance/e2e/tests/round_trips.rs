//! What each verb of each plugin asks the kernel for. The tests need root and `strace`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;

use cni_lab::Place as _;
use cni_lab::testing::{Expect as _, Trace, succeed};
use common::{Chain, PLUGINS};
use serde_json::Value;

#[path = "common/chain.rs"]
mod common;

const VERBS: [&str; 3] = ["ADD", "CHECK", "DEL"];
/// For each verb the datagrams that the plugins of the chain send and receive, for a pod that is not the node's
/// first, with one IPv4 address and one host port. An increase needs a reason.
const EXPECTED: [[(usize, usize); VERBS.len()]; PLUGINS.len()] = [
    [(1, 2), (1, 3), (1, 1)],
    // DEL also looks for the chains of macspoofchk, because the configuration may have changed since ADD. The container may have
    // given its interface another name, so DEL lists the addresses that are left and looks for the host's end. ADD and CHECK ask
    // whether the node forwards: /proc/sys takes longer on a node with many pods. ADD sets the port up last, because its time would
    // grow with the pods, and then waits until the container may send.
    [(10, 13), (6, 13), (6, 10)],
    // ADD and CHECK look at the chain that clears marks.
    [(3, 18), (11, 23), (9, 14)],
    [(4, 9), (3, 11), (3, 10)],
];
/// Kernels before 6.9 send the addresses of each family, and the end of the list, in separate datagrams.
const OLDER_KERNEL: usize = 2;
/// ADD repeats a lookup if the kernel has not set the link up yet, which takes longer on a busy machine.
const ATTEMPTS: usize = 5;

#[test]
fn datagrams_of_each_verb() {
    let chain = Chain::new(&["10.1.0.0/24"]);
    let mut found = [[(usize::MAX, usize::MAX); VERBS.len()]; PLUGINS.len()];
    for attempt in 0..ATTEMPTS {
        let attachment = chain.attachment(&format!("pod{attempt}"), 8080);
        let count = |verb, plugin, previous: Option<&Value>| {
            let exec = chain.exec(verb, plugin, &attachment, previous);
            let trace = Trace::of(&chain.node, &exec, "sendto,sendmsg,recvfrom,recvmsg");
            (trace.count(&["sendto", "sendmsg"]), trace.count(&["recvfrom", "recvmsg"]))
        };
        let mut results = vec![None];
        for (plugin, row) in found.iter_mut().enumerate() {
            row[0] = row[0].min(count("ADD", plugin, results[plugin].as_ref()));
            // The traced ADD prints no result. A plugin's second ADD needs the state before the first one.
            chain.del(plugin, &attachment, results[plugin].as_ref());
            let exec = chain.exec("ADD", plugin, &attachment, results[plugin].as_ref());
            results.push(Some(succeed(&chain.node, &exec)));
        }
        let last = results.last().and_then(Option::as_ref);
        for verb in [1, 2] {
            for plugin in (0..PLUGINS.len()).rev() {
                found[plugin][verb] = found[plugin][verb].min(count(VERBS[verb], plugin, last));
            }
        }
        let is_right = |(found, expected): (&(usize, usize), &(usize, usize))| {
            found.0 == expected.0 && found.1 <= expected.1 + OLDER_KERNEL
        };
        if found.as_flattened().iter().zip(EXPECTED.as_flattened()).all(is_right) {
            return;
        }
    }
    for (plugin, (found, expected)) in PLUGINS.iter().zip(found.iter().zip(EXPECTED)) {
        println!("{plugin}: {VERBS:?} send and receive {found:?}, expected {expected:?}");
    }
    panic!("the number of datagrams has changed");
}

/// The files below /proc/sys/net that ADD opens for a pod that is not the node's first. The kernel looks for such a file among those of all
/// namespaces, which takes 60 µs beside 300 pods. These two have no other way: accept_ra of the host's end, accept_dad of the container's.
const SYSCTLS: [usize; PLUGINS.len()] = [0, 2, 0, 0];

#[test]
fn add_opens_few_sysctls() {
    let chain = Chain::new(&["10.1.0.0/24"]);
    let mut found = [0; PLUGINS.len()];
    for (pod, port) in [("pod0", 8080), ("pod1", 8081)] {
        let attachment = chain.attachment(pod, port);
        let mut result = None;
        for (plugin, found) in found.iter_mut().enumerate() {
            let exec = chain.exec("ADD", plugin, &attachment, result.as_ref());
            *found = Trace::of(&chain.node, &exec, "?open,openat,?stat,statx").naming("/proc/sys/net");
            // The traced ADD prints no result.
            chain.del(plugin, &attachment, result.as_ref());
            result = Some(succeed(&chain.node, &exec));
        }
    }
    assert_eq!(found, SYSCTLS, "{PLUGINS:?}");
}

/// The program that a kernel starts to load a module.
const MODPROBE: &str = "/proc/sys/kernel/modprobe";

/// Puts the kernel's setting back.
struct Restore(String);

impl Drop for Restore {
    fn drop(&mut self) {
        fs::write(MODPROBE, &self.0).unwrap();
    }
}

/// Some lookups of missing objects let the kernel start modprobe each time, such as `SIOCGIFINDEX`.
#[test]
#[ignore = "stock kernel: ./test.sh kernel"]
fn no_call_starts_modprobe() {
    let chain = Chain::new(&["10.1.0.0/24"]);
    let live = |pod, port| {
        let attachment = chain.attachment(pod, port);
        let result = chain.add_before(PLUGINS.len(), &attachment);
        for verb in ["CHECK", "DEL"] {
            for plugin in (0..PLUGINS.len()).rev() {
                chain.node.call(&chain.exec(verb, plugin, &attachment, result.as_ref())).unwrap().ok();
            }
        }
    };
    // Loads the modules.
    live("pod0", 8080);

    let dir = tempfile::tempdir().unwrap();
    let (script, log) = (dir.path().join("modprobe"), dir.path().join("log"));
    fs::write(&script, format!("#!/bin/sh\necho \"$@\" >>{}\n", log.display())).unwrap();
    fs::set_permissions(&script, Permissions::from_mode(0o755)).unwrap();
    let _restore = Restore(fs::read_to_string(MODPROBE).unwrap());
    fs::write(MODPROBE, script.as_os_str().as_encoded_bytes()).unwrap();
    live("pod1", 8081);
    assert_eq!(fs::read_to_string(log).unwrap_or_default(), "", "the kernel was asked for modules");
}
