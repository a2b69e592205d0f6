//! Plays the steps of one report.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::Command;

use cni_lab::{Node, NodeRuntime, Place, Pod, bin_dir, go_bin_dir};
use cni_runner::{Attachment, Error, Network};
use serde_json::Value;

use super::{Report, Step, Verb};

/// A node in the middle of a report.
struct Scene {
    node: Node,
    bin_dir: PathBuf,
    network: Option<Network>,
    capabilities: BTreeMap<&'static str, Value>,
    pods: BTreeMap<&'static str, (Pod, Attachment)>,
}

/// Panics at the first step that does not hold.
pub(super) fn play(report: &Report) {
    let mut scene = Scene {
        node: Node::new().unwrap(),
        bin_dir: bin_dir().unwrap(),
        network: None,
        capabilities: BTreeMap::new(),
        pods: BTreeMap::new(),
    };
    for (number, step) in report.steps.iter().enumerate() {
        if let Err(reason) = scene.step(step) {
            panic!("{}: step {}: {reason}", report.source, number + 1);
        }
    }
}

impl Scene {
    fn step(&mut self, step: &Step) -> Result<(), String> {
        match step {
            Step::Network(network) => self.network = Some(Network::from_value(network).unwrap()),
            Step::Capability(name, value) => drop(self.capabilities.insert(name, value.clone())),
            Step::Ours => self.bin_dir = bin_dir().unwrap(),
            Step::Reference => self.bin_dir = go_bin_dir().unwrap(),
            Step::Call(verb, pod) => {
                self.call(*verb, pod).map_err(|error| format!("{verb:?} {pod}: {error}"))?
            }
            Step::Refused(verb, pod, text) => is_refused(self.call(*verb, pod), text)?,
            Step::Status("") => self.status().map_err(|error| error.to_string())?,
            Step::Status(text) => is_refused(self.status(), text)?,
            Step::Gone(pod) => self.pods[pod].0.delete().unwrap(),
            Step::Node(script) => drop(self.succeed(&self.node, script)?),
            Step::Pod(pod, script) => drop(self.succeed(&self.pods[pod].0, script)?),
            Step::Says(script, text) => {
                let (_, said) = self.run(&self.node, script);
                said.contains(text)
                    .then_some(())
                    .ok_or_else(|| format!("{script}: not \"{text}\":\n{said}"))?;
            }
        }
        Ok(())
    }

    fn runtime(&self) -> NodeRuntime<'_> {
        self.node.runtime([&self.bin_dir])
    }

    fn network(&self) -> &Network {
        self.network.as_ref().expect("a report begins with a network")
    }

    fn status(&self) -> Result<(), Error> {
        self.runtime().status(self.network())
    }

    fn call(&mut self, verb: Verb, name: &'static str) -> Result<(), Error> {
        if matches!(verb, Verb::Add) && !self.pods.contains_key(name) {
            let pod = self.node.pod(name).unwrap();
            let mut attachment = pod.attachment("eth0");
            for (name, value) in &self.capabilities {
                attachment = attachment.with_capability(*name, value.clone());
            }
            self.pods.insert(name, (pod, attachment));
        }
        let (runtime, network, attachment) = (self.runtime(), self.network(), &self.pods[name].1);
        match verb {
            Verb::Add => runtime.add(network, attachment).map(drop),
            Verb::Check => runtime.check(network, attachment),
            Verb::Del => runtime.del(network, attachment),
        }
    }

    /// Whether the script succeeded, and all that it said.
    fn run(&self, place: &impl Place, script: &str) -> (bool, String) {
        let path = format!("{}:{}", self.bin_dir.display(), std::env::var("PATH").unwrap());
        let output = place.exec(Command::new("sh").args(["-ec", script]).env("PATH", path)).unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8_lossy(&said).into_owned())
    }

    fn succeed(&self, place: &impl Place, script: &str) -> Result<String, String> {
        let (succeeded, said) = self.run(place, script);
        if succeeded { Ok(said) } else { Err(format!("{script}: {said}")) }
    }
}

fn is_refused(outcome: Result<(), Error>, text: &str) -> Result<(), String> {
    let said = outcome.err().ok_or("it succeeded")?.to_string();
    said.contains(text).then_some(()).ok_or_else(|| format!("not \"{text}\": {said}"))
}
