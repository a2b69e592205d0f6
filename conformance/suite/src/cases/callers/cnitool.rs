//! cnitool: ADD, CHECK, GC without a list, DEL, and DEL of the attachment that is gone.

use super::caller::{Caller, bridge, is_without, reaches};
use crate::outcome::TestResult;
use crate::test_context::TestContext;
use cni_runner::{Attachment, Version};

pub(super) fn by_hand(test: &TestContext<'_>, round: u8) -> TestResult {
    let caller = Caller::new(test)?;
    let network = caller.chain("pods", caller.version_of(Version::V1_1_0)?, bridge("cni0", "10.1.0.0/24"))?;
    let pod = test.node()?.pod("pod1")?;
    let attachment =
        Attachment::new(format!("cnitool-77383ca0d1715733ca6{round}"), pod.path().to_string_lossy(), "eth0")
            .with_args("IgnoreUnknown=1;argA=foo");
    caller.add(&network, &attachment)?;
    caller.check(&network, &attachment)?;
    reaches(&pod, "10.1.0.1")?;
    caller.gc(&network, None)?;
    caller.del(&network, &attachment)?;
    is_without(&pod, "eth0")?;
    caller.del(&network, &attachment)?;
    caller.reserved("pods", &[])?;
    pod.delete()?;
    Ok(())
}
