//! The content of results.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::rich;
use crate::layout::{self, Of};
use crate::outcome::{TestResult, skip};
use crate::plugin_under_test::Role;
use crate::test_context::TestContext;
use cni_runner::Version;

pub(super) fn version(test: &TestContext<'_>) -> TestResult {
    let versions = match test.plugin.role {
        Role::Chained => rich::family(test, test.version),
        _ if test.plugin.delegates => test.plugin.versions.clone(),
        _ => vec![test.version],
    };
    for (number, version) in versions.into_iter().enumerate() {
        let target = test.target(&format!("pod{number}"))?;
        let handed_in = target.previous.clone().unwrap_or_else(layout::one_address);
        let answer = rich::handing(test, &target, &layout::render(&handed_in, version))?.run()?;
        let result = answer.result()?;
        let seen = &result["cniVersion"];
        answer.ensure(*seen == test.version.to_string(), format!("cniVersion {}", test.version), seen)?;
        test.del(&target, Some(&result)).run()?;
    }
    Ok(())
}

fn of(test: &TestContext<'_>) -> Of {
    if test.plugin.role == Role::Ipam { Of::Ipam } else { Of::Interface }
}

pub(super) fn oldest(test: &TestContext<'_>) -> TestResult {
    let (_, answer, result) = rich::add(test)?;
    let problems = layout::problems(&result, test.version, of(test));
    answer.ensure(problems.is_empty(), "ip4, ip6 or both, each with an address", problems.join("; "))
}

/// Two addresses of a family cannot be expressed: the plugin must refuse them or assign one.
pub(super) fn two_addresses(test: &TestContext<'_>) -> TestResult {
    let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.78.0.0/24"}]]);
    let call =
        test.add(&test.target("pod1")?).key("ipam", json!({"type": test.plugin.name, "ranges": ranges}));
    refused_or_right(test, call)
}

pub(super) fn no_address(test: &TestContext<'_>) -> TestResult {
    refused_or_right(test, test.add(&test.target("pod1")?).without_key("ipam"))
}

fn refused_or_right(test: &TestContext<'_>, call: crate::call::Call<'_>) -> TestResult {
    let answer = call.run()?;
    if !answer.output.success() {
        answer.refused()?;
        return Ok(());
    }
    let problems = layout::problems(&answer.result()?, test.version, of(test));
    answer.ensure(problems.is_empty(), "an error or at most one address of each family", problems.join("; "))
}

pub(super) fn family(test: &TestContext<'_>) -> TestResult {
    let (_, answer, result) = rich::add(test)?;
    for ip in layout::list(&result, "ips") {
        let is_right = |text: &Value| {
            let family = if layout::is_v6(text) == Some(true) { "6" } else { "4" };
            text.is_null() || ip["version"] == family
        };
        answer.ensure(
            is_right(&ip["address"]) && is_right(&ip["gateway"]),
            "a version that matches address and gateway",
            ip,
        )?;
    }
    Ok(())
}

pub(super) fn no_family(test: &TestContext<'_>) -> TestResult {
    let (_, answer, result) = rich::add(test)?;
    for ip in layout::list(&result, "ips") {
        answer.ensure(ip.get("version").is_none(), "an address without version", ip)?;
    }
    Ok(())
}

/// If an address equals its network's address, the plugin has lost the host part.
pub(super) fn host_part(test: &TestContext<'_>) -> TestResult {
    let (target, answer, result) = rich::add(test)?;
    let addresses = layout::addresses(&result);
    for address in &addresses {
        answer.ensure(has_host_part(address), "addresses in CIDR notation with a host part", address)?;
    }
    if rich::is_handed_something(test).is_ok() {
        let given = layout::addresses(&rich::model_for(test, &target));
        answer.ensure(addresses == given, format!("addresses {given:?}"), format!("{addresses:?}"))?;
    }
    Ok(())
}

fn has_host_part(text: &str) -> bool {
    let Some((address, prefix)) = text.split_once('/') else { return false };
    let (Ok(address), Ok(prefix)) = (address.parse(), prefix.parse::<u32>()) else { return false };
    let (bits, length) = match address {
        IpAddr::V4(address) => (u128::from(address.to_bits()), 32),
        IpAddr::V6(address) => (address.to_bits(), 128),
    };
    let Some(rest) = u32::checked_sub(length, prefix) else { return false };
    rest < 2 || bits & (u128::MAX >> (128 - rest)) != 0
}

pub(super) fn empty_parts(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let result = answer.result()?;
    for key in ["interfaces", "ips", "routes"] {
        let is_empty = result[key].as_array().is_some_and(Vec::is_empty);
        answer.ensure(
            !is_empty && result.get(key) != Some(&Value::Null),
            format!("no empty {key}"),
            &result,
        )?;
    }
    let has_dns = test.version >= Version::V1_0_0 || result["dns"].is_object();
    answer.ensure(has_dns, "an object dns", &result)
}

pub(super) fn no_interfaces(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).run()?;
    let result = answer.result()?;
    answer.ensure(result.get("interfaces").is_none(), "no interfaces", &result)?;
    let has_index = layout::list(&result, "ips").any(|ip| ip.get("interface").is_some());
    answer.ensure(!has_index, "addresses without interface", &result)
}

pub(super) fn as_ipam_said(test: &TestContext<'_>) -> TestResult {
    if test.config().contains_key("dns") {
        return skip("the plugin's configuration has its own dns");
    }
    let (_, answer, result) = rich::add(test)?;
    let given = rich::parts(&layout::render(&rich::model(), test.version));
    let said = rich::parts(&result);
    for key in ["ips", "dns"] {
        answer.ensure(said[key] == given[key], format!("{key} {}", given[key]), &said[key])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::has_host_part;

    #[test]
    fn a_network_has_no_host_part() {
        for (address, has) in [
            ("10.1.0.5/24", true),
            ("10.1.0.0/24", false),
            ("10.1.0.0/31", true),
            ("10.1.0.0/32", true),
            ("fd00::/64", false),
            ("fd00::1/64", true),
            ("fd00::/0", true),
            ("10.1.0.5", false),
            ("10.1.0.5/33", false),
        ] {
            assert_eq!(has_host_part(address), has, "{address}");
        }
    }
}
