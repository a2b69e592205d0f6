//! Foreign objects in the folders that the commands and plugins read: nothing is followed, nothing waits, and the rest is done.

use std::process::{Command, Output};

use cni_lab::Place as _;
use cni_lab::testing::{Origin, PLANTED, plant, plant_all};
use serde_json::json;

use crate::fixture::{Fixture, PROGRAM, attachment, network};

/// What cached results name as the namespaces of their containers.
const NAMESPACES: &str = "/run/namespaces/%";

/// A folder with the names that are read there, `%` for the kind of an object and `#` for its number, and the commands that name
/// each object.
pub(crate) const FOLDERS: [(&str, &[&str]); 10] = [
    ("/var/lib/cni/results/%", &["repair", "check"]),
    ("/run/cni/net.d/%.conflist", &["doctor"]),
    ("/var/lib/cni/networks/ours/10.212.7.#", &[]),
    ("/var/lib/cni/networks/%", &[]),
    ("/var/lib/cni/networks/.ferrule/ours/%:eth0", &[]),
    ("/var/lib/cni/flannel/%", &[]),
    ("/run/cni/dhcp.leases/%:eth0:net", &[]),
    ("/run/cni/host-device/%:eth0.json", &[]),
    ("/run/cni/tuning/%_eth0.json", &[]),
    (NAMESPACES, &[]),
];

/// The commands, by their first word. Those that name a container must find it.
const COMMANDS: [&str; 8] = [
    "inspect pods --json",
    "inspect leaks",
    "inspect graph",
    "gc --yes",
    "repair --yes --bin-dir BIN",
    "check --bin-dir BIN",
    "doctor --conf-dir /run/cni/net.d --bin-dir BIN",
    "shape planted-live --ingress 9M --ifname eth0",
];

/// A file, the commands that read it, and those of them that must succeed beside any object.
const FILES: [(&str, &[&str], bool); 13] = [
    (
        "/run/log",
        &["log --file /run/log", "log --otlp /run/spans --file /run/log", "metrics --file /run/log"],
        false,
    ),
    ("/run/log.1", &["log --file /run/log", "metrics --file /run/log"], false),
    ("/run/out", &["metrics --file /run/calls --output /run/out"], false),
    ("/run/out", &["log --file /run/calls --otlp /run/out"], false),
    ("/run/ferrule-totals", &["metrics --file /run/calls"], false),
    (
        "/run/ferrule/node/status.json",
        &[
            "inspect nodes",
            "policy why 10.9.0.1 10.9.0.2 80",
            "doctor --conf-dir /run/cni/node.d --bin-dir BIN",
        ],
        false,
    ),
    ("/run/ferrule/node/policy.sock", &["policy why 10.9.0.1 10.9.0.2 80", "inspect policies"], false),
    ("/run/ferrule/node/lock", &["doctor --conf-dir /run/cni/node.d --bin-dir BIN"], false),
    // The addresses of another network's pods, if it is a folder.
    ("/var/lib/cni/networks/cbr0", &["doctor --conf-dir /run/cni/node.d --bin-dir BIN"], false),
    ("/run/report.tar", &["report --output /run/report.tar --bin-dir BIN"], false),
    (
        "/run/cni/folded.conflist",
        &["chain --fold /run/cni/folded.conflist", "chain --unfold /run/cni/folded.conflist"],
        false,
    ),
    ("/var/lib/cni/networks/ours/lock", &["gc --yes"], true),
    ("/var/lib/cni/networks/ours/last_reserved_ip.0", &["gc --yes"], true),
];

/// Runs a command, which must end within seconds.
#[track_caller]
fn run(f: &Fixture, words: &str, what: &str) -> (Output, String) {
    let words = words.replace("BIN", &f.bin_dir(Origin::Ours).display().to_string());
    let is_local = ["log", "metrics", "chain"].iter().any(|verb| words.starts_with(verb));
    let words = if is_local { words } else { f.words(&words) };
    let mut command = Command::new("timeout");
    command.args(["-k", "1", "20", PROGRAM]).args(words.split(' ')).env_remove("CNI_COMMAND");
    let output = f.node.exec(&mut command).unwrap();
    let said = String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned();
    let status = output.status.code();
    assert!(!matches!(status, None | Some(124 | 137 | 101)), "{words}: {what}: {status:?} {said}");
    (output, said)
}

#[test]
fn no_object_in_a_folder_stops_a_command_or_a_plugin() {
    let f = Fixture::new();
    let live = f.add(Origin::Ours, "planted-live", 18301);
    f.node
        .write_conflist("10-sound.conflist", &json!({"name": "sound", "plugins": [{"type": "loopback"}]}))
        .unwrap();
    let mut problems = Vec::new();
    for (place, naming) in FOLDERS {
        plant_all(&f.node, place);
        if place == NAMESPACES {
            let results = "/var/lib/cni/results/ours-planted";
            for (kind, _) in PLANTED {
                let netns = live.pod.path().display();
                let edit = format!("s#{netns}#/run/namespaces/{kind}#g; s/planted-live/planted-{kind}/g");
                f.node.sh(&format!("sed '{edit}' {results}-live-eth0 >{results}-{kind}-eth0")).unwrap();
            }
        }
        for words in COMMANDS {
            let (output, said) = run(&f, words, place);
            let verb = words.split(' ').next().unwrap_or_default();
            for (kind, _) in PLANTED.iter().filter(|(kind, _)| *kind != "bytes") {
                // A runtime passes a folder over, and root reads any file.
                let is_named = naming.contains(&verb) && !(verb == "doctor" && *kind == "folder");
                if is_named && !said.contains(kind) {
                    problems.push(format!("{words}: {place} does not name {kind}: {said}"));
                }
            }
            let is_done = match verb {
                "inspect" if words.ends_with("json") => said.contains(&live.address),
                "check" => said.contains("1 sound, 0 failed"),
                "repair" => said.contains("1 sound"),
                "shape" => output.status.success(),
                "doctor" => said.contains("ok: network sound "),
                _ => true,
            };
            if !is_done {
                problems.push(format!("{words}: {place}: {said}"));
            }
        }
        let next = f.add(Origin::Ours, "planted-next", 18302);
        f.runtime(Origin::Ours).del(&network(Origin::Ours), &next.attachment).unwrap();
        next.pod.delete().unwrap();
        // The planted objects are no leaks: the plugins and gc leave them. host-local builds its index again.
        let folder = place.rsplit_once('/').unwrap().0;
        let count = f.node.sh(&format!("ls '{folder}' | wc -l")).unwrap();
        if !folder.contains(".ferrule") && count.trim().parse::<usize>().unwrap() < PLANTED.len() {
            problems.push(format!("{folder}: {count} objects are left"));
        }
        let pattern = place.rsplit_once('/').unwrap().1.replace(['%', '#'], "*");
        let keep = "! -name '*planted-live*' ! -name '10-*' ! -name ours ! -name .ferrule";
        f.node
            .sh(&format!(
                "find '{folder}' -mindepth 1 -maxdepth 1 -name '{pattern}' {keep} -exec rm -rf '{{}}' +"
            ))
            .unwrap();
    }
    assert!(problems.is_empty(), "{problems:#?}");
    FOLDERS.iter().for_each(|(place, _)| plant_all(&f.node, place));
    let (output, said) = run(&f, "report --output - --conf-dir /run/cni/net.d --bin-dir BIN", "all");
    assert!(
        output.status.success() && said.contains("doctor.txt"),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    f.runtime(Origin::Ours).del(&network(Origin::Ours), &live.attachment).unwrap();
}

#[test]
fn no_object_in_the_place_of_a_file_stops_a_command_or_a_plugin() {
    let f = Fixture::new();
    let live = f.add(Origin::Ours, "planted-file", 18303);
    let ours = json!({"name": "ours", "ferruleNode": {"node": "n"}, "plugins": [{"type": "loopback"}]});
    f.node.write_file("/run/cni/node.d/10-ours.conflist", &ours.to_string()).unwrap();
    let call =
        r#"{"time":"2026-11-22T09:55:00.123456Z","plugin":"bridge","verb":"ADD","us":5,"container":"c1"}"#;
    f.node.write_file("/run/calls", &format!("{call}\n")).unwrap();
    f.node.sh("ip route add 10.99.0.0/16 dev lo proto 79").unwrap();
    for (path, commands, is_for_plugins) in FILES {
        for (kind, make) in PLANTED {
            plant(&f.node, path, make);
            for words in commands {
                // A report takes a second, and looks at what has its name only at the end.
                if words.starts_with("report") && !["folder", "fifo", "dangling"].contains(&kind) {
                    continue;
                }
                let what = format!("{kind} as {path}");
                let (output, said) = run(&f, words, &what);
                let is_expected = match words.split(' ').next() {
                    Some("doctor") => said.contains("ok: left-overs: "),
                    // A report replaces nothing, and none of these is a network.
                    Some("report" | "chain") => !output.status.success() && said.contains(path),
                    _ => true,
                };
                assert!(is_expected, "{words}: {what}: {said}");
            }
            if is_for_plugins {
                // An object in place of a file of the store may end the call by an error, but not hold it.
                let pod = f.node.pod("planted-pod").unwrap();
                let (network, attachment) = (network(Origin::Ours), attachment(&pod, 18304));
                let began = std::time::Instant::now();
                let added = f.runtime(Origin::Ours).add(&network, &attachment);
                if let Err(error) = added {
                    assert!(format!("{error:?}").contains(path), "{kind} as {path}: {error:?}");
                }
                let _ = f.runtime(Origin::Ours).del(&network, &attachment);
                assert!(began.elapsed().as_secs() < 30, "{kind} as {path}");
                f.node.sh(&format!("rm -rf {path}")).unwrap();
                let ended = f.runtime(Origin::Ours).del(&network, &attachment);
                ended.unwrap_or_else(|error| panic!("{kind} as {path}: {error:?}"));
                pod.delete().unwrap();
            }
        }
        f.node.sh(&format!("rm -rf {path}; test ! -e $(dirname {path})/nowhere")).unwrap();
    }
    let said = run(&f, "check --bin-dir BIN", "").1;
    assert!(said.contains("1 sound, 0 failed"), "{said}");
    f.runtime(Origin::Ours).del(&network(Origin::Ours), &live.attachment).unwrap();
}

/// A pipe that this process has open is no foreign object.
#[test]
fn the_log_may_come_by_standard_input() {
    let f = Fixture::new();
    let script = format!(
        r#"(sleep 0.2; echo '{{"time":"2026-11-22T09:55:00.1Z","plugin":"bridge","verb":"ADD","us":5,"container":"c1"}}') | {PROGRAM} log --file /dev/stdin"#
    );
    assert!(f.node.sh(&script).unwrap().contains("bridge"));
}
