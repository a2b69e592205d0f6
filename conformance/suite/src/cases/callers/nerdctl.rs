//! nerdctl: the namespace is that of a process and gone before every DEL; a DEL without an attachment
//! precedes each ADD.

use std::process::Command;

use serde_json::json;

use super::caller::{Caller, address, bridge, container_id, reaches};
use crate::outcome::{TestResult, ensure};
use crate::test_context::TestContext;
use cni_lab::Place as _;
use cni_runner::{Attachment, Version};

const ADD_ARGS: &str = "IgnoreUnknown=1;IP=10.4.0.77;MAC=92:d0:c6:0a:29:33;NERDCTL_CNI_DHCP_HOSTNAME=abc";
const EARLY_DEL_ARGS: &str =
    "IP=10.4.0.77;MAC=92:d0:c6:0a:29:33;NERDCTL_CNI_DHCP_HOSTNAME=abc;IgnoreUnknown=1";
const STOP_ARGS: &str = "IgnoreUnknown=1;IP=10.4.0.77;MAC=92:d0:c6:0a:29:33";

pub(super) fn restart(test: &TestContext<'_>, round: u8) -> TestResult {
    let caller = Caller::new(test)?;
    let network =
        caller.chain("bridge", caller.version_of(Version::V1_0_0)?, bridge("nerdctl0", "10.4.0.0/24"))?;
    let attachment = |netns: &str, args: &str| {
        let ports = json!([{"HostPort": 8080, "ContainerPort": 80, "Protocol": "tcp", "HostIP": "0.0.0.0"}]);
        Attachment::new(format!("default-{}", container_id(round)), netns, "eth0")
            .with_args(args)
            .with_capability("portMappings", ports)
    };
    for _ in ["start", "restart"] {
        caller.del(&network, &attachment("", EARLY_DEL_ARGS))?;
        let pod = test.node()?.pod("container")?;
        let mut command = Command::new("sleep");
        command.arg("1000");
        let mut container = pod.spawn(command)?;
        let netns = format!("/proc/{}/ns/net", container.child().id());
        let result = caller.add(&network, &attachment(&netns, ADD_ARGS))?;
        let given = address(&result)?;
        ensure(given == "10.4.0.77", "the requested address 10.4.0.77", given)?;
        let link = pod.sh("ip link show eth0")?;
        ensure(link.contains("92:d0:c6:0a:29:33"), "the requested hardware address 92:d0:c6:0a:29:33", link)?;
        reaches(&pod, "10.4.0.1")?;
        drop(container);
        pod.delete()?;
        caller.del(&network, &attachment("", STOP_ARGS))?;
        caller.reserved("bridge", &[])?;
    }
    Ok(())
}
