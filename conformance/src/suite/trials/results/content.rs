//! What is in a result, and what is not.

use std::net::IpAddr;

use serde_json::{Value, json};

use super::rich;
use crate::runner::Version;
use crate::suite::lab::Lab;
use crate::suite::outcome::{Trialled, skip};
use crate::suite::shape::{self, Of};
use crate::suite::subject::Role;

pub(super) fn version(lab: &Lab<'_>) -> Trialled {
    let versions = match lab.subject.role {
        Role::Chained => rich::family(lab, lab.version),
        _ if lab.subject.delegates => lab.subject.versions.clone(),
        _ => vec![lab.version],
    };
    for (number, version) in versions.into_iter().enumerate() {
        let target = lab.target(&format!("pod{number}"))?;
        let handed_in = target.previous.clone().unwrap_or_else(shape::one_address);
        let answer = rich::handing(lab, &target, &shape::render(&handed_in, version))?.run()?;
        let result = answer.result()?;
        let seen = &result["cniVersion"];
        answer.ensure(*seen == lab.version.to_string(), format!("cniVersion {}", lab.version), seen)?;
        lab.del(&target, Some(&result)).run()?;
    }
    Ok(())
}

fn of(lab: &Lab<'_>) -> Of {
    if lab.subject.role == Role::Ipam { Of::Ipam } else { Of::Interface }
}

pub(super) fn oldest(lab: &Lab<'_>) -> Trialled {
    let (_, answer, result) = rich::add(lab)?;
    let faults = shape::faults(&result, lab.version, of(lab));
    answer.ensure(faults.is_empty(), "ip4 or ip6 or both, with an address each", faults.join("; "))
}

/// Either it is refused, or one address is given; there is no way to write two.
pub(super) fn two_addresses(lab: &Lab<'_>) -> Trialled {
    let ranges = json!([[{"subnet": "10.77.0.0/24"}], [{"subnet": "10.78.0.0/24"}]]);
    let call = lab.add(&lab.target("pod1")?).key("ipam", json!({"type": lab.subject.name, "ranges": ranges}));
    refused_or_right(lab, call)
}

pub(super) fn no_address(lab: &Lab<'_>) -> Trialled {
    refused_or_right(lab, lab.add(&lab.target("pod1")?).without_key("ipam"))
}

fn refused_or_right(lab: &Lab<'_>, call: crate::suite::call::Call<'_>) -> Trialled {
    let answer = call.run()?;
    if !answer.output.success() {
        answer.refused()?;
        return Ok(());
    }
    let faults = shape::faults(&answer.result()?, lab.version, of(lab));
    answer.ensure(faults.is_empty(), "an error, or one address of a family", faults.join("; "))
}

pub(super) fn family(lab: &Lab<'_>) -> Trialled {
    let (_, answer, result) = rich::add(lab)?;
    for ip in shape::list(&result, "ips") {
        let is_right = |text: &Value| {
            let family = if shape::is_v6(text) == Some(true) { "6" } else { "4" };
            text.is_null() || ip["version"] == family
        };
        answer.ensure(
            is_right(&ip["address"]) && is_right(&ip["gateway"]),
            "a version that is that of address and gateway",
            ip,
        )?;
    }
    Ok(())
}

pub(super) fn no_family(lab: &Lab<'_>) -> Trialled {
    let (_, answer, result) = rich::add(lab)?;
    for ip in shape::list(&result, "ips") {
        answer.ensure(ip.get("version").is_none(), "an address without version", ip)?;
    }
    Ok(())
}

/// The network's own address means that the host's part is lost.
pub(super) fn host_part(lab: &Lab<'_>) -> Trialled {
    let (target, answer, result) = rich::add(lab)?;
    let addresses = shape::addresses(&result);
    for address in &addresses {
        answer.ensure(has_host_part(address), "addresses in CIDR notation with the host's part", address)?;
    }
    if rich::is_handed_something(lab).is_ok() {
        let given = shape::addresses(&rich::model_for(lab, &target));
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

pub(super) fn empty_parts(lab: &Lab<'_>) -> Trialled {
    let answer = lab.add(&lab.target("pod1")?).run()?;
    let result = answer.result()?;
    for key in ["interfaces", "ips", "routes"] {
        let is_empty = result[key].as_array().is_some_and(Vec::is_empty);
        answer.ensure(
            !is_empty && result.get(key) != Some(&Value::Null),
            format!("no empty {key}"),
            &result,
        )?;
    }
    let has_dns = lab.version >= Version::V1_0_0 || result["dns"].is_object();
    answer.ensure(has_dns, "an object dns", &result)
}

pub(super) fn no_interfaces(lab: &Lab<'_>) -> Trialled {
    let answer = lab.add(&lab.target("pod1")?).run()?;
    let result = answer.result()?;
    answer.ensure(result.get("interfaces").is_none(), "no interfaces", &result)?;
    let has_index = shape::list(&result, "ips").any(|ip| ip.get("interface").is_some());
    answer.ensure(!has_index, "no interface of an address", &result)
}

pub(super) fn as_ipam_said(lab: &Lab<'_>) -> Trialled {
    if lab.config().contains_key("dns") {
        return skip("its configuration has DNS of its own");
    }
    let (_, answer, result) = rich::add(lab)?;
    let given = rich::parts(&shape::render(&rich::model(), lab.version));
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
