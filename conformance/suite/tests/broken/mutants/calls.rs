//! Mutants with faults in the input: environment, identifiers, configuration.

use serde_json::{Value, json};

use super::super::plugin::Answer;
use super::{Mutant, afterwards, beforehand, changed, mutant, refused, spoiled};

pub(super) const MUTANTS: &[Mutant] = &[
    // Environment
    mutant("bridge", "needs-arguments", "ENV-01/an-attachment-without-arguments", |call| {
        if call.verb() == "ADD" { refused(4, "usage: bridge ADD") } else { call.original() }
    }),
    mutant("bridge", "takes-lower-case", "ENV-02/no-other-spelling-at-an-attachment", |call| {
        let verb = call.verb().to_uppercase();
        call.with("CNI_COMMAND", verb).original()
    }),
    mutant("bandwidth", "dies-of-an-unknown-verb", "ENV-03/an-unknown-operation", |call| match call.verb() {
        "ADD" | "DEL" | "CHECK" | "VERSION" | "GC" | "STATUS" => call.original(),
        _ => Answer { stderr: b"panicked".to_vec(), status: 101, ..Answer::silence() },
    }),
    mutant(
        "host-local",
        "asks-for-netns-at-del",
        "ENV-06/neither-namespace-nor-arguments-are-needed",
        |call| {
            let is_bad = call.verb() == "DEL" && call.var("CNI_NETNS").is_empty();
            if is_bad { refused(4, "CNI_NETNS is missing") } else { call.original() }
        },
    ),
    mutant("portmap", "asks-for-a-container-at-gc", "ENV-08/no-attachment-is-named", |call| {
        let is_bad = call.verb() == "GC" && call.var("CNI_CONTAINERID").is_empty();
        if is_bad { refused(4, "CNI_CONTAINERID is missing") } else { call.original() }
    }),
    mutant("loopback", "does-not-say-which-variable", "ENV-12/every-missing-variable", |call| {
        spoiled(&call, |object| {
            object["msg"] = "bad input".into();
            object["details"] = "".into();
        })
    }),
    mutant("bridge", "judges-variables-at-version", "ENV-14/junk-at-version", |call| {
        let is_bad = call.verb() == "VERSION" && call.var("CNI_NETNS") == "dummy";
        if is_bad { refused(4, "no namespace") } else { call.original() }
    }),
    mutant("bridge", "is-confused-by-tracing", "ENV-18/many-other-variables", |call| {
        let known = ["CNI_", "PATH", "PWD", "SHLVL", "_"];
        let is_bad = call.env.iter().any(|(key, _)| !known.iter().any(|known| key.starts_with(known)));
        if is_bad { refused(999, "what is all this") } else { call.original() }
    }),
    // Identifiers
    mutant("bridge", "takes-any-container-id", "CID-01/forms-that-are-not-valid", |call| {
        let id: String = call.var("CNI_CONTAINERID").chars().filter(char::is_ascii_alphanumeric).collect();
        call.with("CNI_CONTAINERID", id).original()
    }),
    mutant(
        "host-local",
        "calls-a-bad-id-an-internal-error",
        "CID-02/the-code-of-an-id-that-is-not-valid",
        |call| {
            let is_bad =
                !call.var("CNI_CONTAINERID").chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                    || call.var("CNI_CONTAINERID").starts_with(['-', '_', '.']);
            if is_bad { refused(999, "bad ID") } else { call.original() }
        },
    ),
    mutant("bridge", "ignores-the-name", "IFN-02/the-name-as-it-was-given", |call| {
        call.with("CNI_IFNAME", "eth9").original()
    }),
    mutant("bridge", "replaces-an-interface", "IFN-03/a-name-that-is-taken", |call| {
        beforehand(&call, "ADD", "ip netns exec \"${CNI_NETNS##*/}\" ip link del \"$CNI_IFNAME\"")
    }),
    mutant("bridge", "knows-only-named-namespaces", "NNS-01/below-proc", |call| {
        if call.var("CNI_NETNS").starts_with("/proc/") { refused(4, "odd path") } else { call.original() }
    }),
    mutant("bridge", "resolves-the-path", "NNS-03/the-path-as-it-was-given", |call| {
        changed(&call, |result| {
            for interface in result["interfaces"].as_array_mut().into_iter().flatten() {
                if interface["sandbox"].as_str().is_some_and(|path| !path.is_empty()) {
                    interface["sandbox"] = "/proc/1/ns/net".into();
                }
            }
        })
    }),
    mutant("loopback", "works-in-its-own-namespace", "NNS-04/the-own-namespace", |call| {
        beforehand(&call, "ADD", "nsenter --net=\"$CNI_NETNS\" ip link set lo up")
    }),
    mutant("bandwidth", "makes-a-file-at-the-path", "NNS-06/nothing-is-made-at-the-path", |call| {
        afterwards(&call, "DEL", "[ -e \"$CNI_NETNS\" ] || : > \"$CNI_NETNS\"")
    }),
    // Configuration
    mutant("host-local", "takes-what-follows-the-object", "CFG-02/what-is-no-configuration", |mut call| {
        if let Some(Ok(first)) = serde_json::Deserializer::from_slice(&call.stdin)
            .into_iter::<Value>()
            .next()
            .filter(Result::is_ok)
        {
            call.stdin = first.to_string().into_bytes();
        }
        call.original()
    }),
    mutant("bridge", "refuses-args-that-it-does-not-know", "CFG-05/arguments-that-are-not-known", |call| {
        if call.json()["args"].is_object() { refused(2, "args: unknown") } else { call.original() }
    }),
    mutant("portmap", "wants-keys-in-its-own-case", "CFG-08/host-ports", |call| {
        let mut config = call.json();
        if config.to_string().contains("HostPort") {
            config["runtimeConfig"] = json!({});
            return call.with_json(&config).original();
        }
        call.original()
    }),
    mutant("bridge", "chokes-on-null", "CFG-09/null-for-what-every-network-may-have", |call| {
        let has_null = call.json().as_object().is_some_and(|keys| keys.values().any(Value::is_null));
        if has_null { refused(6, "null") } else { call.original() }
    }),
    mutant("bandwidth", "counts-with-32-bits", "CFG-11/a-burst-of-35-bits", |call| {
        if String::from_utf8_lossy(&call.stdin).contains("34359738359") {
            return refused(7, "burst is too large");
        }
        call.original()
    }),
    mutant("bridge", "does-without-a-name", "NET-01/no-name", |call| {
        let mut config = call.json();
        if config.is_object() && config.get("name").is_none() {
            config["name"] = "default".into();
            return call.with_json(&config).original();
        }
        call.original()
    }),
];
