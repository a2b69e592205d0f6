//! What Allocate tells the kubelet for one container. Pure.

use std::collections::{BTreeMap, HashMap};

use ferrule_nic_proto::v1beta1::{ContainerAllocateResponse, DeviceSpec};
use serde_json::json;

use crate::config::Resource;
use crate::plan::Offer;

/// The answer for these devices, or the reason for a refusal.
pub(crate) fn answer(
    resource: &Resource,
    offers: &[Offer],
    ids: &[String],
) -> Result<ContainerAllocateResponse, String> {
    for (position, id) in ids.iter().enumerate() {
        let offer = offers.iter().find(|offer| offer.id == *id);
        let offer = offer.ok_or_else(|| format!("{} has no device {id:?}", resource.name))?;
        if !offer.present {
            return Err(format!("{}: device {id:?}: the link is gone", resource.name));
        }
        if ids[..position].contains(id) {
            return Err(format!("{}: device {id:?} is requested twice", resource.name));
        }
    }
    let needs_vhost_net = resource.selectors.iter().any(|selector| selector.need_vhost_net);
    let nodes = ["/dev/vhost-net", "/dev/net/tun"].iter().filter(|_| needs_vhost_net);
    let device = |path: &&str| DeviceSpec {
        container_path: (*path).to_owned(),
        host_path: (*path).to_owned(),
        permissions: "rw".to_owned(),
    };
    let (envs, devices) = (environment(resource, ids), nodes.map(device).collect());
    Ok(ContainerAllocateResponse { envs, devices, ..ContainerAllocateResponse::default() })
}

/// The variables of the SR-IOV plugin, which change only `.`, and one whose name a shell accepts.
fn environment(resource: &Resource, ids: &[String]) -> HashMap<String, String> {
    let sriov = format!("PCIDEVICE_{}", resource.name.replace(['.', '/'], "_").to_uppercase());
    let info: BTreeMap<&String, _> = ids.iter().map(|id| (id, info(resource, id))).collect();
    let joined = ids.join(",");
    HashMap::from([
        (format!("{sriov}_INFO"), json!(info).to_string()),
        (sriov, joined.clone()),
        (format!("FERRULE_NIC_{}", resource.env_name()), joined),
    ])
}

fn info(resource: &Resource, id: &String) -> serde_json::Value {
    let extra: BTreeMap<_, _> =
        ["*", id.as_str()].iter().filter_map(|key| resource.additional_info.get(*key)).flatten().collect();
    let mut info = json!({"generic": {"deviceID": id}});
    if !extra.is_empty() {
        info["extraInfo"] = json!(extra);
    }
    info
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;

    #[test]
    fn environment_and_refusals() {
        let config = "resourceList: [{resourceName: nic-1, selectors: {needVhostNet: true},
            additionalInfo: {'*': {a: all, b: all}, eth1: {b: one}}}]";
        let resource = Config::parse(config).unwrap().resources.remove(0);
        let offer = |id: &str, present| Offer {
            id: id.to_owned(),
            problem: None,
            what: String::new(),
            numa: None,
            pf: None,
            present,
        };
        let offers = [offer("eth1", true), offer("eth2", true), offer("eth3", false)];
        let ids = |text: &str| text.split(' ').map(str::to_owned).collect::<Vec<_>>();
        let given = answer(&resource, &offers, &ids("eth2 eth1")).unwrap();
        assert_eq!(given.envs["PCIDEVICE_FERRULE_DEV_NIC-1"], "eth2,eth1");
        assert_eq!(given.envs["FERRULE_NIC_NIC_1"], "eth2,eth1");
        assert_eq!(
            given.envs["PCIDEVICE_FERRULE_DEV_NIC-1_INFO"],
            r#"{"eth1":{"extraInfo":{"a":"all","b":"one"},"generic":{"deviceID":"eth1"}},"eth2":{"extraInfo":{"a":"all","b":"all"},"generic":{"deviceID":"eth2"}}}"#
        );
        assert_eq!(given.devices.len(), 2);
        for (wrong, part) in [("eth9", "no device"), ("eth1 eth1", "twice"), ("eth3", "gone")] {
            let error = answer(&resource, &offers, &ids(wrong)).unwrap_err();
            assert!(error.contains(part) && error.starts_with("ferrule.dev/nic-1"), "{error}");
        }
    }
}
