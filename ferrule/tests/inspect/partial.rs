//! In containers that do not see the whole node nothing is removed, and each command says what it does not see.

use std::process::{Command, Output};

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::json;

use crate::fixture::{Fixture, PROGRAM};

/// What a container lacks, the script that makes it, and what commands say then. `$@` is the command.
const CONTAINERS: [(&str, &str, &str); 7] = [
    ("PIDs", "unshare --mount --pid --fork --mount-proc \"$@\"", "initial PID namespace"),
    (
        "PIDs and namespaces",
        "unshare --mount --pid --fork --mount-proc sh -c 'umount -l /run/netns/*; exec \"$@\"' sh \"$@\"",
        "initial PID namespace",
    ),
    (
        "namespaces",
        "unshare --mount sh -c 'mount -t tmpfs none /run/netns; exec \"$@\"' sh \"$@\"",
        "not visible here",
    ),
    ("/run", "unshare --mount sh -c 'mount -t tmpfs none /run; exec \"$@\"' sh \"$@\"", "not visible here"),
    ("/proc", "unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"$@\"' sh \"$@\"", "/proc"),
    (
        "the cache",
        "unshare --mount sh -c 'mount -t tmpfs none /var/lib/cni/results; exec \"$@\"' sh \"$@\"",
        "/var/lib/cni/results",
    ),
    ("rights", "setpriv --bounding-set -all --inh-caps -all \"$@\"", "ermi"),
];

fn in_container(f: &Fixture, script: &str, words: &str) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", PROGRAM]).args(words.split(' '));
    f.node.exec(command.env_remove("CNI_COMMAND")).unwrap()
}

/// A macvlan has no end on the host: only its namespace shows that it lives.
fn macvlan() -> Network {
    let ipam = json!({"type": "host-local", "subnet": "10.214.0.0/24"});
    let plugins =
        json!([{"type": "macvlan", "master": "up0", "ipam": ipam}, {"type": "tuning", "mtu": 1400}]);
    Network::from_value(&json!({"name": "lan", "cniVersion": "1.0.0", "plugins": plugins})).unwrap()
}

#[test]
fn nothing_is_removed_and_each_command_says_why() {
    let f = Fixture::new();
    f.node.sh("ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up").unwrap();
    let living = f.add_to(Origin::Ours, &macvlan(), "inspect-partial-a", |pod| pod.attachment("eth0"));
    let dead = f.add_to(Origin::Ours, &macvlan(), "inspect-partial-b", |pod| pod.attachment("eth0"));
    dead.pod.delete().unwrap();
    assert!(eventually(TIMEOUT, || f.leaks().len() == 2), "{:#?}", f.leaks());
    let before = Snapshot::take(&f.node).unwrap();
    let bin_dir = f.bin_dir(Origin::Ours).display().to_string();
    for (what, script, why) in CONTAINERS {
        // With its own PID namespace the container has a process 1.
        let words = |words: &str| if what.starts_with("PIDs") { words.to_owned() } else { f.words(words) };
        for command in [
            "gc --yes",
            "gc --dry-run",
            "inspect leaks",
            &format!("doctor --conf-dir /nowhere --bin-dir {bin_dir}"),
            &format!("check --bin-dir {bin_dir}"),
        ] {
            // CHECK of nothing is sound, and doctor does not read the cache.
            if what == "the cache" && !command.starts_with("gc") && !command.starts_with("inspect") {
                continue;
            }
            let output = in_container(&f, script, &words(command));
            let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
            assert!(!output.status.success(), "{command} without {what}: {said}");
            let is_explained = said.contains(why) || (what == "rights" && said.contains("failed"));
            assert!(is_explained, "{command} without {what}: {said}");
            assert!(
                !said.contains("would remove") && !said.contains("no cache entry"),
                "{command} without {what}: {said}"
            );
        }
        assert_eq!(before.diff(&Snapshot::take(&f.node).unwrap()), "", "without {what}");
    }
    // With another folder of sysfs nothing of the evidence is missing.
    let output = in_container(
        &f,
        "unshare --mount sh -c 'mount -t tmpfs none /sys; exec \"$@\"' sh \"$@\"",
        &f.words("gc --yes"),
    );
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && said.contains("2 of 2 leaks removed"), "{said}");
    f.runtime(Origin::Ours).check(&macvlan(), &living.attachment).unwrap();
}

/// Without the folder of cached results only an object's own proof counts.
#[test]
fn without_a_cache_the_owners_are_unknown() {
    let f = Fixture::new();
    f.add(Origin::Ours, "inspect-partial-c", 18601).pod.delete().unwrap();
    assert!(eventually(TIMEOUT, || f.leaks().len() == 7), "{:#?}", f.leaks());
    f.node.sh("rm -r /var/lib/cni/results").unwrap();
    let output = f.run("gc --yes");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("there is no folder of cached results at"), "{said}");
    f.node.read_file("/var/lib/cni/networks/ours/10.212.0.2").unwrap();
}
