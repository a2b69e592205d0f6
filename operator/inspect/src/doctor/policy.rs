//! The file that tells the plugin `policy` which namespaces have policies.

use std::path::Path;

use ferrule_policy_kit::isolated::Isolated;

use super::networks::Network;
use super::{Finding, Subject};

const SUBJECT: &str = "isolated namespaces";
const NO_FILE: &str = "start ferrule-node with --policy: it writes the file again";

/// Judges the file, if a network has the plugin.
pub fn judge(networks: &[Network], file: &Path) -> Option<Subject> {
    let using: Vec<_> = networks.iter().filter(|network| network.has(&["policy"])).collect();
    if using.is_empty() {
        return None;
    }
    let shown = file.display();
    Some(match Isolated::read(file) {
        Ok(isolated) => Subject::new(SUBJECT, format!("{} in {shown}", isolated.len()), Vec::new()),
        Err(error) => {
            let finding = |network: &&Network| {
                let problem = format!(
                    "{shown}: {error}: each new pod, of any namespace, is isolated in both directions until ferrule-node has decided"
                );
                Finding::error(network.subject(), problem, NO_FILE)
            };
            Subject::new(SUBJECT, "", using.iter().map(finding).collect())
        }
    })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{chown, symlink};

    use super::super::networks::tests::network;
    use super::*;

    #[test]
    fn a_file_that_isolates_everything_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("isolated");
        let without = network("open", r#"[{"type":"ptp"}]"#);
        let with = network("shut", r#"[{"type":"chain","plugins":[{"type":"ptp"},{"type":"policy"}]}]"#);
        assert_eq!(judge(std::slice::from_ref(&without), &file), None, "nobody reads it");
        let networks = [without, with];
        let problem = || {
            let subject = judge(&networks, &file).unwrap();
            assert!(subject.findings.iter().all(|finding| finding.subject.starts_with("network shut (")));
            subject.findings.first().map_or(subject.seen, |finding| finding.problem.clone())
        };
        let shown = file.display();
        let rest =
            "each new pod, of any namespace, is isolated in both directions until ferrule-node has decided";
        let is = |why: &str| assert_eq!(problem(), format!("{shown}: {why}: {rest}"));
        is("No such file or directory (os error 2)");
        let sound = "ferrule-policy 1\nshop both\nend\n";
        fs::write(&file, sound).unwrap();
        assert_eq!(problem(), format!("1 in {shown}"));
        fs::write(&file, &sound[..sound.len() - 1]).unwrap();
        is("it is damaged");
        fs::write(&file, sound).unwrap();
        chown(&file, Some(1234), None).unwrap();
        is("it belongs to user 1234");
        fs::rename(&file, dir.path().join("other")).unwrap();
        symlink("other", &file).unwrap();
        is("Too many levels of symbolic links (os error 40)");
    }
}
