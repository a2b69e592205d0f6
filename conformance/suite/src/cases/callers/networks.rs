//! Two networks of one container, added at the same time.

use std::thread;

use serde_json::{Value, json};

use super::caller::{Caller, address, bridge, reaches};
use crate::cases::joined;
use crate::outcome::{Stop, TestResult, ensure};
use crate::test_context::TestContext;
use cni_lab::Place as _;
use cni_runner::Version;

pub(super) fn two_at_once(test: &TestContext<'_>, round: u8) -> TestResult {
    let caller = Caller::new(test)?;
    let version = caller.version_of(Version::V1_0_0)?;
    let first = caller.chain("first", version, bridge("cni0", "10.1.0.0/24"))?;
    let mut second = bridge("cni1", "10.2.0.0/24");
    // Only the first network has the default route.
    second["ipam"]["routes"] = json!([{"dst": "10.3.0.0/24", "gw": "10.2.0.1"}]);
    let second = caller.chain("second", version, second)?;
    let pod = test.node()?.pod(&format!("pod{round}"))?;
    let (eth0, eth1) = (pod.attachment("eth0"), pod.attachment("eth1"));
    let (one, other) = thread::scope(|scope| -> Result<(Value, Value), Stop> {
        let other = scope.spawn(|| caller.add(&second, &eth1));
        let one = caller.add(&first, &eth0);
        Ok((one?, joined(other)?))
    })?;
    for (result, subnet) in [(&one, "10.1.0."), (&other, "10.2.0.")] {
        let given = address(result)?;
        ensure(given.starts_with(subnet), format!("an address in {subnet}0/24"), given)?;
        reaches(&pod, &format!("{subnet}1"))?;
    }
    let routes = pod.sh("ip route")?;
    for route in ["default via 10.1.0.1 dev eth0", "10.3.0.0/24 via 10.2.0.1 dev eth1"] {
        ensure(routes.contains(route), format!("the route {route:?}"), &routes)?;
    }
    caller.del(&first, &eth0)?;
    reaches(&pod, "10.2.0.1")?;
    caller.del(&second, &eth1)?;
    caller.reserved("first", &[])?;
    caller.reserved("second", &[])?;
    pod.delete()?;
    Ok(())
}
