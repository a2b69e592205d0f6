//! `ferrule-node`: whether it runs on a node whose conflist it has written, and the reasons in its status file.

use std::path::Path;

use ferrule_kernel::file;
use ferrule_kit::cluster::{CONFLIST_MARK, LOCK_FILE, STATUS_FILE, configurations};
use serde_json::Value;

use super::{Finding, Subject};

const SUBJECT: &str = "ferrule-node";
const START: &str = "start it: kubectl --namespace kube-system get pods, or systemctl status ferrule-node";
const LOOK: &str = "ferrule-node status shows all; its log has the reason";
const FIRST: &str = "runtimes take the first file by name: remove the other one";

/// The daemon's part of the node; `None` if no conflist is its.
pub fn judge(conf_dir: &Path, state: &Path) -> Option<Subject> {
    let files = configurations(conf_dir);
    let conflist = files.iter().find(|path| is_its(path))?;
    let (mut findings, mut seen) = (Vec::new(), "runs".to_owned());
    if !file::is_locked(&state.join(LOCK_FILE)) {
        let problem = format!("does not run, and {} is its", conflist.display());
        findings.push(Finding::error(SUBJECT, format!("{problem}: routes to new nodes are missing"), START));
    }
    if let Some(first) = files.first().filter(|first| *first != conflist) {
        let problem = format!("{} comes before {}", first.display(), conflist.display());
        findings.push(Finding::warning(SUBJECT, problem, FIRST));
    }
    let status = file::read(&state.join(STATUS_FILE)).and_then(|bytes| Ok(serde_json::from_slice(&bytes)?));
    match status {
        Ok(status) => seen = read(&status, &mut findings),
        Err(error) => {
            let problem = format!("no status in {}: {error}", state.display());
            findings.push(Finding::warning(SUBJECT, problem, LOOK));
        }
    }
    Some(Subject::new(SUBJECT, seen, findings))
}

/// What the status file says.
fn read(status: &Value, findings: &mut Vec<Finding>) -> String {
    let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for reason in list(&status["reasons"]) {
        let said = format!("{}: {}: {}", text(&reason["word"]), text(&reason["code"]), text(&reason["text"]));
        let make = if reason["word"] == "not ready" { Finding::error } else { Finding::warning };
        findings.push(make(SUBJECT, said, text(&reason["remedy"])));
    }
    if let Some(error) = status["api"]["error"].as_str() {
        let problem = format!("no API server since {}: {error}", text(&status["api"]["since"]));
        findings.push(Finding::warning(SUBJECT, problem, LOOK));
    }
    let nodes = list(&status["nodes"]);
    format!("{}, {} other nodes", text(&status["word"]), nodes.len())
}

fn is_its(path: &Path) -> bool {
    let value: Option<Value> =
        file::read_named(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
    value.is_some_and(|value| value[CONFLIST_MARK].is_object())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_daemon_that_is_away_or_in_trouble_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let (conf, state) = (folder.path().join("net.d"), folder.path().join("state"));
        fs::create_dir(&conf).unwrap();
        fs::create_dir(&state).unwrap();
        fs::write(conf.join("20-other.conflist"), r#"{"name":"x"}"#).unwrap();
        assert_eq!(judge(&conf, &state), None, "no conflist is its");
        fs::write(conf.join("10-ferrule.conflist"), r#"{"ferruleNode":{"node":"n1"}}"#).unwrap();
        let problems = || -> Vec<String> {
            judge(&conf, &state).unwrap().findings.into_iter().map(|finding| finding.problem).collect()
        };
        let all = problems();
        assert!(all[0].starts_with("does not run, and ") && all[1].starts_with("no status in "), "{all:?}");
        let lock = File::create(state.join(LOCK_FILE)).unwrap();
        lock.lock().unwrap();
        let status = |text: &str| fs::write(state.join(STATUS_FILE), text).unwrap();
        status(r#"{"word":"ready","reasons":[],"nodes":[{"name":"n2","networks":[]}],"api":{"error":null}}"#);
        let subject = judge(&conf, &state).unwrap();
        assert_eq!((subject.findings.len(), subject.seen.as_str()), (0, "ready, 1 other nodes"));
        status(
            r#"{"word":"not ready","reasons":[{"code":"vxlan","text":"E","word":"not ready","remedy":"R"},
            {"code":"peer","text":"node n2","word":"degraded","remedy":"Q"}],"api":{"since":"S","error":"away"}}"#,
        );
        let wanted = ["not ready: vxlan: E", "degraded: peer: node n2", "no API server since S: away"];
        assert_eq!(problems(), wanted);
        let remedies = judge(&conf, &state).unwrap().findings.into_iter().map(|finding| finding.remedy);
        assert_eq!(remedies.take(2).collect::<Vec<_>>(), ["R", "Q"]);
        fs::write(conf.join("05-other.conflist"), "{}").unwrap();
        assert!(problems()[0].contains("05-other.conflist comes before "));
    }
}
