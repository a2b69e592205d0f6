//! What trials of several sections do with attachments.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixture::{Place, Snapshot, eventually, is_anybody_in};
use crate::suite::call::Call;
use crate::suite::layout;
use crate::suite::outcome::{Stop, TestResult, mismatch};
use crate::suite::plugin_under_test::Role;
use crate::suite::stub::Reply;
use crate::suite::test_context::{Target, TestContext};

/// How long helper programs of a killed plugin may live on.
const ORPHAN_TIMEOUT: Duration = Duration::from_millis(500);

/// A node that is in use: one container is attached, and another has been. So whatever containers share has been made.
pub(super) fn node_in_use(test: &TestContext<'_>) -> Result<Snapshot, Stop> {
    if test.plugin.role != Role::Loopback {
        test.attached(&test.target("neighbour")?)?;
        let gone = test.target("gone")?;
        test.attached(&gone)?;
        // Its namespace stays: the kernel takes its time to remove one.
        test.del(&gone, None).run()?.ok()?;
    }
    test.snapshot()
}

/// The lines that a later snapshot has no more: the harm that something has done to what was there.
pub(super) fn lost(before: &Snapshot, after: &Snapshot) -> String {
    let diff = before.diff(after);
    diff.lines().filter(|line| line.starts_with('-')).map(|line| format!("{line}\n")).collect()
}

/// A DEL after the namespace has gone, its path given and not given, leaves nothing.
pub(super) fn released_without_namespace(test: &TestContext<'_>) -> TestResult {
    let before = node_in_use(test)?;
    for (name, netns) in [("pod1", Some("")), ("pod2", None)] {
        let target = test.target(name)?;
        let result = test.attached(&target)?;
        target.pod.delete()?;
        let mut call = test.del(&target, Some(&result));
        if let Some(netns) = netns {
            call = call.var("CNI_NETNS", netns);
        }
        let answer = call.run()?;
        answer.ok()?;
        test.unchanged_since(&before, &answer)?;
    }
    Ok(())
}

/// Does something to what an ADD has made, by a shell command. That it cannot be done says that it was not made.
pub(super) fn altered<P: Place>(place: &P, command: &str) -> TestResult {
    match place.sh(command) {
        Ok(_) => Ok(()),
        Err(error) => {
            mismatch(format!("what ADD says it has made, so that this can be done to it: {command}"), error)
        }
    }
}

/// The links of a place, with their addresses, as `ip` shows them.
pub(super) fn links<P: Place>(place: &P) -> Result<Vec<Value>, Stop> {
    Ok(serde_json::from_str(&place.sh("ip -j address show")?)?)
}

/// The names of a place's links.
pub(super) fn link_names<P: Place>(place: &P) -> Result<Vec<String>, Stop> {
    let links = links(place)?;
    Ok(links.iter().filter_map(|link| link["ifname"].as_str()).map(str::to_owned).collect())
}

/// The same call for another interface.
pub(super) fn on<'a>(mut call: Call<'a>, ifname: &str) -> Call<'a> {
    ifname.clone_into(&mut call.exec.ifname);
    call
}

/// The second attachment of a container, `eth1`: for a chained plugin there is such an interface, made ready with
/// [`second_interface`], and no host port is asked for twice.
pub(super) fn second<'a>(mut call: Call<'a>, previous: Option<&Value>) -> Call<'a> {
    if let Some(previous) = previous {
        call = call.previous(previous);
    }
    // Far from the ports of other containers.
    on(call.higher_ports(100), "eth1")
}

/// Makes `eth1` in a target's namespace if the plugin is one that needs it there, and says so in a result.
pub(super) fn second_interface(test: &TestContext<'_>, target: &Target) -> Result<Option<Value>, Stop> {
    match test.plugin.role {
        Role::Chained => Ok(Some(test.interface_for(&target.pod, &target.netns, "eth1")?)),
        _ => Ok(None),
    }
}

/// Gives no default route, if the plugin delegates, and each attachment a subnet of its own, so that two of them get
/// along in one container. A bridge that is the gateway has one subnet for all.
pub(super) fn separate_subnets(test: &TestContext<'_>) -> Result<(), Stop> {
    if test.plugin.delegates {
        let (address, gateway) = match test.config().get("isGateway") {
            Some(_) => ("10.77.0.@N@/24", "10.77.0.1"),
            None => ("10.77.@N@.2/24", "10.77.@N@.1"),
        };
        let result = json!({"ips": [{"address": address, "gateway": gateway}]});
        test.ipam()?.on("ADD", Reply::Json(layout::render(&result, test.version)))?;
    }
    Ok(())
}

/// Gives addresses of both families, if the plugin delegates.
pub(super) fn dual_stack(test: &TestContext<'_>) -> Result<(), Stop> {
    if test.plugin.delegates {
        let result = json!({
            "ips": [
                {"address": "10.77.0.@N@/24", "gateway": "10.77.0.1"},
                {"address": "fd00:77::@N@/64", "gateway": "fd00:77::1"}],
            "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]});
        test.ipam()?.on("ADD", Reply::Json(layout::render(&result, test.version)))?;
    }
    Ok(())
}

/// Starts a call, kills the plugin after this time, and waits for helper programs that it may have started.
pub(super) fn killed(test: &TestContext<'_>, call: &Call<'_>, after: Duration) -> Result<(), Stop> {
    let input = call.input();
    let mut command = call.exec.to_command();
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = test.spawn(&mut command)?;
    if let Some(mut pipe) = child.stdin.take() {
        // A plugin that has ended already does not read.
        let _ = pipe.write_all(&input);
    }
    thread::sleep(after);
    child.kill()?;
    child.wait()?;
    eventually(ORPHAN_TIMEOUT, || !is_anybody_in(child.id()));
    Ok(())
}
