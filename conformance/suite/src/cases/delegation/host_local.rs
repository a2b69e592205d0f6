//! host-local: ranges, and the files that other programs read.

use serde_json::json;

use crate::layout::addresses;
use crate::outcome::{TestResult, same};
use crate::test_context::{NETWORK, TestContext};
use cni_lab::Place as _;
use cni_runner::Version;

/// The reference's folder for the addresses of the suite's network.
fn folder() -> String {
    format!("/var/lib/cni/networks/{NETWORK}")
}

pub(super) fn from_the_range(test: &TestContext<'_>) -> TestResult {
    let ipam = json!({
        "type": "host-local",
        "ranges": [[{"subnet": "10.99.8.0/22", "rangeStart": "10.99.9.7", "rangeEnd": "10.99.9.8", "gateway": "10.99.11.254"}]],
        "routes": [{"dst": "0.0.0.0/0"}, {"dst": "198.51.100.0/24", "gw": "10.99.8.9"}]});
    let mut given = Vec::new();
    for name in ["pod1", "pod2"] {
        let answer = test.add(&test.target(name)?).key("ipam", ipam.clone()).run()?;
        let result = answer.result()?;
        given.extend(addresses(&result));
        let (gateway, routes) = if test.version < Version::V0_3_0 {
            (&result["ip4"]["gateway"], &result["ip4"]["routes"])
        } else {
            (&result["ips"][0]["gateway"], &result["routes"])
        };
        answer.ensure(gateway == "10.99.11.254", "the gateway of the range, 10.99.11.254", gateway)?;
        answer.ensure(*routes == ipam["routes"], format!("the routes {}", ipam["routes"]), routes)?;
    }
    given.sort();
    same("the addresses of the range", &vec!["10.99.9.7/22".to_owned(), "10.99.9.8/22".to_owned()], &given)?;
    test.add(&test.target("pod3")?).key("ipam", ipam).run()?.refused()?;
    Ok(())
}

pub(super) fn form(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).run()?;
    let given = addresses(&answer.result()?);
    let Some(ip) = given.first().and_then(|address| address.split('/').next()) else {
        return answer.mismatch("an address", answer.shown());
    };
    let node = test.node()?;
    let names = node.list_dir(folder())?;
    let expected = [ip, "last_reserved_ip.0"];
    let others: Vec<&String> =
        names.iter().filter(|name| *name != "lock" && !expected.contains(&name.as_str())).collect();
    let is_right = others.is_empty() && expected.iter().all(|name| names.iter().any(|other| other == name));
    answer.ensure(is_right, format!("{expected:?}, and lock, in {}", folder()), format!("{names:?}"))?;
    for (name, content) in [(ip, "pod1\r\neth0"), ("last_reserved_ip.0", ip)] {
        let seen = node.read_file(format!("{}/{name}", folder()))?;
        answer.ensure(seen == content, format!("{content:?} in {name}"), format!("{seen:?}"))?;
    }
    Ok(())
}

pub(super) fn understood(test: &TestContext<'_>) -> TestResult {
    let node = test.node()?;
    // 10.77.0.1 is the gateway. Two containers have addresses; 10.77.0.5 was assigned last.
    for (name, content) in [
        ("lock", ""),
        ("10.77.0.5", "other\r\neth0"),
        ("10.77.0.6", "pod1\r\neth0"),
        ("last_reserved_ip.0", "10.77.0.5"),
    ] {
        node.write_file(format!("{}/{name}", folder()), content)?;
    }
    let new = test.target("new")?;
    let answer = test.add(&new).run()?;
    let given = addresses(&answer.result()?);
    answer.ensure(
        given == ["10.77.0.7/24"],
        "the first free address after 10.77.0.5, 10.77.0.7/24",
        format!("{given:?}"),
    )?;
    released(test, "10.77.0.5", "10.77.0.6")
}

/// Releases of the reference before 0.7.0 wrote only the container ID.
pub(super) fn legacy(test: &TestContext<'_>) -> TestResult {
    let node = test.node()?;
    for (name, content) in
        [("10.77.0.5", "other"), ("10.77.0.6", "pod1"), ("last_reserved_ip.0", "10.77.0.6")]
    {
        node.write_file(format!("{}/{name}", folder()), content)?;
    }
    released(test, "10.77.0.5", "10.77.0.6")
}

/// Expects that CHECK and DEL of a container find its file and do not touch another container's.
fn released(test: &TestContext<'_>, others: &str, own: &str) -> TestResult {
    let target = test.target("pod1")?;
    let result = json!({"cniVersion": test.version.to_string(), "ips": [{"address": format!("{own}/24"), "gateway": "10.77.0.1"}]});
    if test.version >= Version::V0_4_0 {
        test.check(&target, &result).run()?.ok()?;
    }
    let answer = test.del(&target, Some(&result)).run()?;
    answer.ok()?;
    let names = test.node()?.list_dir(folder())?;
    let has = |name: &str| names.iter().any(|other| other == name);
    answer.ensure(has(others) && !has(own), format!("{others} kept and {own} removed"), format!("{names:?}"))
}
