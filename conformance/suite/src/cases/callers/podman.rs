//! podman: version 0.4.0, IP and hardware address by CNI_ARGS; the namespace's path is gone at DEL.

use serde_json::json;

use super::caller::{Caller, address, bridge, reaches};
use crate::outcome::{TestResult, ensure};
use crate::test_context::TestContext;
use cni_lab::Place as _;
use cni_runner::Version;

pub(super) fn container(test: &TestContext<'_>, round: u8) -> TestResult {
    let caller = Caller::new(test)?;
    let mut first = bridge("cni-podman0", "10.88.0.0/16");
    first["hairpinMode"] = true.into();
    first["ipam"]["ranges"][0][0]["gateway"] = "10.88.0.1".into();
    let network = caller.chain("podman", caller.version_of(Version::V0_4_0)?, first)?;
    let pod = test.node()?.pod(&format!("container{round}"))?;
    let ports = json!([{"containerPort": 80, "hostPort": 8080, "protocol": "tcp"}]);
    let attachment = pod
        .attachment("eth0")
        .with_args("IgnoreUnknown=1;K8S_POD_NAME=web;MAC=92:d0:c6:0a:29:33;IP=10.88.0.77")
        .with_capability("portMappings", ports);
    let result = caller.add(&network, &attachment)?;
    let given = address(&result)?;
    ensure(given == "10.88.0.77", "the requested address 10.88.0.77", given)?;
    let link = pod.sh("ip link show eth0")?;
    ensure(link.contains("92:d0:c6:0a:29:33"), "the requested hardware address 92:d0:c6:0a:29:33", link)?;
    reaches(&pod, "10.88.0.1")?;
    pod.delete()?;
    caller.del(&network, &attachment)?;
    caller.reserved("podman", &[])
}
