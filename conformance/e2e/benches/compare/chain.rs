//! One side's pod and list of plugins, called as libcni calls them.

use anyhow::{Context as _, bail};
use cni_runner::{Attachment, Exec, Extra, Network, Output, plugin_input};
use ferrule_kit::fold::{CHAIN, fold};
use serde_json::{Value, json};

use crate::cases::{Case, Step};
use crate::side::Side;

/// An attachment that is added and deleted repeatedly.
pub(crate) struct Chain<'a> {
    side: &'a Side,
    steps: Vec<Step>,
    network: Network,
    /// The network of the side with one `chain`, and that of its CHECK.
    folded: Option<[Network; 2]>,
    attachment: Attachment,
    result: Option<Value>,
}

impl<'a> Chain<'a> {
    /// `number` counts the pods of the side from 0; each has other host ports.
    pub(crate) fn new(
        case: &'a Case,
        side: &'a Side,
        attachment: Attachment,
        number: u16,
    ) -> anyhow::Result<Chain<'a>> {
        let has = |step: &&Step| step.program != "policy" || side.namespace.is_some();
        let steps: Vec<_> = case.steps.iter().filter(has).copied().collect();
        let plugins: Vec<_> = steps.iter().map(|step| (step.config)(side)).collect();
        // The reference in Debian supports versions up to 1.0.0.
        let list = json!({"name": side.network(), "cniVersion": "1.0.0", "plugins": plugins});
        let first = side.host_port() + number * case.own_ports;
        let ports = (first..first + case.own_ports)
            .map(|port| json!({"hostPort": port, "containerPort": 80, "protocol": "tcp"}));
        let attachment = attachment
            .with_capability("portMappings", ports.collect::<Vec<_>>())
            .with_capability(
                "bandwidth",
                json!({"ingressRate": 100_000_000, "ingressBurst": 10_000_000, "egressRate": 100_000_000, "egressBurst": 10_000_000}),
            );
        let attachment = match side.namespace {
            Some(namespace) => attachment
                .with_args(format!("IgnoreUnknown=1;K8S_POD_NAMESPACE={namespace};K8S_POD_NAME=web")),
            None => attachment,
        };
        let folded = side.is_folded.then(|| folded(&list, &steps)).transpose()?;
        let network = Network::from_value(&list)?;
        Ok(Chain { side, steps, network, folded, attachment, result: None })
    }

    /// Calls all plugins with a verb, in libcni's order. `meter` runs the measured plugins; its values are
    /// returned.
    pub(crate) fn call<M>(
        &mut self,
        verb: &str,
        meter: impl Fn(&Exec) -> anyhow::Result<(Output, M)>,
    ) -> anyhow::Result<Vec<M>> {
        let mut order: Vec<usize> = (0..self.steps.len()).collect();
        order.retain(|&index| verb != "CHECK" || self.steps[index].checks);
        if verb == "DEL" {
            order.reverse();
        }
        if verb == "ADD" {
            self.result = None;
        }
        if self.side.is_folded {
            order.truncate(1);
        }
        let mut found = Vec::new();
        for index in order {
            let exec = self.prepare(verb, index)?;
            let output = if self.side.is_folded || self.steps[index].measured {
                let (output, value) = meter(&exec)?;
                found.push(value);
                output
            } else {
                exec.run()?
            };
            if !output.success() {
                let (stdout, stderr) = (output.stdout_text(), output.stderr_text());
                bail!(
                    "{} {verb}: {} {} {}",
                    exec.binary.display(),
                    output.status,
                    stdout.trim(),
                    stderr.trim()
                );
            }
            if verb == "ADD" {
                self.result = Some(output.document().with_context(|| exec.binary.display().to_string())?);
            }
        }
        Ok(found)
    }

    fn prepare(&self, verb: &str, index: usize) -> anyhow::Result<Exec> {
        let program = if self.side.is_folded { CHAIN } else { self.steps[index].program };
        let exec = self.side.program(program, verb).attachment(&self.attachment);
        if verb == "VERSION" {
            return Ok(exec.stdin(json!({"cniVersion": "1.0.0"}).to_string()));
        }
        let (network, index) = match &self.folded {
            Some([all, checked]) => (if verb == "CHECK" { checked } else { all }, 0),
            None => (&self.network, index),
        };
        let plugin = network.plugins.get(index).context("a step without a plugin")?;
        let extra = Extra::Attachment(&self.attachment, self.result.as_ref());
        Ok(exec.stdin(plugin_input(network, plugin, extra)))
    }
}

/// The list in one `chain`, and the same with those members alone that CHECK calls.
fn folded(list: &Value, steps: &[Step]) -> anyhow::Result<[Network; 2]> {
    let mut checked = list.clone();
    if let Some(plugins) = checked["plugins"].as_array_mut() {
        let mut steps = steps.iter();
        plugins.retain(|_| steps.next().is_some_and(|step| step.checks));
    }
    let fold = |list: &Value| -> anyhow::Result<Network> {
        let list = list.as_object().context("no list")?;
        Ok(Network::from_value(&fold(list).map_err(anyhow::Error::msg)?.into())?)
    };
    Ok([fold(list)?, fold(&checked)?])
}
