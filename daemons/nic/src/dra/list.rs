//! `ferrule-nic claims`: the claims that are prepared for pods, and the interfaces that the pods have by them.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::path::Path;

use cni_common::line::Line;
use ferrule_kubelet::claims::{Claimed, Folder, Record, Step};
use serde_json::{Value, json};

use super::status::attached;

/// A device of a claim, and the interface that ADD has made of it.
#[derive(Debug)]
pub struct Entry {
    record: Record,
    device: Claimed,
    step: Option<Step>,
}

impl Entry {
    /// The device's ID.
    pub fn device_id(&self) -> String {
        let link = &self.device.link;
        link.bus.as_ref().map_or_else(|| link.name.clone(), |bus| bus.address.clone())
    }

    /// The pod and the claim that have it.
    pub fn owner(&self) -> String {
        let Record { claim, pod, .. } = &self.record;
        format!("pod {}/{}, claim {}", claim.namespace, pod.name, claim.name)
    }
}

/// Reads all records, in the order of namespace, claim and pod.
pub fn entries(folder: &Folder, attached_files: &Path) -> io::Result<Vec<Entry>> {
    let steps = attached(attached_files)?.into_iter().flat_map(|attached| {
        let pod = attached.pod.uid;
        attached
            .steps
            .into_iter()
            .map(move |step| ((pod.clone(), step.claim.uid.clone(), step.device.clone()), step))
    });
    let mut steps: BTreeMap<_, _> = steps.filter(|(_, step)| step.outcome.is_some()).collect();
    let mut entries = Vec::new();
    for pod in folder.pods()? {
        let records = folder.of_pod(&pod).unwrap_or_else(|error| {
            log!("passes over the records of a pod: {error}");
            Vec::new()
        });
        for record in records {
            for device in record.devices.clone() {
                let step = steps.remove(&(pod.clone(), record.claim.uid.clone(), device.device.clone()));
                entries.push(Entry { record: record.clone(), device, step });
            }
        }
    }
    entries.sort_by_cached_key(|Entry { record: Record { claim, .. }, .. }| {
        (claim.namespace.clone(), claim.name.clone())
    });
    Ok(entries)
}

pub fn to_json(entries: &[Entry]) -> Value {
    let entry = |Entry { record, device, step }: &Entry| {
        let outcome = step.as_ref().and_then(|step| step.outcome.as_ref());
        json!({"namespace": record.claim.namespace, "claim": record.claim.name, "claimUID": record.claim.uid,
            "pod": record.pod.name, "podUID": record.pod.uid, "driver": record.driver, "request": device.request,
            "pool": device.pool, "device": device.device, "link": device.link.name,
            "ifName": step.as_ref().map(|step| &step.if_name).or(device.if_name.as_ref()),
            "mac": outcome.map(|outcome| &outcome.mac), "ips": outcome.map(|outcome| &outcome.ips),
            "attached": outcome.is_some()})
    };
    entries.iter().map(entry).collect()
}

pub fn to_text(entries: &[Entry]) -> String {
    let mut text = String::new();
    for entry in entries {
        let state = match entry.step.as_ref().and_then(|step| Some((step, step.outcome.as_ref()?))) {
            Some((step, outcome)) if outcome.ips.is_empty() => format!("is {}", step.if_name),
            Some((step, outcome)) => format!("is {} with {}", step.if_name, outcome.ips.join(", ")),
            None => "prepared, not attached".to_owned(),
        };
        let (record, device) = (&entry.record, &entry.device);
        let Record { claim, pod, .. } = record;
        // Writing to a String does not fail.
        let line = format_args!(
            "{}/{}  pod {}  request {}: {} {state}",
            claim.namespace, claim.name, pod.name, device.request, device.device
        );
        let _ = writeln!(text, "{}", Line::new(line));
    }
    if text.is_empty() { "no claim is prepared\n".to_owned() } else { text }
}
