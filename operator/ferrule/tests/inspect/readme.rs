//! docs/operate.md shows what `ferrule inspect` prints.

use std::fs;
use std::path::Path;

use cni_lab::testing::Origin;
use cni_lab::{Place as _, TIMEOUT, eventually};
use cni_runner::Network;
use serde_json::{Value, json};

use crate::fixture::{Container, Fixture, PROGRAM};

fn network(name: &str, subnet: &str) -> Network {
    let ipam = json!({"type": "host-local", "subnet": subnet});
    Network::from_value(&json!({"name": name, "cniVersion": "1.0.0", "plugins": [
        {"type": "bridge", "bridge": format!("br-{name}"), "isGateway": true, "ipam": ipam},
        {"type": "portmap", "capabilities": {"portMappings": true}},
        {"type": "bandwidth", "capabilities": {"bandwidth": true}},
    ]}))
    .unwrap()
}

/// Attaches a container whose ID has 64 hexadecimal digits, as runtimes make them.
fn add(
    f: &Fixture,
    origin: Origin,
    network: &Network,
    id: &str,
    pod: [&str; 2],
    values: &[(&str, Value)],
) -> Container {
    let [namespace, name] = pod;
    f.add_to(origin, network, &format!("inspect-readme-{name}"), |place| {
        let mut attachment = place
            .attachment("eth0")
            .with_args(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME={name}"));
        attachment.container_id = format!("{id}{}", "5ea1".repeat(13));
        values
            .iter()
            .cloned()
            .fold(attachment, |attachment, (name, value)| attachment.with_capability(name, value))
    })
}

/// Two containers of Ferrule's, and one of the reference's. One died without DEL.
#[test]
fn the_page_shows_what_is_printed() {
    let f = Fixture::new();
    let port =
        |port: u16| ("portMappings", json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]));
    let rates = json!({"ingressRate": 40_000_000, "ingressBurst": 4_000_000, "egressRate": 40_000_000, "egressBurst": 4_000_000});
    let (pods, old) = (network("pods", "10.1.0.0/24"), network("old", "10.2.0.0/24"));
    let web = [port(8080), ("bandwidth", rates)];
    add(&f, Origin::Ours, &pods, "3f1c2a9d8e7b", ["web", "app-0"], &web);
    let dead = add(&f, Origin::Ours, &pods, "77ab01c2d3e4", ["web", "job-7"], &[port(8081)]);
    add(&f, Origin::Reference, &old, "c90d11aa42f0", ["db", "pg-0"], &[port(5432)]);
    dead.pod.delete().unwrap();
    f.node.sh("rm /var/lib/cni/results/pods-77ab*").unwrap();
    // The kernel removes a namespace some time after its last user.
    let is_gone = || f.says("inspect leaks").contains("the namespace of its ADD does not exist");
    assert!(eventually(TIMEOUT, is_gone), "{:#?}", f.leaks());

    let page = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/operate.md")).unwrap();
    let folder = Path::new(PROGRAM).parent().unwrap().display();
    for words in ["ferrule inspect", "ferrule inspect ports", "ferrule inspect leaks"] {
        let script = format!("PATH={folder}:$PATH; NO_COLOR=1 {}", f.words(words));
        let narrow = f.on_terminal(80, &script);
        let shown = format!("$ {words}\n{narrow}");
        assert!(
            without_ages(&page).contains(&without_ages(&shown)),
            "docs/operate.md lacks at 80 columns:\n{shown}"
        );
        let wide = f.on_terminal(200, &script);
        assert!(!wide.contains('…') && wide.lines().all(|line| line.chars().count() <= 200), "{wide}");
    }

    // The host's name is the machine's.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let picture = |format: &str| {
        let text = f.says(&format!("inspect graph --format {format}"));
        let (svg, mermaid) = (format!(">node {}<", host.trim()), format!("n[\"{}\"]", host.trim()));
        text.replacen(&svg, ">node node-1<", 1).replacen(&mermaid, "n[\"node-1\"]", 1)
    };
    let svg = picture("svg");
    let drawn = Path::new(env!("CARGO_TARGET_TMPDIR")).join("graph.svg");
    fs::write(&drawn, &svg).unwrap();
    let shown = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/graph.svg")).unwrap();
    assert!(shown == svg, "docs/graph.svg differs from {}", drawn.display());
    let shown = fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../inspect/README.md")).unwrap();
    let mermaid = picture("mermaid");
    assert!(
        shown.contains(&format!("```mermaid\n{mermaid}```\n")),
        "operator/inspect/README.md lacks:\n{mermaid}"
    );
    assert!(picture("dot").contains("  n -> g0;\n"));
}

/// The lines without the age at their ends.
fn without_ages(text: &str) -> String {
    let is_age =
        |word: &str| word.len() > 1 && word[..word.len() - 1].bytes().all(|byte| byte.is_ascii_digit());
    let cut = |line: &str| match line.rsplit_once("  ") {
        Some((rest, age)) if is_age(age) => rest.trim_end().to_owned() + "\n",
        _ => format!("{line}\n"),
    };
    text.lines().map(cut).collect()
}
