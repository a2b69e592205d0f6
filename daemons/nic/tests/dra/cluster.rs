//! A node of a cluster: links, an API server, a kubelet's folder, and the daemon.

use std::fs;
use std::ops::Deref;

use cni_lab::Place as _;
use ferrule_fake_apiserver::{ApiServer, Store};
use ferrule_fake_kubelet::{DraKubelet, DraRelease};
use serde_json::{Value, json};

use crate::lab::Lab;

/// The driver's name.
pub(crate) const DRIVER: &str = "nic.ferrule.dev";
/// All links whose names begin with `eth`.
pub(crate) const CONFIG: &str = "dra: {selectors: {ifNames: ['eth*']}}";
const SLICES: &str = "/apis/resource.k8s.io/v1/resourceslices";
const CLAIMS: &str = "/apis/resource.k8s.io/v1/namespaces/shop/resourceclaims";

pub(crate) struct Cluster {
    lab: Lab,
    pub(crate) store: Store,
    pub(crate) api: ApiServer,
}

impl Deref for Cluster {
    type Target = Lab;

    fn deref(&self) -> &Lab {
        &self.lab
    }
}

impl Cluster {
    /// The node `n1` with the links `eth1` and `eth2`, and [`CONFIG`].
    pub(crate) fn new() -> Cluster {
        let (lab, store) = (Lab::new(), Store::default());
        lab.configure(CONFIG);
        store.put(
            "/api/v1/nodes/n1",
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"uid": "n1-uid"}}),
        );
        let api = lab.node.run(|| ApiServer::start(&store, ([127, 0, 0, 1], 0).into())).unwrap();
        let kubeconfig = json!({"apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": api.url()}}], "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]});
        fs::write(lab.path("kubeconfig"), kubeconfig.to_string()).unwrap();
        Cluster { lab, store, api }
    }

    /// A kubelet that runs.
    pub(crate) fn dra_kubelet(&self, release: DraRelease) -> DraKubelet {
        DraKubelet::start(&self.path("kubelet"), release)
    }

    /// Waits until as many instances of the driver are registered.
    pub(crate) fn registered(&self, kubelet: &DraKubelet, count: usize) {
        let is_so = || kubelet.plugins(DRIVER).len() == count;
        assert!(
            cni_lab::eventually(cni_lab::TIMEOUT, is_so),
            "{:?} {:?}: {}",
            kubelet.plugins(DRIVER),
            kubelet.problems(),
            self.log()
        );
    }

    pub(crate) fn slices(&self) -> Vec<Value> {
        self.store.list(SLICES)
    }

    pub(crate) fn wipe(&self) {
        for slice in self.slices() {
            self.store.delete(&format!("{SLICES}/{}", slice["metadata"]["name"].as_str().unwrap()));
        }
    }

    /// The devices of the newest generation, with `!` before one that has a taint. Empty as long as the pool is not complete.
    pub(crate) fn devices(&self) -> String {
        let slices = self.slices();
        let pool = |slice: &Value, key: &str| slice["spec"]["pool"][key].as_u64().unwrap();
        let newest = slices.iter().map(|slice| pool(slice, "generation")).max();
        let slices: Vec<_> =
            slices.iter().filter(|slice| Some(pool(slice, "generation")) == newest).collect();
        if slices.iter().any(|slice| pool(slice, "resourceSliceCount") != slices.len() as u64) {
            return String::new();
        }
        let name = |device: &Value| {
            let mark = if device["taints"].is_array() { "!" } else { "" };
            format!("{mark}{}", device["name"].as_str().unwrap())
        };
        let devices = slices.iter().flat_map(|slice| slice["spec"]["devices"].as_array().unwrap());
        devices.map(name).collect::<Vec<_>>().join(" ")
    }

    /// Waits until these are the devices.
    pub(crate) fn published(&self, expected: &str) {
        let is_so = || self.devices() == expected;
        assert!(
            cni_lab::eventually(cni_lab::TIMEOUT, is_so),
            "{}, not {expected}: {}",
            self.devices(),
            self.log()
        );
    }

    /// Makes a claim with this UID, which is also its name, for the pod with the UID `aa` and the claim's: device by request, and
    /// parameters for all of them.
    pub(crate) fn claim(&self, uid: &str, devices: &[(&str, &str)], parameters: Option<Value>) {
        let result = |(request, device): &(&str, &str)| json!({"driver": DRIVER, "pool": "n1", "request": request, "device": device});
        let config = |parameters| {
            json!({"source": "FromClaim", "requests": [],
                "opaque": {"driver": DRIVER, "parameters": parameters}})
        };
        let status = json!({"reservedFor": [{"resource": "pods", "name": format!("web-{uid}"), "uid": format!("aa{uid}")}],
            "allocation": {"devices": {"results": devices.iter().map(result).collect::<Vec<_>>(),
                "config": parameters.into_iter().map(config).collect::<Vec<_>>()}}});
        self.store.put(
            &claim_path(uid),
            json!({"kind": "ResourceClaim", "apiVersion": "resource.k8s.io/v1", "metadata": {"uid": uid},
                "spec": {}, "status": status}),
        );
    }

    /// The record of the claim for its pod.
    pub(crate) fn record(&self, uid: &str) -> Option<Value> {
        let text = fs::read(self.path(&format!("data/dra/aa{uid}/{uid}.json"))).ok()?;
        Some(serde_json::from_slice(&text).unwrap())
    }

    /// Prepares claims of [`Cluster::claim`]. The texts are the devices of each, or the error.
    pub(crate) fn prepare(&self, kubelet: &DraKubelet, uids: &[&str]) -> Vec<String> {
        let claims: Vec<_> = uids.iter().map(|uid| ("shop", *uid, *uid)).collect();
        let mut outcomes = kubelet.prepare(DRIVER, &claims).unwrap();
        let text = |uid: &&str| match outcomes.remove(*uid).expect("the claim has no entry") {
            Err(error) => error,
            Ok(devices) => {
                let names =
                    devices.iter().map(|one| format!("{}={}", one.request_names.join("+"), one.device_name));
                names.collect::<Vec<_>>().join(" ")
            }
        };
        uids.iter().map(text).collect()
    }

    /// Unprepares claims.
    pub(crate) fn unprepare(&self, kubelet: &DraKubelet, uids: &[&str]) {
        let claims: Vec<_> = uids.iter().map(|uid| ("shop", *uid, *uid)).collect();
        let outcomes = kubelet.unprepare(DRIVER, &claims).unwrap();
        assert!(uids.iter().all(|uid| outcomes[*uid] == Ok(())), "{outcomes:?}");
    }
}

/// The path of a claim in the store.
pub(crate) fn claim_path(uid: &str) -> String {
    format!("{CLAIMS}/{uid}")
}

/// Parameters of our kind.
pub(crate) fn nic_config(keys: Value) -> Value {
    let mut parameters = json!({"apiVersion": "nic.ferrule.dev/v1alpha1", "kind": "NicConfig"});
    parameters.as_object_mut().unwrap().append(&mut keys.as_object().unwrap().clone());
    parameters
}
