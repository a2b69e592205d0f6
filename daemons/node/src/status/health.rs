//! The health endpoint and its proofs in the status file.

use std::net::IpAddr;
use std::time::SystemTime;

use cni_common::line::Line;
use ferrule_kernel::ip::IpFamily;
use humantime::format_rfc3339_seconds;
use serde::{Deserialize, Serialize};

use crate::proof::{Proof, Proofs};

/// The health endpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Health {
    /// Its addresses; none if there is no endpoint.
    pub addresses: Vec<IpAddr>,
    /// The node's ends of its link and of that of its other side.
    pub links: Vec<String>,
    /// This node.
    pub local: Vec<Row>,
    /// Whether the table of the policies judges the packets of this node's pods; empty with `--policy off`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub policies: Vec<Row>,
    /// The other nodes.
    pub peers: Vec<Row>,
}

/// A proof.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Row {
    /// The other node; empty for this one.
    pub node: String,
    /// `IPv4` or `IPv6`.
    pub family: String,
    /// `proved`, `lost` or `unknown`.
    pub proof: String,
    /// The last answer, or the first request without one, RFC 3339.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub since: Option<String>,
    /// Why it is not proved.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub why: Option<String>,
    /// The other node's health endpoint, if it is known.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub address: Option<IpAddr>,
    /// The size of the largest packets for it.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    pub size: Option<u16>,
}

impl From<&Proofs> for Health {
    fn from(proofs: &Proofs) -> Health {
        let places = proofs.endpoint.iter().flat_map(|endpoint| &endpoint.places);
        let peers = proofs.peers.iter().flat_map(|(node, families)| {
            let endpoints = proofs.endpoints.get(node);
            families.iter().map(move |of| {
                let target = endpoints.and_then(|endpoints| endpoints.get(of.0));
                Row { address: target.map(|to| to.address), size: target.map(|to| to.size), ..row(node, of) }
            })
        });
        Health {
            addresses: places.map(|place| place.address).collect(),
            links: proofs.endpoint.iter().flat_map(|endpoint| endpoint.links.clone()).collect(),
            local: proofs.local.iter().map(|of| row("", of)).collect(),
            policies: proofs.policies.iter().map(|of| row("", of)).collect(),
            peers: peers.collect(),
        }
    }
}

impl Health {
    /// Lines for people: the endpoint, this node, and the other nodes in short.
    pub(super) fn to_text(&self, now: SystemTime) -> String {
        let addresses: Vec<String> = self.addresses.iter().map(ToString::to_string).collect();
        let mut text = match addresses.is_empty() {
            true => "no health endpoint\n".to_owned(),
            false => format!("health endpoint: {}\n", addresses.join(" ")),
        };
        let proved: Vec<u64> = self.peers.iter().filter_map(|row| row.age(now)).collect();
        if let Some(oldest) = proved.iter().max() {
            text.push_str(&format!(
                "other nodes: {} of {} proved, the oldest {oldest} s ago\n",
                proved.len(),
                self.peers.len()
            ));
        }
        for (of, rows) in [("pods", &self.local), ("policies", &self.policies)] {
            for row in rows {
                let line = Line::new(format_args!("{of} of this node, {}: {}", row.family, row.to_text(now)));
                text.push_str(&line.to_string());
                text.push('\n');
            }
        }
        text
    }
}

impl Row {
    /// The proof and its age, for people.
    pub(super) fn to_text(&self, now: SystemTime) -> String {
        let why = self.why.as_ref().map_or_else(String::new, |why| format!(": {why}"));
        match (self.proof.as_str(), &self.since) {
            ("proved", _) => format!("{} s ago", self.age(now).unwrap_or_default()),
            (proof, Some(since)) => format!("{proof} since {since}{why}"),
            (proof, None) => format!("{proof}{why}"),
        }
    }

    /// The seconds since the last answer, if it is proved.
    fn age(&self, now: SystemTime) -> Option<u64> {
        let at = humantime::parse_rfc3339(self.since.as_deref().filter(|_| self.proof == "proved")?).ok()?;
        Some(now.duration_since(at).map_or(0, |age| age.as_secs()))
    }
}

fn row(node: &str, (family, proof): (&IpFamily, &Proof)) -> Row {
    let time = |time: &SystemTime| Some(format_rfc3339_seconds(*time).to_string());
    let (name, since, why) = match proof {
        Proof::Unknown(why) => ("unknown", None, Some(why.clone())),
        Proof::Proved { at } => ("proved", time(at), None),
        Proof::Lost { since, why } => ("lost", time(since), Some(why.clone())),
    };
    Row {
        node: node.to_owned(),
        family: family.to_string(),
        proof: name.to_owned(),
        since,
        why,
        ..Row::default()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn people_see_the_age_of_each_proof_and_what_is_not_proved() {
        let at = |seconds| SystemTime::UNIX_EPOCH + Duration::from_secs(seconds);
        let [v4, v6] = IpFamily::ALL;
        let mut proofs = Proofs::none();
        proofs.local = [(v4, Proof::Proved { at: at(90) }), (v6, Proof::Unknown("it is off".into()))].into();
        let lost = Proof::Lost { since: at(60), why: "no answer".into() };
        proofs.policies = [(v4, Proof::Proved { at: at(99) })].into();
        proofs.peers.insert("b".into(), [(v4, Proof::Proved { at: at(30) }), (v6, lost)].into());
        let text = Health::from(&proofs).to_text(at(100));
        assert_eq!(
            text,
            "no health endpoint\nother nodes: 1 of 2 proved, the oldest 70 s ago\npods of this node, IPv4: 10 s ago\n\
             pods of this node, IPv6: unknown: it is off\npolicies of this node, IPv4: 1 s ago\n"
        );
    }
}
