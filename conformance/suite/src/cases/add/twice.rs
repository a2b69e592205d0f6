//! Several ADDs for one container.

use serde_json::Value;

use super::super::tools::{lost, node_in_use, on, second, second_interface, separate_subnets};
use crate::call::{Answer, Call};
use crate::layout;
use crate::outcome::{Stop, TestResult};
use crate::test_context::{NETWORK, Target, TestContext};
use cni_lab::Snapshot;

/// The state of node and container with an intact attachment, to compare with later.
struct Order<'a> {
    test: &'a TestContext<'a>,
    target: &'a Target,
    check: Call<'a>,
    node: Snapshot,
    pod: Snapshot,
    /// Texts that mark the lines of other attachments.
    others: Vec<String>,
}

impl<'a> Order<'a> {
    fn of(
        test: &'a TestContext<'a>,
        target: &'a Target,
        result: &Value,
        other: Option<&Value>,
    ) -> Result<Order<'a>, Stop> {
        let check = test.check(target, result);
        let mut others = vec!["eth1".to_owned(), "- file: ".to_owned()];
        let interfaces = other.into_iter().flat_map(|other| layout::list(other, "interfaces"));
        // The second attachment takes a device from the node.
        let device = second(test.check(target, result), None).config.get("device").cloned();
        others.extend(device.as_ref().and_then(Value::as_str).map(str::to_owned));
        others.extend(interfaces.filter_map(|interface| interface["name"].as_str()).map(str::to_owned));
        Ok(Order { others, test, target, check, node: test.snapshot()?, pod: test.snapshot_of(&target.pod)? })
    }

    /// Expects that nothing of the attachment is lost after a call and that CHECK still succeeds.
    fn is_kept(&self, after: &Answer) -> TestResult {
        let harm = lost(&self.node, &self.test.snapshot()?)
            + &lost(&self.pod, &self.test.snapshot_of(&self.target.pod)?);
        // The format of a plugin's own files does not matter.
        let is_own = |line: &&str| !self.others.iter().any(|other| line.contains(other.as_str()));
        let harm: Vec<&str> = harm.lines().filter(is_own).collect();
        let harm = harm.join("\n");
        after.ensure(harm.is_empty(), "no loss of the first attachment's state", harm)?;
        self.check.run()?.silent()
    }
}

pub(super) fn same_attachment(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    let order = Order::of(test, &target, &result, None)?;
    order.is_kept(&test.add(&target).run()?)?;
    // DEL must also remove what the second ADD has left.
    let answer = test.detached(&target, &result)?;
    target.pod.delete()?;
    test.unchanged_since(&before, &answer)
}

pub(super) fn two_interfaces(test: &TestContext<'_>) -> TestResult {
    separate_subnets(test)?;
    let target = test.target("pod1")?;
    let previous = second_interface(test, &target)?;
    let first = test.attached(&target)?;
    let order = Order::of(test, &target, &first, previous.as_ref())?;
    let add = second(test.add(&target), previous.as_ref()).run()?;
    let other = add.result()?;
    order.is_kept(&add)?;
    let check = on(test.check(&target, &other), "eth1");
    second(check, None).run()?.silent()?;
    let del = second(test.del(&target, Some(&other)), None).run()?;
    del.silent()?;
    order.is_kept(&del)?;
    test.detached(&target, &first)?;
    Ok(())
}

/// The same container in two networks. The second attachment has another interface name; to a plugin that
/// makes no interface it is the same interface.
pub(super) fn two_networks(test: &TestContext<'_>) -> TestResult {
    separate_subnets(test)?;
    let other_name = format!("{NETWORK}2");
    let target = test.target("pod1")?;
    let previous = second_interface(test, &target)?;
    let first = test.attached(&target)?;
    let order = Order::of(test, &target, &first, previous.as_ref())?;
    let add = second(test.add(&target), previous.as_ref()).key("name", other_name.as_str()).run()?;
    let other = add.result()?;
    order.is_kept(&add)?;
    let del = second(test.del(&target, Some(&other)), None).key("name", other_name.as_str()).run()?;
    del.silent()?;
    order.is_kept(&del)?;
    test.detached(&target, &first)?;
    Ok(())
}
