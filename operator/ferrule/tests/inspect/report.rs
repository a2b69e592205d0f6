//! `ferrule report` on nodes with pods: what it has and what it must not have, also if the node is broken.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::Path;
use std::process::{Command, Output};

use cni_lab::testing::{Origin, plant_all};
use cni_lab::{Place as _, Snapshot};
use serde_json::json;

use crate::fixture::{Fixture, PROGRAM, network};
use crate::planted::FOLDERS;

const KEY: &str = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk=";
/// What never enters a report.
const SECRETS: [&str; 6] = [KEY, "hunter22", "envsecret7", "annotated7", "etcdkey7", "abcdef0123456789"];
/// Names that an unmasked report shows. They stand in cached results, the log, the status file and a comment of a rule.
const NAMES: [&str; 12] = [
    "report-alpha",
    "report-beta",
    "pod-report",
    "shop",
    "evil7",
    "gone7",
    "billing7",
    "elsewhere7",
    "n7.corp.example",
    "corp.example",
    "api7.example",
    "fa:7e:77:01",
];

/// Makes a report with these words, which must end within seconds, and returns its files in a folder.
#[track_caller]
fn report(f: &Fixture, words: &str, path: Option<&Path>, folder: &Path) -> (Output, String) {
    let archive = folder.join("report.tar");
    let words = format!(
        "report --conf-dir /run/cni/net.d --bin-dir {} --log /run/log --output {} {words}",
        f.bin_dir(Origin::Ours).display(),
        archive.display()
    );
    let mut command = Command::new("timeout");
    command
        .args(["-k", "1", "20", PROGRAM])
        .args(f.words(words.trim_end()).split(' '))
        .env_remove("CNI_COMMAND");
    command.env("SECRET_OF_THE_SHELL", "envsecret7");
    if let Some(path) = path {
        command.env("PATH", format!("{}:{}", path.display(), std::env::var("PATH").unwrap()));
    }
    let output = f.node.exec(&mut command).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    if words.contains("--output - ") {
        fs::write(&archive, &output.stdout).unwrap();
        fs::set_permissions(&archive, fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(fs::metadata(&archive).unwrap().permissions().mode() & 0o777, 0o600);
    let unpacked = Command::new("tar")
        .current_dir(folder)
        .args(["-xf", "report.tar", "--strip-components=1"])
        .output()
        .unwrap();
    assert!(unpacked.status.success() && unpacked.stderr.is_empty(), "{unpacked:?}");
    fs::remove_file(&archive).unwrap();
    (output, whole(folder))
}

/// All files of a folder in one text.
fn whole(folder: &Path) -> String {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let text = |path: std::path::PathBuf| match path.is_dir() {
        true => whole(&path),
        false => format!("== {}\n{}", path.display(), fs::read_to_string(&path).unwrap()),
    };
    entries.map(text).collect()
}

fn plant_names_and_secrets(f: &Fixture) {
    let conflist = json!({"name": "elsewhere7", "cniVersion": "1.0.0", "plugins": [{"type": "loopback", "etcd_key": "etcdkey7",
        "args": {"cni": {"name": "hunter22"}}, "kubeconfig": "/x/hunter22"}]});
    f.node.write_conflist("10-elsewhere.conflist", &conflist).unwrap();
    let status = json!({"node": "n7.corp.example", "mode": "wireguard", "nodes": [{"name": "m7.corp.example", "networks": [],
        "publicKey": KEY, "annotations": {"x": "annotated7"}, "since": KEY}],
        "problems": [{"part": "api", "error": "https://api7.example:6443: Authorization: Bearer hunter22hunter22, abcdef.abcdef0123456789"}]});
    f.node.write_file("/run/ferrule/node/status.json", &status.to_string()).unwrap();
    let evil = "evil7\u{1b}[31m\nremoved 3 leaks\" x";
    let entry = json!({"kind": "cniCacheV1", "containerId": evil, "networkName": "ours", "ifName": "eth0", "netns": "/run/netns/gone7",
        "cniArgs": [["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", evil], ["PASSWORD", "hunter22"]],
        "result": {"cniVersion": "1.0.0", "ips": [{"address": "10.212.77.7/16"}]}});
    f.node.write_file("/var/lib/cni/results/ours-evil-eth0", &entry.to_string()).unwrap();
    let call = json!({"time": "9999-11-22T09:55:00.123456Z", "plugin": "bridge", "verb": "ADD", "us": 5, "container": "report-alpha",
        "pod": "shop/pod-report-alpha", "network": "ours", "trace": {"id": "4bf92f3577b34da6a3ce929d0e0e4736", "baggage": "hunter22"},
        "error": {"code": 7, "msg": "no route to 10.212.77.7 for report-alpha", "details": "token=hunter22"}});
    let old = json!({"time": "2020-11-22T09:55:00.123456Z", "plugin": "bridge", "verb": "DEL", "us": 5, "container": "ancient7"});
    f.node.write_file("/run/log", &format!("{old}\n{call}\n")).unwrap();
    f.node
        .sh("nft -f - <<'E'
table ip billing {
    chain c { ip saddr 10.212.77.7 counter comment \"billing7/api:https\"; }
}
E
ip link set lo address fa:7e:77:01:02:03 2>/dev/null || ip link add report7 address fa:7e:77:01:02:03 type bridge")
        .unwrap();
}

#[test]
fn a_report_tells_all_and_betrays_nothing() {
    let f = Fixture::new();
    let pods = [f.add(Origin::Ours, "report-alpha", 18801), f.add(Origin::Ours, "report-beta", 18802)];
    plant_names_and_secrets(&f);
    let hanging = tempfile::tempdir().unwrap();
    let hangs = hanging.path().display();
    let script = format!("#!/bin/sh\necho $$ >>{hangs}/pid\nenv >>{hangs}/env\nexec sleep 600\n");
    fs::write(hanging.path().join("nft"), script).unwrap();
    fs::set_permissions(hanging.path().join("nft"), fs::Permissions::from_mode(0o755)).unwrap();

    let before = Snapshot::take(&f.node).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (output, text) = report(&f, "", Some(hanging.path()), folder.path());
    assert_eq!(before.diff(&Snapshot::take(&f.node).unwrap()), "");
    let environment = fs::read_to_string(hanging.path().join("env")).unwrap();
    assert!(environment.contains("PATH=") && !environment.contains("envsecret7"), "{environment}");
    for pid in fs::read_to_string(hanging.path().join("pid")).unwrap().lines() {
        assert!(!Path::new("/proc").join(pid).exists(), "the hanging nft {pid} is left");
    }

    let said =
        String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let addresses = pods.iter().map(|pod| pod.address.as_str()).chain(["10.212.77.7", "10.212.0.1"]);
    for planted in
        NAMES.into_iter().chain(SECRETS).chain(addresses).chain([host.trim(), "ancient7", "\u{1b}"])
    {
        assert!(!text.contains(planted) && !said.contains(planted), "{planted}: {said}{text}");
    }
    // What is there, by file.
    let file = |name: &str| {
        fs::read_to_string(folder.path().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert!(file("README.txt").contains("nft: still running after 4 s"), "{}", file("README.txt"));
    assert!(file("check.txt").contains("2 sound, 0 failed"), "{}", file("check.txt"));
    assert!(file("sysctls.txt").contains("net/ipv4/ip_forward 1"));
    assert!(file("doctor.txt").contains("ok: network network-"), "{}", file("doctor.txt"));
    assert!(file("conflists.json").contains("(left out)") && file("node/status.json").contains("(removed)"));
    assert!(file("rules/nf_tables.txt").contains("postrouting, policy accept"));
    assert!(
        file("links-pods.txt").contains("eth0 veth up") && file("links-node.txt").contains(" br-network-")
    );
    assert!(file("installed.txt").contains("sha256 ") && file("versions.txt").contains("osrelease "));
    assert!(file("log.txt").contains("error 7") && file("inspect/graph.svg").contains("</svg>"));
    // The pod is the same one everywhere.
    let line = file("log.txt").lines().find(|line| line.contains("error 7")).unwrap().to_owned();
    let pod = line.split_whitespace().find(|word| word.contains("/pod-")).unwrap();
    for other in ["inspect/pods.txt", "links-pods.txt", "log.json", "inspect/node.json"] {
        assert!(file(other).contains(pod), "{pod}: {}", file(other));
    }

    let folder = tempfile::tempdir().unwrap();
    let (_, text) = report(&f, "--unmasked", None, folder.path());
    for secret in SECRETS {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
    for name in NAMES.into_iter().chain(pods.iter().map(|pod| pod.address.as_str())) {
        assert!(text.contains(name), "{name}: {text}");
    }
    assert!(!text.contains('\u{1b}'), "{text}");

    // Nothing is replaced, and no link is followed.
    let link = folder.path().join("link");
    symlink(folder.path().join("nowhere"), &link).unwrap();
    let refused = f.run(&format!("report --output {}", link.display()));
    assert!(refused.status.code() == Some(1) && !folder.path().join("nowhere").exists(), "{refused:?}");
    for pod in pods {
        f.runtime(Origin::Ours).del(&network(Origin::Ours), &pod.attachment).unwrap();
    }
}

#[test]
fn a_broken_node_has_a_report() {
    let f = Fixture::new();
    let _pod = f.add(Origin::Ours, "report-broken", 18803);
    // One with too much to list, before the other one.
    let greedy = f.add(Origin::Ours, "report-a-greedy", 18804);
    let routes = "awk 'BEGIN { for (i = 0; i < 30000; i++) printf \"route add 172.16.%d.%d/32 dev eth0\\n\", i / 256, i % 256 }'";
    greedy.pod.sh(&format!("{routes} | ip -force -batch -")).unwrap();
    for (place, _) in FOLDERS {
        plant_all(&f.node, place);
    }
    for path in ["/run/log", "/run/ferrule/node/status.json"] {
        f.node.sh(&format!("mkdir -p $(dirname {path}); mkfifo {path}")).unwrap();
    }
    // A snapshot of the files would read what is planted.
    let state = || {
        let files = f.node.sh("ls -lbR --time-style=full-iso /var/lib/cni /run/cni").unwrap();
        (Snapshot::take_with(&f.node, &[] as &[&str]).unwrap(), files)
    };
    let before = state();
    let folder = tempfile::tempdir().unwrap();
    let (_, text) = report(&f, "--output - --root /", None, folder.path());
    let after = state();
    assert_eq!((before.0.diff(&after.0), before.1), (String::new(), after.1));
    for seen in [
        "2 sound, 0 failed",
        "too much to list",
        "cannot read the cached result",
        "it is no regular file",
        "net/ipv4/ip_forward",
    ] {
        assert!(text.contains(seen), "{seen}: {text}");
    }
    let pods = fs::read_to_string(folder.path().join("links-pods.txt")).unwrap();
    assert!(pods.contains(" eth0 veth up"), "{pods}");
}
