//! DRA claims: claims without a record, records without a claim, and claims that no network attaches.

use std::collections::BTreeSet;
use std::io;

use cni_common::spec::{CniError, NetConf};
use ferrule_claims::config::Conf;
use ferrule_claims::{NAME, pod};

use super::networks::Network;
use super::{Finding, Subject};

const NO_RECORD: &str =
    "start ferrule-nic on the node; delete the pod if the kubelet has prepared the claim already";
const NO_NETWORK: &str = "chain {\"type\": \"claims\"} behind the plugins of the pods' network";

/// A pod and a claim, each by its UID.
type Pair = (String, String);

/// What the node says of the claims in one place.
#[derive(Debug, Default)]
struct Facts {
    /// Those of the kubelet's state; `None` if there is no such file.
    claims: Option<BTreeSet<Pair>>,
    /// Those that have a record of the driver, or an unreadable one.
    records: BTreeSet<Pair>,
}

/// Looks at the claims of all networks that attach them, and in the default place.
pub fn judge(networks: &[Network]) -> Subject {
    let of_network = |network: &Network| -> Vec<(String, Conf)> {
        let plugins = network.plugins.iter().filter(|plugin| plugin["type"] == NAME);
        let confs = plugins.filter_map(|plugin| {
            let mut config = plugin.clone();
            config["name"] = network.name.clone().into();
            Conf::read(&NetConf::parse(config.to_string().into_bytes()).ok()?).ok()
        });
        confs.map(|conf| (network.subject(), conf)).collect()
    };
    let mut places: Vec<(String, Conf)> = networks.iter().flat_map(of_network).collect();
    let is_attached = !places.is_empty();
    if !is_attached {
        places.push(("claims".to_owned(), Conf::default()));
    }
    let (mut findings, mut count) = (Vec::new(), 0);
    for (subject, conf) in &places {
        match Facts::read(conf) {
            Ok(facts) => {
                count += facts.claims.as_ref().map_or(0, BTreeSet::len);
                findings.extend(facts.findings(subject, conf, is_attached));
            }
            // Without such a network, a kubelet's file that cannot be read does no harm.
            Err(error) if is_attached => {
                findings.push(Finding::of_text(subject, &error.to_string(), NO_RECORD))
            }
            Err(_) => {}
        }
    }
    Subject::new("claims", format!("{count} claims of pods, each with its record"), findings)
}

impl Facts {
    fn read(conf: &Conf) -> Result<Facts, CniError> {
        let pairs = |state: ferrule_kubelet::claims::KubeletState| {
            let of = state
                .claims()
                .flat_map(|(claim, pods)| pods.iter().map(|pod| (pod.clone(), claim.uid.clone())));
            of.collect()
        };
        let claims = pod::kubelet_state(conf)?.map(pairs);
        let records = || -> io::Result<BTreeSet<Pair>> {
            let mut found = BTreeSet::new();
            for pod in conf.records.pods()? {
                let is_other = |claim: &String| {
                    let record = conf.records.read(&pod, claim);
                    record.is_ok_and(|record| record.is_some_and(|record| record.driver != conf.driver))
                };
                let claims = conf.records.claims_of(&pod)?.into_iter().filter(|claim| !is_other(claim));
                found.extend(claims.map(|claim| (pod.clone(), claim)));
            }
            Ok(found)
        };
        let records =
            records().map_err(|error| CniError::internal(format!("read the claims' records: {error}")))?;
        Ok(Facts { claims, records })
    }

    fn findings(&self, subject: &str, conf: &Conf, is_attached: bool) -> Vec<Finding> {
        let none = BTreeSet::new();
        let claims = self.claims.as_ref().unwrap_or(&none);
        let (state, records) =
            (conf.kubelet_state().display().to_string(), conf.records.path().display().to_string());
        let mut found = Vec::new();
        if let (Some((pod, claim)), false) = (claims.first(), is_attached) {
            let problem =
                format!("pod {pod} has claim {claim} of {}, and no network attaches claims", conf.driver);
            found.push(Finding::error(subject, problem, NO_NETWORK));
        }
        for (pod, claim) in claims.difference(&self.records) {
            let problem = format!("claim {claim} of pod {pod} is in {state} and has no record in {records}");
            found.push(Finding::error(subject, problem, NO_RECORD));
        }
        // Without the kubelet's state nothing is known.
        for (pod, claim) in self.claims.iter().flat_map(|claims| self.records.difference(claims)) {
            let problem =
                format!("{records}/{pod}/{claim}.json is a record of a claim that is not in {state}");
            found.push(Finding::warning(subject, problem, "ferrule gc --yes"));
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::Severity;
    use super::*;

    #[test]
    fn claims_and_records() {
        let pairs = |uids: &[&str]| uids.iter().map(|uid| ((*uid).to_owned(), format!("c-{uid}"))).collect();
        let findings = |claims: Option<&[&str]>, records: &[&str], is_attached| -> Vec<(Severity, String)> {
            let facts = Facts { claims: claims.map(pairs), records: pairs(records) };
            let found = facts.findings("net", &Conf::default(), is_attached);
            found.into_iter().map(|one| (one.severity, one.problem)).collect()
        };
        assert_eq!(findings(Some(&["a"]), &["a"], true), []);
        assert_eq!(findings(None, &["a"], true), []);
        let found = findings(Some(&["a"]), &["b"], true);
        assert!(
            found[0].0 == Severity::Error
                && found[0].1.starts_with("claim c-a of pod a is in /var/lib/kubelet/dra_m")
        );
        assert!(
            found[1].0 == Severity::Warning
                && found[1].1.starts_with("/var/lib/ferrule/dra/b/c-b.json is a record")
        );
        let found = findings(Some(&["a"]), &["a"], false);
        assert_eq!(found[0].1, "pod a has claim c-a of nic.ferrule.dev, and no network attaches claims");
    }
}
