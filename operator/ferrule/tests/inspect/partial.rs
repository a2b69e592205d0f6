//! In containers that do not see the whole node nothing is removed, and each command names the missing view.

use std::process::Command;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, Snapshot, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::json;

use crate::fixture::{Fixture, PROGRAM};

/// The commands, as the columns of [`VIEWS`].
const COMMANDS: [&str; 6] = ["gc", "repair", "inspect leaks", "inspect pods", "check", "doctor"];

/// What a command promises in a container.
#[derive(Clone, Copy, Debug)]
enum Promise {
    /// It does not need the missing view: it says the same as on the node.
    Same,
    /// It does nothing but fail, and one line says why.
    Refuses(&'static str),
    /// It fails, and names the missing view. No living pod is dead, and none without a proof.
    Says(&'static str),
}

use Promise::{Refuses, Same, Says};

/// What a container lacks, the script that makes it, and what each command promises then. `$@` is the command.
const VIEWS: [(&str, &str, [Promise; 6]); 14] = [
    (
        "PID namespace",
        "unshare --mount --pid --fork --mount-proc \"$@\"",
        [Refuses(PIDS), Refuses(PIDS), Says(PIDS), Says(PIDS), Says(PIDS), Says(PIDS)],
    ),
    (
        "PID namespace and /run/netns",
        "unshare --mount --pid --fork --mount-proc sh -c 'umount -l /run/netns/*; exec \"$@\"' sh \"$@\"",
        [Refuses(PIDS), Refuses(PIDS), Says(PIDS), Says(PIDS), Says(PIDS), Says(PIDS)],
    ),
    ("network namespace", "unshare --net \"$@\"", [Refuses(NET), Refuses(NET), Says(NET), Says(NET), Says(NET), Says(NET)]),
    (
        "root folder",
        "unshare --mount sh -c 'mount -t tmpfs none /mnt; cd /mnt; for all in /*; do
            [ $all = /mnt ] || if [ -L $all ]; then cp -P $all .; elif [ -d $all ]; then mkdir .$all && mount --rbind $all .$all; fi
            done; exec chroot . \"$@\"' sh \"$@\"",
        [Refuses(ROOT), Refuses(ROOT), Says(ROOT), Says(ROOT), Same, Says(ROOT)],
    ),
    (
        "/run/netns",
        "unshare --mount sh -c 'mount -t tmpfs none /run/netns; exec \"$@\"' sh \"$@\"",
        [Refuses(HIDDEN), Refuses(HIDDEN), Says(HIDDEN), Says(HIDDEN), Says(HIDDEN), Says(HIDDEN)],
    ),
    (
        "/run",
        "unshare --mount sh -c 'mount -t tmpfs none /run; exec \"$@\"' sh \"$@\"",
        [Refuses(HIDDEN), Refuses(HIDDEN), Says(HIDDEN), Says(HIDDEN), Says(HIDDEN), Says(HIDDEN)],
    ),
    ("/sys", "unshare --mount sh -c 'mount -t tmpfs none /sys; exec \"$@\"' sh \"$@\"", [Same; 6]),
    (
        "/proc",
        "unshare --mount sh -c 'mount -t tmpfs none /proc; exec \"$@\"' sh \"$@\"",
        [Refuses("/proc"), Refuses("/proc"), Says("/proc"), Says("/proc"), Says("/proc"), Says("/proc")],
    ),
    (
        "cached results",
        "unshare --mount sh -c 'mount -t tmpfs none /var/lib/cni/results; exec \"$@\"' sh \"$@\"",
        [Refuses(CACHE), Refuses(CACHE), Says(CACHE), Says(CACHE), Says(CACHE), Same],
    ),
    (
        "/var/lib/cni",
        "unshare --mount sh -c 'mount -t tmpfs none /var/lib/cni; exec \"$@\"' sh \"$@\"",
        [Refuses("/var/lib/cni"), Refuses("/var/lib/cni"), Says("/var/lib/cni"), Says("/var/lib/cni"), Says("/var/lib/cni"), Same],
    ),
    (
        "CAP_NET_ADMIN",
        "setpriv --bounding-set -net_admin --inh-caps -net_admin \"$@\"",
        [Refuses(RIGHTS), Refuses("CAP_NET_ADMIN"), Says(RIGHTS), Says(RIGHTS), Says("CAP_NET_ADMIN"), Says(RIGHTS)],
    ),
    (
        "CAP_SYS_ADMIN",
        "setpriv --bounding-set -sys_admin --inh-caps -sys_admin \"$@\"",
        [Refuses(RIGHTS), Refuses("CAP_SYS_ADMIN"), Says(RIGHTS), Says(RIGHTS), Says("CAP_SYS_ADMIN"), Same],
    ),
    (
        "CAP_SYS_PTRACE",
        "setpriv --bounding-set -sys_ptrace --inh-caps -sys_ptrace \"$@\"",
        [Refuses(RIGHTS), Refuses(RIGHTS), Says(RIGHTS), Says(RIGHTS), Same, Says(RIGHTS)],
    ),
    (
        "root",
        "unshare --mount sh -c 'mount -t tmpfs none /mnt; cp \"$1\" /mnt/ferrule; shift; \
            exec setpriv --reuid 65534 --regid 65534 --clear-groups /mnt/ferrule \"$@\"' sh \"$@\"",
        [Refuses(RIGHTS), Refuses(RIGHTS), Says(RIGHTS), Says(RIGHTS), Says(RIGHTS), Says(RIGHTS)],
    ),
];

const PIDS: &str = "initial PID namespace";
const ROOT: &str = "another root folder";
const NET: &str = "another network namespace";
const HIDDEN: &str = "not visible here";
const CACHE: &str = "/var/lib/cni/results";
const RIGHTS: &str = "ermi";

/// What a command has said on both streams, and whether it succeeded.
fn in_container(f: &Fixture, script: &str, words: &str) -> (bool, String) {
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh", PROGRAM]).args(words.split(' '));
    let output = f.node.exec(command.env_remove("CNI_COMMAND")).unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&said).into_owned())
}

/// A macvlan has no end on the host: only its namespace shows that it lives.
fn macvlan() -> Network {
    let ipam = json!({"type": "host-local", "subnet": "10.214.0.0/24"});
    let plugins =
        json!([{"type": "macvlan", "master": "up0", "ipam": ipam}, {"type": "tuning", "mtu": 1400}]);
    Network::from_value(&json!({"name": "lan", "cniVersion": "1.0.0", "plugins": plugins})).unwrap()
}

/// The words without ages.
fn ageless(said: &str) -> Vec<&str> {
    let is_age = |word: &str| word.strip_suffix('s').is_some_and(|number| number.parse::<u32>().is_ok());
    said.split_whitespace().filter(|word| !is_age(word)).collect()
}

/// How the command breaks its promise.
fn broken(promise: Promise, (succeeded, said): &(bool, String), on_node: &(bool, String)) -> Option<String> {
    let is_kept = match promise {
        Same => on_node.0 == *succeeded && ageless(&on_node.1) == ageless(said),
        Refuses(why) => !succeeded && said.contains(why) && said.lines().count() == 1,
        Says(why) => {
            let claims = [" dead ", "no cache entry", "no leaks\n", "failed: "];
            !succeeded && said.contains(why) && !claims.iter().any(|claim| said.contains(claim))
        }
    };
    (!is_kept).then(|| format!("{promise:?} (status 0: {succeeded}):\n{said}"))
}

#[test]
fn nothing_is_removed_and_each_command_says_why() {
    let f = Fixture::new();
    f.node.sh("ip link add up0 type veth peer name up1; ip link set up0 up; ip link set up1 up").unwrap();
    let conf = tempfile::tempdir().unwrap();
    let plugins =
        json!({"name": "lan", "cniVersion": "1.0.0", "plugins": [{"type": "macvlan", "master": "up0"}]});
    std::fs::write(conf.path().join("lan.conflist"), plugins.to_string()).unwrap();
    let bin_dir = f.bin_dir(Origin::Ours).display().to_string();
    let words = |view: &str, command: &str| {
        let words = match command {
            "check" => format!("check --bin-dir {bin_dir}"),
            repair if repair.starts_with("repair ") => format!("{repair} --bin-dir {bin_dir}"),
            "doctor" => format!("doctor --conf-dir {} --bin-dir {bin_dir}", conf.path().display()),
            other => other.to_owned(),
        };
        // With its own PID namespace the container has a process 1.
        if view.starts_with("PID") { words } else { f.words(&words) }
    };
    let lan = f.add_to(Origin::Ours, &macvlan(), "inspect-partial-a", |pod| pod.attachment("eth0"));
    let damaged = f.add(Origin::Ours, "inspect-partial-b", 18602);
    let mut sleep = Command::new("sleep");
    sleep.arg("infinity");
    let _process = damaged.pod.spawn(sleep).unwrap();
    // `repair` has something to do.
    f.node.sh("nft flush map inet cni_portmap dnat4").unwrap();

    // All pods live, so gc may also find nothing to do.
    let mut before = Snapshot::take(&f.node).unwrap();
    for (view, script, promises) in VIEWS {
        let (_, mut said) = in_container(&f, script, &words(view, "gc --yes"));
        if matches!(promises[1], Refuses(_)) {
            said += &in_container(&f, script, &words(view, "repair --yes")).1;
        }
        assert_eq!(before.diff(&Snapshot::take(&f.node).unwrap()), "", "without {view}: {said}");
    }
    let said = f.says(&format!("repair --yes --bin-dir {bin_dir}"));
    assert!(said.starts_with("repaired portmap of container inspect-partial-b "), "{said}");

    for name in ["inspect-partial-c", "inspect-partial-d"] {
        let network = if name.ends_with('c') { macvlan() } else { crate::fixture::network(Origin::Ours) };
        f.add_to(Origin::Ours, &network, name, |pod| pod.attachment("eth0")).pod.delete().unwrap();
    }
    assert!(eventually(TIMEOUT, || f.leaks().len() > 4), "{:#?}", f.leaks());
    let on_node = COMMANDS.map(|command| {
        let command = match command {
            "gc" | "repair" => format!("{command} --dry-run"),
            other => other.to_owned(),
        };
        in_container(&f, "\"$@\"", &words("", &command))
    });
    before = Snapshot::take(&f.node).unwrap();
    let mut faults = Vec::new();
    for (view, script, promises) in VIEWS {
        for ((command, promise), on_node) in COMMANDS.into_iter().zip(promises).zip(&on_node) {
            // What gc does on the node is the last step.
            let both = match (command, promise) {
                ("gc" | "repair", Same) => vec![format!("{command} --dry-run")],
                ("gc" | "repair", _) => vec![format!("{command} --dry-run"), format!("{command} --yes")],
                _ => vec![command.to_owned()],
            };
            for command in both {
                let said = in_container(&f, script, &words(view, &command));
                let fault = broken(promise, &said, on_node);
                faults.extend(fault.map(|fault| format!("{command} without {view}: {fault}")));
            }
        }
        assert_eq!(before.diff(&Snapshot::take(&f.node).unwrap()), "", "without {view}");
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    let (_, script, _) = VIEWS.iter().find(|(view, ..)| *view == "/sys").unwrap();
    let (succeeded, said) = in_container(&f, script, &words("/sys", "gc --yes"));
    assert!(succeeded && said.contains(" leaks removed"), "{said}");
    assert_eq!(f.leaks(), [""; 0]);
    f.runtime(Origin::Ours).check(&macvlan(), &lan.attachment).unwrap();
}

/// Without the folder of cached results only an object's own proof counts.
#[test]
fn without_a_cache_the_owners_are_unknown() {
    let f = Fixture::new();
    f.add(Origin::Ours, "inspect-partial-e", 18601).pod.delete().unwrap();
    assert!(eventually(TIMEOUT, || f.leaks().len() == 7), "{:#?}", f.leaks());
    f.node.sh("rm -r /var/lib/cni/results").unwrap();
    let output = f.run("gc --yes");
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(!output.status.success() && said.contains("there is no folder of cached results at"), "{said}");
    f.node.read_file("/var/lib/cni/networks/ours/10.212.0.2").unwrap();
}
