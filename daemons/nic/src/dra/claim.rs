//! The record of a claim, from the claim as the API server has it. Pure.

use ferrule_kubelet::claims::{Claimed, PodRef, Record, Ref, record::VERSION};
use k8s_openapi::api::resource::v1::{
    DeviceRequestAllocationResult, ResourceClaim, ResourceClaimConsumerReference,
};

use super::parameters::Parameters;
use crate::plan::Nic;

/// The node as claims see it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Node<'n> {
    pub(crate) driver: &'n str,
    pub(crate) pool: &'n str,
    pub(crate) nics: &'n [Nic],
}

/// The record of the claim for its pod. An error says why the claim cannot be prepared.
pub(crate) fn record(claim: &ResourceClaim, asked: &Ref, node: Node<'_>) -> Result<Record, String> {
    let uid = claim.metadata.uid.as_deref().unwrap_or_default();
    if uid != asked.uid {
        return Err(format!("another claim has its name now, with the UID {uid:?}"));
    }
    let status = claim.status.as_ref();
    let allocation = status.and_then(|status| status.allocation.as_ref()?.devices.as_ref());
    let allocation = allocation.ok_or("it has no devices: it is not allocated")?;
    let pod = pod(status.and_then(|status| status.reserved_for.as_deref()).unwrap_or_default())?;
    let configs = allocation.config.as_deref().unwrap_or_default();
    let results = allocation.results.iter().flatten().filter(|result| result.driver == node.driver);
    let mut devices: Vec<Claimed> = Vec::new();
    for result in results {
        let claimed = claimed(result, node).and_then(|mut claimed| {
            let parameters = Parameters::collect(configs, node.driver, &result.request)?;
            parameters.apply(&mut claimed).map(|()| claimed)
        });
        let claimed = claimed.map_err(|why| format!("request {:?}: {why}", result.request))?;
        if devices.iter().any(|other| other.device == claimed.device) {
            return Err(format!(
                "request {:?}: the claim has the device {:?} twice",
                result.request, result.device
            ));
        }
        devices.push(claimed);
    }
    let record =
        Record { version: VERSION, driver: node.driver.to_owned(), claim: asked.clone(), pod, devices };
    record.check().map(|()| record)
}

fn pod(consumers: &[ResourceClaimConsumerReference]) -> Result<PodRef, String> {
    match consumers {
        [one] if one.resource == "pods" && one.api_group.as_deref().unwrap_or_default().is_empty() => {
            Ok(PodRef { uid: one.uid.clone(), name: one.name.clone() })
        }
        [one] => Err(format!("it is reserved for the {} {:?}, not for a pod", one.resource, one.name)),
        [] => Err("it is reserved for no pod".to_owned()),
        many => Err(format!("it is reserved for {} pods: a device is in one pod at a time", many.len())),
    }
}

fn claimed(result: &DeviceRequestAllocationResult, node: Node<'_>) -> Result<Claimed, String> {
    if result.admin_access == Some(true) {
        return Err("adminAccess is not supported: the device may be in another pod".to_owned());
    }
    if result.pool != node.pool {
        return Err(format!("the pool is {:?}, and that of this node is {:?}", result.pool, node.pool));
    }
    let nic = node.nics.iter().find(|nic| nic.name == result.device);
    let nic = nic.ok_or_else(|| format!("the node has no device {:?}", result.device))?;
    Ok(Claimed {
        request: result.request.clone(),
        pool: result.pool.clone(),
        device: result.device.clone(),
        link: nic.link.clone(),
        ..Claimed::default()
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ferrule_kubelet::claims::Link;
    use serde_json::{Value, json};

    use super::*;

    /// A claim with a device for each request, and these configurations of our driver.
    fn claim(requests: &[(&str, &str)], configs: &[(&str, Value)]) -> Value {
        let result = |(request, device): &(&str, &str)| json!({"driver": "nic.ferrule.dev", "pool": "n1", "request": request, "device": device});
        let config = |(request, parameters): &(&str, Value)| {
            json!({"source": "FromClaim", "requests": request.split_terminator(' ').collect::<Vec<_>>(),
            "opaque": {"driver": "nic.ferrule.dev", "parameters": parameters}})
        };
        json!({"metadata": {"name": "nic", "namespace": "shop", "uid": "c1"}, "status": {
            "allocation": {"devices": {"results": requests.iter().map(result).collect::<Vec<_>>(),
                "config": configs.iter().map(config).collect::<Vec<_>>()}},
            "reservedFor": [{"resource": "pods", "name": "web", "uid": "0d3c"}]}})
    }

    fn judge(claim: &Value) -> Result<Record, String> {
        let nic = |name: &str| Nic {
            name: name.to_owned(),
            problem: None,
            link: Link { name: name.to_owned(), ..Link::default() },
            attributes: BTreeMap::new(),
        };
        let nics = ["eth1", "eth2"].map(nic);
        let asked = Ref { namespace: "shop".to_owned(), name: "nic".to_owned(), uid: "c1".to_owned() };
        let node = Node { driver: "nic.ferrule.dev", pool: "n1", nics: &nics };
        record(&serde_json::from_value(claim.clone()).unwrap(), &asked, node)
    }

    fn interface(keys: &Value) -> Value {
        let mut parameters = json!({"apiVersion": "nic.ferrule.dev/v1alpha1", "kind": "NicConfig"});
        parameters.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        parameters
    }

    fn cni(keys: &Value) -> Value {
        let mut parameters = json!({"apiVersion": "cni.networking.x-k8s.io/v1alpha1", "kind": "CNIConfig"});
        parameters.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
        parameters
    }

    #[test]
    fn parameters_reach_their_requests() {
        let macvlan = json!({"ifName": "fast", "config": {"name": "mv", "type": "macvlan"}});
        let class = interface(&json!({"mtu": 9000, "ifName": "net7"}));
        let own = interface(
            &json!({"ifName": "lan", "addresses": ["10.0.0.2/24"], "routes": [{"dst": "10.9.0.0/16", "gw": "10.0.0.1"}]}),
        );
        let record = judge(&claim(
            &[("a", "eth1"), ("b/big", "eth2")],
            &[("", class), ("a", own), ("b", cni(&macvlan))],
        ));
        let record = record.unwrap();
        let first = &record.devices[0];
        assert_eq!((first.mtu, first.if_name.as_deref(), first.routes.len()), (Some(9000), Some("lan"), 1));
        let second = &record.devices[1];
        assert_eq!((second.mtu, second.if_name.as_ref(), second.link.name.as_str()), (None, None, "eth2"));
        assert_eq!(second.cni.as_ref().unwrap().if_name, "fast");
        assert_eq!((record.pod.uid.as_str(), record.pod.name.as_str()), ("0d3c", "web"));
    }

    #[test]
    fn foreign_devices_and_parameters_are_left_alone() {
        let mut both = claim(&[("a", "eth1"), ("gpu", "gpu0")], &[("", json!("7"))]);
        both["status"]["allocation"]["devices"]["results"][1]["driver"] = json!("gpu.example.com");
        both["status"]["allocation"]["devices"]["config"][0]["opaque"]["driver"] = json!("gpu.example.com");
        assert_eq!(judge(&both).unwrap().devices.len(), 1);
    }

    #[test]
    fn bad_parameters_are_one_clear_error() {
        for (parameters, why) in [
            (json!("x"), "request \"a\": the parameters are no object: \"x\""),
            (
                json!({"kind": "NicConfig"}),
                "request \"a\": the parameters are \"\" \"NicConfig\", not nic.ferrule.dev/v1alpha1",
            ),
            (
                json!({"apiVersion": "nic.ferrule.dev/v2", "kind": "NicConfig"}),
                "request \"a\": the parameters are \"nic.ferrule.dev/v2\" \"NicConfig\", not nic.ferrule.dev/v1alpha1",
            ),
            (
                interface(&json!({"ifname": "x"})),
                "request \"a\": the parameters: ifname: unknown field `ifname`",
            ),
            (
                interface(&json!({"mtu": "9000"})),
                "request \"a\": the parameters: mtu: invalid type: string \"9000\"",
            ),
            (interface(&json!({"mtu": 1})), "request \"a\": mtu 1 (must be between 68 and 65535)"),
            (
                interface(&json!({"routes": [{"dst": "10.0.0.0/8", "via": "x"}]})),
                "request \"a\": the parameters: routes[0].via: unknown field `via`",
            ),
            (
                interface(&json!({"addresses": ["10.0.0.1"]})),
                "request \"a\": addresses: \"10.0.0.1\" is no IP address",
            ),
            (interface(&json!({"ipam": {"type": "evil"}})), "request \"a\": ipam: the type is \"evil\""),
            (cni(&json!({"ifName": "x"})), "request \"a\": the parameters: missing field `config`"),
            (
                cni(&json!({"ifName": "x", "config": {"type": "bridge"}})),
                "request \"a\": config: the first plugin is \"bridge\"",
            ),
            (
                cni(&json!({"ifName": "x", "config": {"type": "macvlan", "master": "eth0"}})),
                "request \"a\": config: a claim must not have the key \"master\"",
            ),
        ] {
            let error = judge(&claim(&[("a", "eth1")], &[("a", parameters.clone())])).unwrap_err();
            assert!(error.starts_with(why), "{parameters}: {error}");
        }
    }

    #[test]
    fn claims_that_cannot_be_prepared() {
        let good = claim(&[("a", "eth1")], &[]);
        assert_eq!(judge(&good).unwrap().devices[0].device, "eth1");
        let consumer = |resource: &str| json!({"resource": resource, "name": "x", "uid": "1"});
        for (pointer, value, why) in [
            ("/metadata/uid", json!("c2"), "another claim has its name now, with the UID \"c2\""),
            ("/status/allocation", Value::Null, "it has no devices: it is not allocated"),
            ("/status/reservedFor", json!([]), "it is reserved for no pod"),
            (
                "/status/reservedFor",
                json!([consumer("podgroups")]),
                "it is reserved for the podgroups \"x\", not for",
            ),
            ("/status/reservedFor", json!([consumer("pods"), consumer("pods")]), "it is reserved for 2 pods"),
            ("/status/reservedFor/0/uid", json!("../x"), "\"../x\" is no UID of a pod"),
            (
                "/status/allocation/devices/results/0/device",
                json!("eth9"),
                "request \"a\": the node has no device \"eth9\"",
            ),
            (
                "/status/allocation/devices/results/0/pool",
                json!("n2"),
                "request \"a\": the pool is \"n2\", and that of this",
            ),
            ("/status/allocation/devices/results/0/driver", json!("x"), "0 devices (must be 1 to 32)"),
        ] {
            let mut bad = good.clone();
            *bad.pointer_mut(pointer).unwrap() = value;
            let error = judge(&bad).unwrap_err();
            assert!(error.starts_with(why), "{pointer}: {error}");
        }
        let mut bad = good.clone();
        bad["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = json!(true);
        assert!(judge(&bad).unwrap_err().contains("adminAccess"));
        let twice = claim(&[("a", "eth1"), ("b", "eth1")], &[]);
        assert!(
            judge(&twice).unwrap_err().contains("request \"b\": the claim has the device \"eth1\" twice")
        );
    }
}
