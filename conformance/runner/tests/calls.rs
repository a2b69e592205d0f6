//! Tests of the runner with fake plugins that record their calls.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::thread;
use std::time::Duration;

use cni_runner::{Attachment, Error, Exec, Failure, Network, ValidAttachment};
use common::{Fakes, network};
use serde_json::json;

const RESULT: &str = r#"echo '{"cniVersion":"1.1.0","ips":[{"address":"10.0.0.2/24"}]}'"#;

fn attachment(container_id: &str) -> Attachment {
    Attachment::new(container_id, "/run/netns/x", "eth0")
}

#[test]
fn add_passes_results_on_and_caches_the_last() {
    let fakes = Fakes::new(&["one", "two"]).unwrap();
    fakes.answer("one", "ADD", RESULT).unwrap();
    fakes.answer("two", "ADD", r#"echo '{"dns":{}}'"#).unwrap();
    let attachment = attachment("c1").with_args("IgnoreUnknown=1;IP=10.0.0.9").with_capability("mac", "x");

    let result = fakes.runtime().add(&network("1.1.0", &["one", "two"]), &attachment).unwrap();

    assert_eq!(result, json!({"cniVersion": "1.1.0", "dns": {}}), "the runner adds a missing cniVersion");
    assert_eq!(fakes.calls(), ["one ADD c1", "two ADD c1"]);
    assert_eq!(
        fakes.stdin("one", "ADD").unwrap(),
        json!({"type": "one", "name": "net", "cniVersion": "1.1.0"})
    );
    let previous = &fakes.stdin("two", "ADD").unwrap()["prevResult"];
    assert_eq!(*previous, json!({"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]}));

    let cached = fakes.cache_dir().join("results/net-c1-eth0");
    assert_eq!(fs::metadata(&cached).unwrap().permissions().mode() & 0o777, 0o600);
    let cached: serde_json::Value = serde_json::from_slice(&fs::read(cached).unwrap()).unwrap();
    assert_eq!(cached["kind"], "cniCacheV1");
    assert_eq!(cached["cniArgs"], json!([["IgnoreUnknown", "1"], ["IP", "10.0.0.9"]]));
    assert_eq!(cached["capabilityArgs"], json!({"mac": "x"}));
    assert_eq!(cached["result"], result);
}

#[test]
fn all_six_variables_are_always_set() {
    let fakes = Fakes::new(&["one"]).unwrap();
    fakes.runtime().status(&network("1.1.0", &["one"])).unwrap();
    let path = fakes.dir().display();
    let expected = format!(
        "CNI_ARGS=\nCNI_COMMAND=STATUS\nCNI_CONTAINERID=\nCNI_IFNAME=\nCNI_NETNS=\nCNI_PATH={path}\n"
    );
    assert_eq!(fakes.env("one", "STATUS").unwrap(), expected);
}

#[test]
fn add_stops_at_the_first_error_and_quotes_it() {
    let fakes = Fakes::new(&["one", "two"]).unwrap();
    let error = r#"echo '{"code": 11, "msg": "busy", "details": "later"}'; exit 1"#;
    fakes.answer("one", "ADD", error).unwrap();

    let error = fakes.runtime().add(&network("1.1.0", &["one", "two"]), &attachment("c1")).unwrap_err();

    assert_eq!(error.to_string(), "plugin one: ADD failed: busy; later (code 11)");
    assert_eq!(error.code(), Some(11));
    assert_eq!(fakes.calls(), ["one ADD c1"]);
    assert!(!fakes.cache_dir().exists());
}

#[test]
fn an_answer_that_is_not_one_document_is_an_error() {
    let fakes = Fakes::new(&["one"]).unwrap();
    for (script, message) in [
        ("echo '{}{}'", "two JSON documents"),
        ("echo hello", "not JSON"),
        ("true", "nothing on standard output"),
        ("echo '[]'", "not a JSON object"),
        (r#"echo '{"cniVersion": "9.0.0"}'"#, "unknown version"),
        (r#"echo '{"code":1,"msg":"x"}{}'; exit 1"#, "two JSON documents"),
        ("echo lost >&2; kill -9 $$", "signal: 9"),
    ] {
        fakes.answer("one", "ADD", script).unwrap();
        let error = fakes.runtime().add(&network("1.1.0", &["one"]), &attachment("c1")).unwrap_err();
        assert!(matches!(error.plugin().unwrap().failure, Failure::Unreadable { .. }), "{error:?}");
        assert!(error.to_string().contains(message), "{error}");
    }
    fakes.answer("one", "ADD", "echo null").unwrap();
    let result = fakes.runtime().add(&network("1.1.0", &["one"]), &attachment("c1")).unwrap();
    assert_eq!(result, json!({"cniVersion": "1.1.0"}), "null is an empty result");
}

#[test]
fn del_runs_backwards_and_forgets_only_after_success() {
    let fakes = Fakes::new(&["one", "two"]).unwrap();
    fakes.answer("one", "ADD", RESULT).unwrap();
    fakes.answer("two", "ADD", RESULT).unwrap();
    let (runtime, network) = (fakes.runtime(), network("0.4.0", &["one", "two"]));
    runtime.add(&network, &attachment("c1")).unwrap();
    fakes.calls();

    fakes.answer("two", "DEL", "exit 3").unwrap();
    runtime.del(&network, &attachment("c1")).unwrap_err();
    assert_eq!(fakes.calls(), ["two DEL c1"], "the first error stops it");
    assert!(fakes.stdin("two", "DEL").unwrap().get("prevResult").is_some());

    fakes.answer("two", "DEL", "").unwrap();
    runtime.del(&network, &attachment("c1")).unwrap();
    assert_eq!(fakes.calls(), ["two DEL c1", "one DEL c1"]);
    assert!(fakes.stdin("one", "DEL").unwrap().get("prevResult").is_some());

    runtime.del(&network, &attachment("c1")).unwrap();
    assert!(fakes.stdin("one", "DEL").unwrap().get("prevResult").is_none(), "the cached result is removed");
}

#[test]
fn below_0_4_0_del_gets_no_result_and_check_is_refused() {
    let fakes = Fakes::new(&["one"]).unwrap();
    fakes.answer("one", "ADD", RESULT).unwrap();
    let (runtime, network) = (fakes.runtime(), network("0.3.1", &["one"]));
    runtime.add(&network, &attachment("c1")).unwrap();
    assert!(matches!(runtime.check(&network, &attachment("c1")), Err(Error::Runner(_))));
    runtime.del(&network, &attachment("c1")).unwrap();
    assert!(fakes.stdin("one", "DEL").unwrap().get("prevResult").is_none());
    runtime.status(&network).unwrap();
    runtime.gc(&network, Some(&[])).unwrap();
    assert_eq!(fakes.calls(), ["one ADD c1", "one DEL c1"], "no STATUS, no GC");
}

#[test]
fn check_passes_the_final_result_to_all() {
    let fakes = Fakes::new(&["one", "two"]).unwrap();
    fakes.answer("one", "ADD", "echo '{}'").unwrap();
    fakes.answer("two", "ADD", RESULT).unwrap();
    let (runtime, mut network) = (fakes.runtime(), network("1.0.0", &["one", "two"]));
    let result = runtime.add(&network, &attachment("c1")).unwrap();
    runtime.check(&network, &attachment("c1")).unwrap();
    assert_eq!(fakes.stdin("one", "CHECK").unwrap()["prevResult"], result);
    assert_eq!(fakes.stdin("two", "CHECK").unwrap()["prevResult"], result);
    fakes.calls();
    network.disable_check = true;
    runtime.check(&network, &attachment("c1")).unwrap();
    assert!(fakes.calls().is_empty());
}

#[test]
fn gc_deletes_stale_attachments_and_collects_errors() {
    let fakes = Fakes::new(&["one", "two"]).unwrap();
    fakes.answer("one", "ADD", RESULT).unwrap();
    fakes.answer("two", "ADD", RESULT).unwrap();
    let (runtime, mut network) = (fakes.runtime(), network("1.1.0", &["one", "two"]));
    for container in ["c1", "c2", "c3"] {
        runtime.add(&network, &attachment(container)).unwrap();
    }
    fakes.calls();
    network.disable_gc = true;
    runtime.gc(&network, None).unwrap();
    assert!(fakes.calls().is_empty());
    network.disable_gc = false;

    fakes.answer("one", "GC", r#"echo '{"code":7,"msg":"no"}'; exit 1"#).unwrap();
    fakes.answer("two", "GC", "exit 1").unwrap();
    let valid = [ValidAttachment::new("c2", "eth0")];
    let error = runtime.gc(&network, Some(&valid)).unwrap_err();

    assert_eq!(fakes.calls(), ["two DEL c1", "one DEL c1", "two DEL c3", "one DEL c3", "one GC", "two GC"]);
    assert!(matches!(&error, Error::Many(errors) if errors.len() == 2), "{error:?}");
    assert_eq!(error.code(), Some(7));
    assert!(fakes.stdin("one", "GC").unwrap().get("runtimeConfig").is_none());
    let left = runtime.cache.attachments("net").unwrap();
    assert_eq!(left.iter().map(|cached| &cached.attachment.container_id).collect::<Vec<_>>(), ["c2"]);
}

#[test]
fn version_is_called_with_dummy_values() {
    let fakes = Fakes::new(&["one"]).unwrap();
    fakes.answer("one", "VERSION", r#"echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'"#).unwrap();
    assert_eq!(fakes.runtime().version("one").unwrap()["supportedVersions"], json!(["1.1.0"]));
    assert_eq!(fakes.stdin("one", "VERSION").unwrap(), json!({"cniVersion": "1.1.0"}));
    let env = fakes.env("one", "VERSION").unwrap();
    assert!(env.contains("CNI_NETNS=dummy\nCNI_PATH=dummy\n"), "{env}");
}

#[test]
fn networks_are_found_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: serde_json::Value| {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content.to_string()).unwrap();
    };
    write(
        "10-list.conflist",
        json!({
        "name": "a", "cniVersion": "0.4.0", "cniVersions": ["0.3.1", "1.0.0", "1.2.0"],
        "disableCheck": "true", "plugins": [{"type": "x"}]}),
    );
    write("a/1.conf", json!({"type": "y"}));
    write("20-one.conf", json!({"name": "b", "cniVersion": "0.3.1", "type": "z"}));
    write(
        "30-only.conflist",
        json!({"name": "c", "loadOnlyInlinedPlugins": true, "plugins": [{"type": "x"}]}),
    );
    write("c/1.conf", json!({"type": "y"}));

    let a = Network::load(dir.path(), "a").unwrap();
    assert_eq!((a.version.as_str(), a.disable_check, a.disable_gc), ("1.0.0", true, false));
    let types = |network: &Network| network.plugins.iter().map(|p| p["type"].clone()).collect::<Vec<_>>();
    assert_eq!(types(&a), ["x", "y"], "plugins of the folder come after the inlined ones");
    let b = Network::load(dir.path(), "b").unwrap();
    assert_eq!((b.version.as_str(), types(&b)), ("0.3.1", vec![json!("z")]));
    assert_eq!(types(&Network::load(dir.path(), "c").unwrap()), ["x"]);
    assert!(Network::load(dir.path(), "d").unwrap_err().to_string().contains("no network"));
}

#[test]
fn a_missing_plugin_is_named() {
    let fakes = Fakes::new(&[]).unwrap();
    let error = fakes.runtime().status(&network("1.1.0", &["ghost"])).unwrap_err().to_string();
    assert!(error.starts_with("plugin ghost: STATUS failed: plugin ghost is not in /"), "{error}");
}

#[test]
fn a_hanging_plugin_is_killed() {
    let fakes = Fakes::new(&["one"]).unwrap();
    // Without exec: the sleep outlives the killed shell and keeps its pipes open, which must not delay the
    // runner.
    fakes.answer("one", "STATUS", "sleep 60; true").unwrap();
    let mut runtime = fakes.runtime();
    runtime.timeout = Some(Duration::from_millis(300));
    let start = std::time::Instant::now();
    let error = runtime.status(&network("1.1.0", &["one"])).unwrap_err();
    assert!(matches!(error.plugin().unwrap().failure, Failure::NotRun(_)), "{error:?}");
    assert!(start.elapsed() < Duration::from_secs(30));
}

#[test]
fn a_busy_binary_is_retried() {
    let fakes = Fakes::new(&["one"]).unwrap();
    let writer = fs::OpenOptions::new().append(true).open(fakes.dir().join("one")).unwrap();
    let closing = thread::spawn(move || {
        thread::sleep(Duration::from_millis(500));
        drop(writer);
    });
    fakes.runtime().status(&network("1.1.0", &["one"])).unwrap();
    closing.join().unwrap();
}

#[test]
fn a_single_call_may_be_invalid() {
    let fakes = Fakes::new(&["one"]).unwrap();
    fakes.answer("one", "", r#"echo "$EXTRA"; exit 9"#).unwrap();
    let large = vec![b' '; 1 << 20];
    let exec =
        Exec::new(fakes.dir().join("one"), "").without("CNI_COMMAND").env("EXTRA", "more").stdin(large);
    let output = exec.timeout(Duration::from_secs(20)).run().unwrap();
    assert_eq!((output.status.code(), output.stdout_text().as_str()), (Some(9), "more\n"));
    assert!(output.wall > Duration::ZERO);
    let sent = fs::metadata(fakes.dir().join("one..stdin")).unwrap().len();
    assert_eq!(sent, 1 << 20);
}
