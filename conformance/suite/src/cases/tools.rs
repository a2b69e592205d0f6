//! Operations on attachments that several sections use.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::Stdio;
use std::thread;
use std::time::Duration;

use serde_json::{Value, json};

use crate::call::Call;
use crate::layout;
use crate::outcome::{Stop, TestResult, mismatch};
use crate::plugin_under_test::Role;
use crate::stub::Reply;
use crate::test_context::{Target, TestContext};
use cni_lab::{Place, Snapshot, eventually, is_group_alive};

/// How long to wait for helper programs of a killed plugin to end.
const ORPHAN_TIMEOUT: Duration = Duration::from_millis(500);

/// The state of a node in use: one container is attached, and another one was attached and deleted. So the
/// state that containers share exists.
pub(super) fn node_in_use(test: &TestContext<'_>) -> Result<Snapshot, Stop> {
    if test.plugin.role != Role::Loopback {
        test.attached(&test.target("neighbour")?)?;
        let gone = test.target("gone")?;
        test.attached(&gone)?;
        // The namespace is kept, because the kernel removes namespaces asynchronously.
        test.del(&gone, None).run()?.ok()?;
    }
    test.snapshot()
}

/// The lines that a later snapshot no longer has, that is, the damage to existing state.
pub(super) fn lost(before: &Snapshot, after: &Snapshot) -> String {
    let diff = before.diff(after);
    diff.lines().filter(|line| line.starts_with('-')).map(|line| format!("{line}\n")).collect()
}

/// Expects DEL after the namespace is gone to leave nothing, both without CNI_NETNS and with its old value.
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

/// Changes by a shell command what an ADD has made. If the command fails, ADD has not made it, which is a
/// mismatch.
pub(super) fn altered<P: Place>(place: &P, command: &str) -> TestResult {
    match place.sh(command) {
        Ok(_) => Ok(()),
        Err(error) => mismatch(format!("state made by ADD on which this command works: {command}"), error),
    }
}

/// The links in a network namespace with their addresses, as `ip -j address show` prints them.
pub(super) fn links<P: Place>(place: &P) -> Result<Vec<Value>, Stop> {
    Ok(serde_json::from_str(&place.sh("ip -j address show")?)?)
}

/// The names of the links in a network namespace.
pub(super) fn link_names<P: Place>(place: &P) -> Result<Vec<String>, Stop> {
    let links = links(place)?;
    Ok(links.iter().filter_map(|link| link["ifname"].as_str()).map(str::to_owned).collect())
}

/// The same call for another interface name.
pub(super) fn on<'a>(mut call: Call<'a>, ifname: &str) -> Call<'a> {
    ifname.clone_into(&mut call.exec.ifname);
    call
}

/// A call for the container's second attachment, `eth1`, with other host ports. For a chained plugin
/// [`second_interface`] makes that interface.
pub(super) fn second<'a>(mut call: Call<'a>, previous: Option<&Value>) -> Call<'a> {
    if let Some(previous) = previous {
        call = call.previous(previous);
    }
    // Beyond the ports of other containers.
    on(call.higher_ports(100), "eth1")
}

/// For a chained plugin, makes `eth1` in the target's namespace and returns its result; otherwise `None`.
pub(super) fn second_interface(test: &TestContext<'_>, target: &Target) -> Result<Option<Value>, Stop> {
    match test.plugin.role {
        Role::Chained => Ok(Some(test.interface_for(&target.pod, &target.netns, "eth1")?)),
        _ => Ok(None),
    }
}

/// If the plugin delegates, makes the stub return no default route and another subnet per attachment, so that
/// two attachments can share a container. A bridge with `isGateway` keeps one subnet for all.
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

/// If the plugin delegates, makes the stub return addresses of both families.
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

/// Starts a call, kills the plugin after this time, and waits for the helper programs that it has started.
pub(super) fn killed(test: &TestContext<'_>, call: &Call<'_>, after: Duration) -> Result<(), Stop> {
    let input = call.input();
    let mut command = call.exec.to_command();
    command.stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
    let mut child = test.spawn(&mut command)?;
    if let Some(mut pipe) = child.stdin.take() {
        // Fails with EPIPE if the plugin has ended.
        let _ = pipe.write_all(&input);
    }
    thread::sleep(after);
    child.kill()?;
    child.wait()?;
    eventually(ORPHAN_TIMEOUT, || !is_group_alive(child.id()));
    Ok(())
}
