//! CRI-O: VERSION and STATUS first, CHECK right after ADD, and GC at its start.

use serde_json::json;

use super::caller::{Caller, address, bridge, container_id, is_without, reaches};
use super::recordings::UID;
use crate::outcome::{TestResult, ensure, skip};
use crate::test_context::TestContext;
use cni_runner::{Attachment, Version};

/// One pod is added and deleted. Another pod is lost from the runtime's cache and left to GC.
pub(super) fn pod(test: &TestContext<'_>, round: u8) -> TestResult {
    let id = container_id(round);
    let caller = Caller::new(test)?;
    let version = caller.version_of(Version::V1_1_0)?;
    if version < Version::V1_1_0 {
        return skip("STATUS and GC begin with version 1.1.0");
    }
    let network = caller.chain("crio", version, bridge("cni0", "10.85.0.0/16"))?;
    let types = network.plugins.iter().filter_map(|plugin| plugin["type"].as_str());
    for plugin in types.chain(["host-local"]) {
        let answer = caller.version(plugin)?;
        let supported = answer["supportedVersions"]
            .as_array()
            .is_some_and(|all| all.contains(&version.to_string().into()));
        ensure(supported, format!("{plugin} to support {version}"), answer)?;
    }
    caller.status(&network)?;
    let args = format!(
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID={id};K8S_POD_UID={UID}"
    );
    let (pod, forgotten) = (test.node()?.pod("cni-1")?, test.node()?.pod("cni-2")?);
    let attach = |id: &str, netns: &std::path::Path, port: u16| {
        Attachment::new(id, netns.to_string_lossy(), "eth0")
            .with_args(&args)
            .with_capability("portMappings", json!([{"hostPort": port, "containerPort": 80, "protocol": "tcp"}]))
            .with_capability("bandwidth", json!({
                "egressBurst": 0, "egressRate": 0, "ingressBurst": 34_359_738_359_u64, "ingressRate": 10_000_000}))
    };
    let (kept, lost) =
        (attach(&id, pod.path(), 8080), attach(&format!("forgotten{round}"), forgotten.path(), 8081));
    let result = caller.add(&network, &kept)?;
    caller.check(&network, &kept)?;
    let other = address(&caller.add(&network, &lost)?)?;
    caller.check(&network, &lost)?;
    reaches(&pod, &other)?;
    caller.check(&network, &kept)?;
    caller.status(&network)?;

    caller.del(&network, &kept)?;
    is_without(&pod, "eth0")?;
    ensure(address(&result)? != other, "two addresses", &other)?;
    caller.reserved("crio", &[&other])?;
    pod.delete()?;
    forgotten.delete()?;
    caller.forget(&network, &lost)?;
    caller.gc(&network, Some(&[]))?;
    caller.reserved("crio", &[])
}
