//! The files of `examples/` belong together.

use serde_json::{Value, json};

use crate::lab::{NIC, example};

#[test]
fn pod_networks_and_daemon_name_one_resource() {
    let yaml = |file| -> Value { yaml_serde::from_str(&example(file)).unwrap() };
    let pod = yaml("static-pod.yaml");
    assert_eq!(pod["spec"]["containers"][0]["resources"]["limits"], json!({NIC: 1}));
    assert_eq!(pod["metadata"]["annotations"], json!({"ferrule.dev/nic": "true"}));
    for file in ["95-kubelet-nic.conflist", "96-kubelet-nic-only.conflist"] {
        let network: Value = serde_json::from_str(&example(file)).unwrap();
        assert_eq!(network["plugins"][0]["resourceName"], NIC);
    }
    assert_eq!(
        format!("ferrule.dev/{}", yaml("nic.yaml")["resourceList"][0]["resourceName"].as_str().unwrap()),
        NIC
    );
}
