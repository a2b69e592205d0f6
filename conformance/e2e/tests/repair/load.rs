//! Pods come and go while repair, gc, check and shape run in a loop, beside containers that try to hold these up.

use std::collections::BTreeMap;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::testing::{ips_of, serve};
use cni_lab::{Background, Place as _, bin_dir};
use cni_runner::Attachment;
use serde_json::json;

use super::PORT;
use super::world::{Running, World, sleep};

/// How many pods come and go.
const PODS: usize = 200;
/// How many at once.
const WORKERS: usize = 4;
/// How long a command may be held: neither run nor wait for a processor, which other programs take. On a machine that does more, one of ten
/// may wait longer for the kernel's locks, whose holders wait for a processor. Processor time has the same limit.
const HELD: Duration = Duration::from_secs(5);
/// No command may take longer on any machine.
const LONGEST: Duration = Duration::from_secs(120);

/// What hostile containers run, with `eth0` attached: names and shell scripts.
const HOSTILE: [(&str, &str); 7] = [
    ("load-poses", "CNI_CONTAINERID=load-poses CNI_COMMAND=DEL exec sleep infinity"),
    (
        "load-routes",
        "awk 'BEGIN { for (i = 0; i < 20000; i++) printf \"route add 172.16.%d.%d/32 dev eth0\\n\", i / 256, i % 256 }' | \
            ip -force -batch -; exec sleep infinity",
    ),
    (
        "load-addresses",
        "while :; do printf 'addr add 172.31.0.1/32 dev eth0\\naddr del 172.31.0.1/32 dev eth0\\n'; done | ip -force -batch -",
    ),
    ("load-down", "while :; do ip link set eth0 down; sleep 0.05; done"),
    ("load-forks", "while :; do (exec -a \"$(printf 'bridge\\033[2J')\" true); done"),
    (
        "load-thread",
        "exec python3 -c 'import ctypes, threading, time
threading.Thread(target=time.sleep, args=(600,)).start()
ctypes.CDLL(None).pthread_exit(None)'",
    ),
    // Much and odd of what needs no time of a processor.
    (
        "load-odd",
        "mount -t tmpfs odd /mnt
for i in $(seq 200); do d=$(printf '/mnt/odd-%d-\\377' $i); mkdir \"$d\"; mount -t tmpfs odd \"$d\"; done
for i in $(seq 500); do printf 'link property add dev eth0 altname odd%0100d\n' $i; done | ip -force -batch -
ip link set eth0 alias \"$(printf 'host-device\\033[2J')\"; ip link add veth0 type dummy; ip link add br-pods type bridge
sysctl -q -w net.ipv4.conf.eth0.rp_filter=1 net.ipv4.ip_forward=0 net.ipv6.conf.eth0.disable_ipv6=1
printf 'table inet cni_portmap {\\n chain c { type filter hook input priority 0; policy drop; }\\n }\\n' | nft -f -
for i in $(seq 2000); do echo \"add rule inet cni_portmap c ip saddr 10.0.0.1 accept comment load-$i\"; done | nft -f -
export CNI_COMMAND=ADD $(for i in $(seq 2000); do echo ODD_$i=load-$i; done)
exec python3 -c 'import threading, time
for n in range(200): threading.Thread(target=time.sleep, args=(600,)).start()' $(seq 1 20000)",
    ),
];

/// What the operator runs meanwhile, and whether it does so in one thread, and waits for no other of these commands and for no process.
const COMMANDS: [(&str, bool); 6] = [
    ("repair --yes", true),
    ("gc --yes", true),
    ("check", false),
    ("shape load-steady --ingress 10M", false),
    ("inspect pods", true),
    ("report --output -", false),
];

/// The addresses of the pods that exist, and who has them.
type Held = Mutex<BTreeMap<String, String>>;

#[test]
fn pods_come_and_go_beside_hostile_ones() {
    let bandwidth = json!({"type": "bandwidth", "ingressRate": 8_000_000, "ingressBurst": 8_000_000});
    let world = World::with(&bandwidth);
    let before = world.snapshot();
    serve(&world.outside, "outside", PORT);
    let mut steady = world.start("load-steady", 8100);
    let mut hostile: Vec<(Running, Background)> = (8101..)
        .zip(HOSTILE)
        .map(|(port, (name, script))| {
            let running = world.add(name, port);
            // A PID namespace of its own, so that all of its processes end with the first.
            let mut command = Command::new("unshare");
            command.args(["--pid", "--fork", "--kill-child"]);
            // It keeps the namespaces alive that are mounted now.
            command.args((name == "load-odd").then_some("--mount"));
            command.args(["bash", "-c", script]);
            let process = running.pod.spawn(command).unwrap();
            (running, process)
        })
        .collect();
    // Any user with a FUSE mount can choose such a name.
    world.node.sh("d=$(printf '/run/odd-\\377'); mkdir \"$d\"; mount -t tmpfs odd \"$d\"").unwrap();

    let (held, next, over) = (Held::default(), AtomicUsize::new(0), AtomicBool::new(false));
    let crashed = thread::scope(|scope| {
        let commands = COMMANDS.map(|(words, _)| scope.spawn(|| repeat(&world, words, &over)));
        let workers = [(); WORKERS].map(|()| {
            scope.spawn(|| {
                let mut crashed = Vec::new();
                while let number @ ..PODS = next.fetch_add(1, Ordering::Relaxed) {
                    crashed.extend(live(&world, number, &held));
                }
                crashed
            })
        });
        let ended = workers.map(thread::ScopedJoinHandle::join);
        over.store(true, Ordering::Relaxed);
        for ((words, is_alone), command) in COMMANDS.iter().zip(commands) {
            let mut took = command.join().unwrap();
            let [wall, processor] = [|one: &Took| one.wall, |one: &Took| one.processor]
                .map(|of| took.iter().map(of).max().unwrap_or_default());
            took.sort_by_key(|one| one.held);
            let held = took[(took.len() - 1) * 9 / 10].held;
            let said = format!(
                "{words}: {} times, at most {wall:?}, {processor:?} of a processor, held {held:?}",
                took.len()
            );
            println!("{said}");
            assert!(wall < LONGEST && processor < HELD, "{said}");
            assert!(!is_alone || held < HELD, "{said}");
        }
        ended.map(Result::unwrap).concat()
    });

    world.assert_traffic(&steady);
    world.check(&steady).unwrap();
    while let Some((mut running, process)) = hostile.pop() {
        drop(process);
        world.end(&mut running);
    }
    world.end(&mut steady);
    world.node.sh("umount /run/odd-*; rmdir /run/odd-*").unwrap();
    world.ferrule("gc --yes");
    for attachment in crashed {
        let left = world
            .node
            .sh(&format!("grep -rl {} /var/lib/cni/networks || true", attachment.container_id))
            .unwrap();
        assert_eq!(left, "", "gc has left an address");
        world.runtime().del(&world.network, &attachment).unwrap();
    }
    world.assert_no_leftovers(&before, "after the load");
}

/// How long a command takes.
struct Took {
    wall: Duration,
    /// The processor time, with that of processes that it has started.
    processor: Duration,
    /// How long its first thread has neither run nor waited for a processor.
    held: Duration,
}

/// Runs the command until the end. Its status says what a hostile container has done to itself, so it does not count.
fn repeat(world: &World, words: &str, over: &AtomicBool) -> Vec<Took> {
    let mut all = Vec::new();
    while all.is_empty() || !over.load(Ordering::Relaxed) {
        let (said, took) = timed(world, words);
        all.push(took);
        for foreign in ["\x1b", "nothing is removed", "nothing is repaired", "Usage:"] {
            assert!(!said.contains(foreign), "{words}: {said}");
        }
    }
    all
}

/// Runs a command, and reads its times before it is reaped.
fn timed(world: &World, words: &str) -> (String, Took) {
    let run = || {
        let output = tempfile::tempfile().unwrap();
        let mut command = Command::new(bin_dir().unwrap().join("ferrule"));
        command.args(world.words(words)).stdin(Stdio::null());
        command.stdout(output.try_clone().unwrap()).stderr(output.try_clone().unwrap());
        let (began, mut child) = (Instant::now(), command.spawn().unwrap());
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{}/{file}", child.id())).unwrap();
        while !read("stat").contains(") Z ") {
            thread::sleep(Duration::from_millis(5));
        }
        let wall = began.elapsed();
        let numbers =
            |text: &str| text.split_whitespace().map(|word| word.parse().unwrap()).collect::<Vec<u64>>();
        // Processor time and waiting for a processor, in nanoseconds.
        let ran_and_waited: u64 = numbers(&read("schedstat"))[..2].iter().sum();
        // User and system time, its own and that of its children, in hundredths of a second.
        let stat = read("stat");
        let stat = stat.rsplit_once(") Z ").unwrap().1;
        let ticks: Vec<&str> = stat.split_whitespace().skip(10).take(4).collect();
        let processor = Duration::from_millis(10 * numbers(&ticks.join(" ")).iter().sum::<u64>());
        child.wait().unwrap();
        let mut said = Vec::new();
        (&output).seek(SeekFrom::Start(0)).and_then(|_| (&output).read_to_end(&mut said)).unwrap();
        let held = wall.saturating_sub(Duration::from_nanos(ran_and_waited));
        (String::from_utf8_lossy(&said).into_owned(), Took { wall, processor, held })
    };
    world.node.run(run).unwrap()
}

/// A pod's life. Each fifth one ends without DEL, so that gc has something to remove: its attachment.
fn live(world: &World, number: usize, held: &Held) -> Option<Attachment> {
    let name = format!("load-{number}");
    let pod = world.node.pod(&name).unwrap();
    let attachment = pod.attachment("eth0");
    let ips = ips_of(&world.runtime().add(&world.network, &attachment).unwrap());
    for ip in &ips {
        let other = held.lock().unwrap().insert(ip.clone(), name.clone());
        assert_eq!(other, None, "{ip} of {name} is in use");
    }
    let process = Some(pod.spawn(sleep()).unwrap());
    let mut running = Running { pod, attachment, port: 0, process };
    assert_eq!(world.check(&running), Ok(()), "{name}");
    held.lock().unwrap().retain(|_, holder| *holder != name);
    if !number.is_multiple_of(5) {
        world.end(&mut running);
        return None;
    }
    running.process = None;
    running.pod.delete().unwrap();
    Some(running.attachment)
}
