//! More than one ADD for one container.

use serde_json::Value;

use super::super::tools::{lost, node_in_use, on, second, second_interface, separate_subnets};
use crate::fixture::Snapshot;
use crate::suite::call::{Answer, Call};
use crate::suite::lab::{Lab, NETWORK, Target};
use crate::suite::outcome::{Stop, Trialled};
use crate::suite::shape;

/// A node and a container while an attachment is in order.
struct Order<'a> {
    lab: &'a Lab<'a>,
    target: &'a Target,
    check: Call<'a>,
    node: Snapshot,
    pod: Snapshot,
    /// Words of lines that are not the attachment's own.
    others: Vec<String>,
}

impl<'a> Order<'a> {
    fn of(
        lab: &'a Lab<'a>,
        target: &'a Target,
        result: &Value,
        other: Option<&Value>,
    ) -> Result<Order<'a>, Stop> {
        let check = lab.check(target, result);
        let mut others = vec!["eth1".to_owned(), "- file: ".to_owned()];
        let interfaces = other.into_iter().flat_map(|other| shape::list(other, "interfaces"));
        others.extend(interfaces.filter_map(|interface| interface["name"].as_str()).map(str::to_owned));
        Ok(Order { others, lab, target, check, node: lab.snapshot()?, pod: lab.snapshot_of(&target.pod)? })
    }

    /// Nothing of the attachment is missing after a call, and CHECK, which is there from 0.4.0 on, finds it in order.
    fn is_kept(&self, after: &Answer) -> Trialled {
        let harm = lost(&self.node, &self.lab.snapshot()?)
            + &lost(&self.pod, &self.lab.snapshot_of(&self.target.pod)?);
        // How a plugin keeps its books is its own business.
        let is_own = |line: &&str| !self.others.iter().any(|other| line.contains(other.as_str()));
        let harm: Vec<&str> = harm.lines().filter(is_own).collect();
        let harm = harm.join("\n");
        after.ensure(harm.is_empty(), "nothing of the first attachment is lost", harm)?;
        self.check.run()?.silent()
    }
}

pub(super) fn same_attachment(lab: &Lab<'_>) -> Trialled {
    let before = node_in_use(lab)?;
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    let order = Order::of(lab, &target, &result, None)?;
    order.is_kept(&lab.add(&target).run()?)?;
    // Whatever the second has left goes with the first.
    let answer = lab.detached(&target, &result)?;
    target.pod.delete()?;
    lab.unchanged_since(&before, &answer)
}

pub(super) fn two_interfaces(lab: &Lab<'_>) -> Trialled {
    separate_subnets(lab)?;
    let target = lab.target("pod1")?;
    let previous = second_interface(lab, &target)?;
    let first = lab.attached(&target)?;
    let order = Order::of(lab, &target, &first, previous.as_ref())?;
    let add = second(lab.add(&target), previous.as_ref()).run()?;
    let other = add.result()?;
    order.is_kept(&add)?;
    let check = on(lab.check(&target, &other), "eth1");
    second(check, None).run()?.silent()?;
    let del = second(lab.del(&target, Some(&other)), None).run()?;
    del.silent()?;
    order.is_kept(&del)?;
    lab.detached(&target, &first)?;
    Ok(())
}

/// The same container, as the same interface to a plugin that makes none, in two networks.
pub(super) fn two_networks(lab: &Lab<'_>) -> Trialled {
    separate_subnets(lab)?;
    let other_name = format!("{NETWORK}2");
    let target = lab.target("pod1")?;
    let previous = second_interface(lab, &target)?;
    let first = lab.attached(&target)?;
    let order = Order::of(lab, &target, &first, previous.as_ref())?;
    let add = second(lab.add(&target), previous.as_ref()).key("name", other_name.as_str()).run()?;
    let other = add.result()?;
    order.is_kept(&add)?;
    let del = second(lab.del(&target, Some(&other)), None).key("name", other_name.as_str()).run()?;
    del.silent()?;
    order.is_kept(&del)?;
    lab.detached(&target, &first)?;
    Ok(())
}
