//! Mutants with faults in the output: versions, errors, results.

use serde_json::Value;

use super::super::plugin::Answer;
use super::{Mutant, beforehand, changed, forget, mutant, spoiled};

pub(super) const MUTANTS: &[Mutant] = &[
    // Versions
    mutant(
        "loopback",
        "answers-in-its-newest-version",
        "VER-06/the-result-is-of-the-configurations-version",
        |call| {
            let mut config = call.json();
            if call.verb() == "ADD" && config.is_object() {
                config["cniVersion"] = "1.1.0".into();
                forget(&mut config, "prevResult");
                return call.with_json(&config).original();
            }
            call.original()
        },
    ),
    mutant("bridge", "takes-any-version", "VER-02/a-version-that-nobody-has", |call| {
        let mut config = call.json();
        if !config["cniVersion"]
            .as_str()
            .is_none_or(|version| ["0.", "1."].iter().any(|start| version.starts_with(start)))
        {
            config["cniVersion"] = "1.0.0".into();
            return call.with_json(&config).original();
        }
        call.original()
    }),
    mutant("portmap", "declares-no-versions", "VCMD-01/the-answer-has-both-keys", |call| match call.verb() {
        "VERSION" => Answer::printed(r#"{"cniVersion":"1.1.0"}"#),
        _ => call.original(),
    }),
    mutant("portmap", "answers-with-its-own-version", "VCMD-02/asked-with-each-version", |call| {
        if call.verb() != "VERSION" {
            return call.original();
        }
        let mut answer = call.original();
        let mut object = answer.json();
        object["cniVersion"] = "1.1.0".into();
        answer.stdout = object.to_string().into_bytes();
        answer
    }),
    mutant("bridge", "writes-at-version", "VCMD-06/nothing-is-changed", |call| {
        beforehand(&call, "VERSION", "ip link add asked0 type veth peer name asked1")
    }),
    // Errors and output
    mutant("bridge", "succeeds-with-an-error-object", "EXIT-01/a-failure-ends-with-another-status", |call| {
        Answer { status: 0, ..call.original() }
    }),
    mutant("bridge", "tells-errors-on-standard-error", "ERR-01/a-failure-prints-an-error-object", |call| {
        let answer = call.original();
        if answer.status == 0 {
            return answer;
        }
        Answer { stderr: answer.stdout, stdout: Vec::new(), status: answer.status }
    }),
    mutant("portmap", "has-errors-without-a-version", "ERR-02/the-keys-of-an-error-object", |call| {
        spoiled(&call, |object| {
            forget(object, "cniVersion");
        })
    }),
    mutant("host-local", "uses-a-reserved-code", "ERR-03/no-reserved-code", |call| {
        spoiled(&call, |object| object["code"] = 42.into())
    }),
    mutant("bridge", "prints-its-result-twice", "ERR-08/one-document-of-a-success", |call| {
        let mut answer = call.original();
        answer.stdout.extend(answer.stdout.clone());
        answer
    }),
    mutant("bridge", "prints-two-errors", "ERR-08/one-document-of-a-failure", |call| {
        let mut answer = call.original();
        if answer.status != 0 {
            answer.stdout.extend(b"{\"code\":999,\"msg\":\"again\"}");
        }
        answer
    }),
    mutant("bridge", "wraps-the-delegate-s-error", "ERR-09/an-error-at-add", |call| {
        spoiled(&call, |object| object["code"] = 999.into())
    }),
    mutant("portmap", "talks-at-check", "OUT-02/the-others-print-nothing", |call| {
        let mut answer = call.original();
        if call.verb() == "CHECK" {
            answer.stdout = b"{\"fine\":true}".to_vec();
        }
        answer
    }),
    mutant("bandwidth", "logs-on-standard-output", "OUT-03/no-logs-among-the-output", |call| {
        let answer = call.original();
        if call.verb() != "ADD" {
            return answer;
        }
        Answer { stdout: [b"level=info msg=added\n".to_vec(), answer.stdout].concat(), ..answer }
    }),
    // Results
    mutant("bridge", "labels-a-new-shape-as-an-old-one", "VER-07/the-result-of-a-usual-add", |call| {
        changed(&call, |result| {
            for ip in result["ips"].as_array_mut().into_iter().flatten() {
                forget(ip, "version");
            }
        })
    }),
    mutant(
        "bridge",
        "says-an-address-without-a-prefix",
        "RES-05/addresses-with-prefix-and-host-part",
        |call| {
            changed(&call, |result| {
                if let Some(ip) = result["ips"].get_mut(0) {
                    ip["address"] = "10.77.0.2".into();
                }
            })
        },
    ),
    mutant("bridge", "counts-interfaces-from-one", "RES-06/indices-are-those-of-interfaces", |call| {
        changed(&call, |result| {
            if let Some(ip) = result["ips"].get_mut(0) {
                ip["interface"] = 3.into();
            }
        })
    }),
    mutant(
        "bridge",
        "forgets-whose-an-address-is",
        "RES-07/each-address-is-on-the-interface-in-the-container",
        |call| {
            changed(&call, |result| {
                for ip in result["ips"].as_array_mut().into_iter().flatten() {
                    forget(ip, "interface");
                }
            })
        },
    ),
    mutant("bridge", "keeps-the-bridge-to-itself", "RES-10/every-new-link-is-listed", |call| {
        changed(&call, |result| {
            let sandboxed =
                |interface: &Value| interface["sandbox"].as_str().is_some_and(|path| !path.is_empty());
            if let Some(interfaces) = result["interfaces"].as_array_mut() {
                interfaces.retain(sandboxed);
            }
            for ip in result["ips"].as_array_mut().into_iter().flatten() {
                ip["interface"] = 0.into();
            }
        })
    }),
];
