//! `ferrule log` and `ferrule metrics`.

use std::os::unix::fs::MetadataExt as _;
use std::process::{Command, Output};

use cni_lab::testing::{TestContext, network_config};
use cni_lab::{Place as _, bin_dir};
use cni_runner::Attachment;
use serde_json::{Value, json};

use crate::fixture::{LOG, node};
use crate::monitoring;

fn run(ctx: &TestContext, words: &str) -> Output {
    let mut command = Command::new(bin_dir().unwrap().join("ferrule"));
    ctx.node.exec(command.args(words.split(' '))).unwrap()
}

#[track_caller]
fn says(ctx: &TestContext, words: &str) -> String {
    let output = run(ctx, words);
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[track_caller]
fn fails(ctx: &TestContext, words: &str, why: &str) {
    let output = run(ctx, words);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.code() == Some(1) && said.contains(why), "{words}: {said}");
}

/// A call without a namespace. A version that does not exist makes it fail.
fn del(ctx: &TestContext, pod: &str, version: &str) {
    let args = format!("IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={pod}");
    let attachment = Attachment::new(format!("id-of-{pod}"), "", "lo").with_args(args);
    ctx.call("DEL", &attachment, &network_config("loopback", version, &json!({})));
}

fn with_three_calls() -> TestContext {
    let ctx = node("loopback");
    ctx.node.write_file("/etc/cni/ferrule.conf", &format!("log = {LOG}\n")).unwrap();
    for (pod, version) in [("web-0", "1.0.0"), ("db-0", "9.9.9"), ("web-0", "0.4.0")] {
        del(&ctx, pod, version);
    }
    ctx
}

#[test]
fn log() {
    let ctx = with_three_calls();
    // Without the columns' padding, which depends on the other rows.
    let rows = |words: &str| -> Vec<String> {
        says(&ctx, words)
            .lines()
            .skip(1)
            .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    };
    // The error has its message in a second line.
    let all = rows("log");
    assert_eq!(all.len(), 4, "{all:#?}");
    assert!(all[1].contains("shop/db-0") && all[1].ends_with("error 1"), "{all:#?}");
    assert!(all[2] == "incompatible CNI versions", "{all:#?}");
    assert_eq!(rows("log --failed"), all[1..3]);
    assert_eq!(rows("log --last 1"), all[3..]);
    assert_eq!(rows("log --container shop/web-0"), [&all[0][..], &all[3]]);
    assert_eq!(rows("log --container id-of-db"), all[1..3]);

    let documents = |words: &str| -> Vec<Value> {
        says(&ctx, words).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let slowest = documents("log --json").iter().map(|call| call["us"].as_u64().unwrap()).max();
    assert_eq!(documents("log --slowest 1 --json")[0]["us"].as_u64(), slowest);

    fails(&ctx, "log --file /run/nothing", "there is no log /run/nothing");
    ctx.node.write_file("/etc/cni/ferrule.conf", "log = journald\n").unwrap();
    fails(&ctx, "log", "journalctl -t ferrule");
}

#[test]
fn metrics() {
    let ctx = with_three_calls();
    let count = |outcome: &str, count: u32| {
        format!(
            "ferrule_call_duration_seconds_count{{plugin=\"loopback\",verb=\"DEL\",outcome=\"{outcome}\"}} {count}\n"
        )
    };
    let printed = says(&ctx, "metrics");
    assert!(printed.contains(&count("success", 2)) && printed.contains(&count("error", 1)), "{printed}");

    monitoring::asks_only_for(&printed);

    ctx.node.sh("mkdir /run/node_exporter").unwrap();
    let write = || {
        says(&ctx, "metrics --output /run/node_exporter/ferrule.prom");
        assert_eq!(ctx.node.list_dir("/run/node_exporter").unwrap(), ["ferrule.prom"]);
        let inode =
            ctx.node.run(|| std::fs::metadata("/run/node_exporter/ferrule.prom").unwrap().ino()).unwrap();
        (ctx.node.read_file("/run/node_exporter/ferrule.prom").unwrap(), inode)
    };
    let (first, inode) = write();
    assert_eq!(first, printed);
    // The log goes, the counters stay.
    ctx.node.sh(&format!("rm {LOG}")).unwrap();
    del(&ctx, "web-0", "1.0.0");
    let (second, next_inode) = write();
    assert!(second.contains(&count("success", 3)) && second.contains(&count("error", 1)), "{second}");
    assert_eq!(write().0, second);
    assert_ne!(inode, next_inode, "the file was not replaced by a rename");

    ctx.node.sh("mount -o bind,ro /run/node_exporter /run/node_exporter").unwrap();
    fails(&ctx, "metrics --output /run/node_exporter/ferrule.prom", "cannot write");
}
