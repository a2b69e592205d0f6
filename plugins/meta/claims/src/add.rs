//! ADD: records, plan, file, then the plugins of each device. A failed ADD undoes them all.

use std::collections::BTreeSet;

use cni_common::plugin::AddRequest;
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Context as _, SpecVersion};
use ferrule_kit::socket;
use ferrule_kit::state_file::StateFile;
use ferrule_kubelet::Pod;
use ferrule_kubelet::claims::{Attached, Outcome, PodRef, Record, Step, attached};
use serde_json::Value;

use crate::calls::Calls;
use crate::config::Conf;
use crate::plan::{Planned, plan};
use crate::{device, file, pod};

/// Attaches the devices of the pod's claims. A pod without a claim keeps its result.
pub fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let mut result = call.prev_result.clone().ok_or_else(|| {
        CniError::invalid_config("must be called as chained plugin")
            .with_details("claims adds interfaces to those of the plugins before")
    })?;
    let records = pod::records(&conf, &call.env.args)?;
    let Some(first) = records.first() else { return Ok(result) };
    let file = file::of(&conf.attached, call.config.name(), call.container_id, call.ifname);
    if file.read()?.is_some() {
        let msg = format!("the claims of container {} are attached already", call.container_id);
        return Err(CniError::internal(msg));
    }
    let mut attached = Attached { pod: first.pod.clone(), ..begin(call, &conf) };
    attached.steps = steps(call, &records, &result)?;
    file::write(&file, &attached)?;
    make(call, &mut attached, &mut result)
        .and_then(|()| file::write(&file, &attached))
        .inspect_err(|_| undo(call, &attached, &file))?;
    Ok(result)
}

fn begin(call: &AddRequest<'_>, conf: &Conf) -> Attached {
    let name = Pod::of(&call.env.args).ok().flatten().map(|pod| pod.name.to_owned());
    Attached {
        version: attached::VERSION,
        network: call.config.name().to_owned(),
        container_id: call.container_id.to_owned(),
        ifname: call.ifname.to_owned(),
        netns: call.sandbox.path().to_owned(),
        driver: conf.driver.clone(),
        pod: PodRef { uid: String::new(), name: name.unwrap_or_default() },
        steps: Vec::new(),
    }
}

/// What will be made, with the names of the devices. Changes nothing.
fn steps(call: &AddRequest<'_>, records: &[Record], result: &AddResult) -> Result<Vec<Step>, CniError> {
    let links = socket::route_in(call.sandbox.netns()?)?.links(None);
    let links = links.context(|| "list the links of the container")?;
    let reported = result.container_interfaces().map(|interface| interface.name.clone());
    let taken: BTreeSet<String> = links.into_iter().map(|link| link.name).chain(reported).collect();
    let mut planned = plan(records, call.config.name(), &taken)?;
    let mut host = socket::route()?;
    let name = |one: &mut Planned| device::name(&mut host, one);
    planned.iter_mut().try_for_each(name)?;
    Ok(planned.into_iter().map(|one| one.step).collect())
}

/// Makes all interfaces, and adds them to the result.
fn make(call: &AddRequest<'_>, attached: &mut Attached, result: &mut AddResult) -> Result<(), CniError> {
    for step in &mut attached.steps {
        let made = Calls::new(step, call.env).add()?;
        step.outcome = Some(outcome(&made, &step.if_name)?);
        append(result, made, &step.if_name);
    }
    Ok(())
}

/// Undoes a failed ADD. The file stays if that fails, for DEL.
fn undo(call: &AddRequest<'_>, attached: &Attached, file: &StateFile) {
    let mut steps = attached.steps.iter().rev();
    let undone = steps.try_for_each(|step| Calls::new(step, call.env).del());
    if let Err(error) = undone.and_then(|()| file.remove()) {
        remark!("claims: undo the claims of a failed ADD: {error}");
    }
}

fn outcome(made: &AddResult, if_name: &str) -> Result<Outcome, CniError> {
    let mut interfaces = made.container_interfaces();
    let mac = interfaces.find(|one| one.name == if_name).map(|one| one.mac.clone());
    let ips = made.ips_of(if_name).map(|ip| ip.address.to_string()).collect();
    match made.to_json(SpecVersion::NEWEST)? {
        Value::Object(result) => Ok(Outcome { mac: mac.unwrap_or_default(), ips, result }),
        _ => Err(CniError::internal("a result is no object")),
    }
}

/// Adds the interfaces, addresses and routes of a step. The pod keeps the DNS settings of its network.
fn append(result: &mut AddResult, made: AddResult, if_name: &str) {
    let before = result.interfaces.len();
    let own = made.interfaces.iter().position(|one| one.name == if_name && !one.sandbox.is_empty());
    result.ips.extend(made.ips.into_iter().map(|mut ip| {
        let index = ip.interface.and_then(|index| usize::try_from(index).ok()).or(own);
        ip.interface = index.and_then(|index| (before + index).try_into().ok());
        ip
    }));
    result.interfaces.extend(made.interfaces);
    result.routes.extend(made.routes);
}

#[cfg(test)]
mod tests {
    use cni_common::spec::{Interface, IpConfig};

    use super::*;

    #[test]
    fn interfaces_come_behind_those_of_the_network() {
        let interface = |name: &str, sandbox: &str| Interface {
            name: name.to_owned(),
            sandbox: sandbox.to_owned(),
            mac: "02:00:00:00:00:01".to_owned(),
            ..Interface::default()
        };
        let ip =
            |text: &str, interface| IpConfig { address: text.parse().unwrap(), gateway: None, interface };
        let mut result = AddResult {
            interfaces: vec![interface("cni0", ""), interface("eth0", "/n")],
            ips: vec![ip("10.0.0.2/24", Some(1))],
            ..AddResult::default()
        };
        let made = AddResult {
            interfaces: vec![interface("hd1", ""), interface("net1", "/n")],
            ips: vec![ip("10.1.0.2/24", Some(1)), ip("10.2.0.2/24", None)],
            ..AddResult::default()
        };
        let outcome = outcome(&made, "net1").unwrap();
        assert_eq!(
            (outcome.mac.as_str(), outcome.ips.as_slice()),
            ("02:00:00:00:00:01", &["10.1.0.2/24".to_owned(), "10.2.0.2/24".to_owned()][..])
        );
        append(&mut result, made, "net1");
        let names: Vec<&str> = result.interfaces.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names, ["cni0", "eth0", "hd1", "net1"]);
        assert_eq!(result.ips.iter().map(|ip| ip.interface).collect::<Vec<_>>(), [Some(1), Some(3), Some(3)]);
    }
}
