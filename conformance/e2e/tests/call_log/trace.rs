//! The runtime's trace, in the log and in the delegates.

use std::process::Command;

use cni_lab::testing::{StubIpam, TestContext, network_config};
use cni_lab::{Place as _, bin_dir};
use serde_json::{Value, json};

use crate::fixture::{LOG, TRACED, lines, node, with_env, with_log};

fn says(ctx: &TestContext, words: &str) -> String {
    let mut command = Command::new(bin_dir().unwrap().join("ferrule"));
    let output = ctx.node.exec(command.args(words.split(' '))).unwrap();
    assert!(output.status.success(), "{words}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A delegate that is a process is a child of the runtime's span, or of ours if the log has that one.
#[test]
fn from_the_runtime_to_the_delegate_and_the_spans() {
    let stub = StubIpam::assigning("1.0.0", &["10.1.2.3/24"]);
    let mut ctx = with_env(&node("bridge"), &TRACED);
    ctx.path = format!("{}:{}", ctx.path, stub.dir().display());
    let conf = network_config("bridge", "1.0.0", &json!({"ipam": {"type": "stub"}}));
    let attachment = ctx.pod("call-log-trace").attachment("eth0");
    let told = |name: &str| {
        let prefix = format!("{name}=");
        stub.env("ADD").into_iter().find_map(|line| Some(line.strip_prefix(&prefix)?.to_owned()))
    };
    ctx.add(&attachment, &conf);
    for (name, value) in TRACED {
        assert_eq!(told(name).as_deref(), Some(value), "{name}");
    }
    ctx.del(&attachment, &conf);

    let ctx = with_log(&ctx, LOG);
    ctx.add(&attachment, &conf);
    let trace = &lines(&ctx, LOG)[0]["trace"];
    assert_eq!(
        json!([trace["id"], trace["parent"], trace["state"], trace["baggage"]]),
        json!(["4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", "vendor=1", "tenant=blue"])
    );
    let span = trace["span"].as_str().unwrap();
    assert_eq!(told("TRACEPARENT"), Some(format!("00-4bf92f3577b34da6a3ce929d0e0e4736-{span}-01")));
    assert_eq!(told("BAGGAGE").as_deref(), Some("tenant=blue"));

    let mut other = with_env(&ctx, &[("TRACEPARENT", "junk")]);
    other.env.retain(|(name, value)| name != "TRACEPARENT" || value == "junk");
    other.del(&attachment, &conf);
    assert_eq!(says(&ctx, &format!("log --file {LOG} --json")).lines().count(), 2);
    assert_eq!(says(&ctx, &format!("log --file {LOG} --json --trace 4bf92")).lines().count(), 1);
    assert!(says(&ctx, &format!("log --file {LOG}")).contains(" 4bf92f3577b3 "));

    says(&ctx, &format!("log --file {LOG} --otlp /run/spans"));
    let exported = ctx.node.read_file("/run/spans").unwrap();
    let spans: Vec<Value> = { exported.lines() }
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .map(|line| line["resourceSpans"][0]["scopeSpans"][0]["spans"].clone())
        .collect();
    assert_eq!(spans.len(), 2, "{spans:#?}");
    assert_eq!(spans[0][0]["spanId"], span);
    let steps = spans[0].as_array().unwrap().iter().skip(1);
    let names: Vec<_> = steps.filter(|step| step["parentSpanId"] == span).map(|step| &step["name"]).collect();
    assert!(names.contains(&&json!("stub")) && names.contains(&&json!("rtnetlink")), "{names:?}");
    assert_eq!((spans[1][0].get("parentSpanId"), &spans[1][0]["name"]), (None, &json!("DEL bridge")));
}
