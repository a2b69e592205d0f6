//! The client of PodResources and a gRPC server of another implementation.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_common::spec::NetConf;
use ferrule_fake_kubelet::{Entries, PodResources as Served, PodResourcesSocket, Release, pod};
use ferrule_kernel::grpc::Error;
use ferrule_kit::pod_resources::client::PodResources;
use ferrule_kit::pod_resources::{Resource, message};
use tempfile::TempDir;

const NIC: &str = "ferrule.dev/nic";
const ARGS: &str = "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=0d3c";

fn socket() -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("kubelet.sock");
    (folder, socket)
}

fn web() -> Served {
    pod("shop", "web", &[(NIC, "eth2"), ("other/nic", "eth9"), (NIC, "eth1"), (NIC, "eth2")])
}

fn resource(socket: &Path, checkpoint: &Path, keys: &str) -> Resource {
    let text = format!(
        r#"{{"cniVersion":"1.0.0","name":"n","type":"t","resourceName":"{NIC}","podResourcesSocket":{socket:?},"checkpoint":{checkpoint:?}{keys}}}"#
    );
    Resource::read(&NetConf::parse(text.into_bytes()).unwrap()).unwrap().unwrap()
}

#[test]
fn all_three_methods() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![pod("shop", "db", &[]), web()]);
    let client = PodResources::at(&socket);
    let answer = client.list().unwrap();
    let pods = message::list(&answer).unwrap();
    assert_eq!(
        pods.iter().map(|pod| (pod.namespace, pod.name)).collect::<Vec<_>>(),
        [("shop", "db"), ("shop", "web")]
    );
    let ids = |devices: &[message::Devices<'_>]| -> Vec<String> {
        devices.iter().flat_map(|one| one.ids.iter().map(|id| format!("{} {id}", one.resource))).collect()
    };
    let expected = ["ferrule.dev/nic eth2", "other/nic eth9", "ferrule.dev/nic eth1", "ferrule.dev/nic eth2"];
    assert_eq!(ids(&pods[1].containers[0].devices), expected);
    assert_eq!(message::get(&client.get("shop", "web").unwrap()).unwrap(), pods[1]);
    assert_eq!(ids(&message::allocatable(&client.allocatable().unwrap()).unwrap()), expected);
    let error = client.get("shop", "gone").unwrap_err().to_string();
    assert_eq!(error, "pod gone in namespace shop not found (code 2 of gRPC)");
    assert_eq!(kubelet.calls(), 4);
    drop(kubelet);
    assert!(matches!(client.list(), Err(Error::Io(_))));
}

#[test]
fn kubelets_without_get() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![web()]);
    kubelet.set_release(Release { has_get: false, ..Release::default() });
    let error = PodResources::at(&socket).get("shop", "web").unwrap_err().to_string();
    assert_eq!(error, "PodResources API Get method disabled (code 2 of gRPC)");
}

#[test]
fn a_call_that_comes_too_soon_is_repeated() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![web()]);
    kubelet.refuse(2);
    PodResources::at(&socket).list().unwrap();
    assert_eq!(kubelet.calls(), 3);
    kubelet.refuse(10);
    let error = PodResources::at(&socket).list().unwrap_err().to_string();
    assert_eq!(error, "rejected by rate limit (code 8 of gRPC)");
    assert_eq!(kubelet.calls(), 8);
}

#[test]
fn a_kubelet_that_hangs() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![web()]);
    kubelet.set_release(Release { hangs: true, ..Release::default() });
    let mut client = PodResources::at(&socket);
    client.limit = Duration::from_millis(100);
    assert_eq!(client.list().unwrap_err().to_string(), "the server has not answered in time");
}

/// More than a frame, than the window of HTTP/2 without our settings, and than the longest answer.
#[test]
fn long_answers() {
    let (_folder, socket) = socket();
    let long = |bytes| pod("shop", "long", &[(NIC, &"x".repeat(bytes))]);
    let kubelet = PodResourcesSocket::serve(&socket, vec![long(15 << 20), web()]);
    let mut client = PodResources::at(&socket);
    client.limit = Duration::from_secs(300);
    let answer = client.list().unwrap();
    let pods = message::list(&answer).unwrap();
    assert_eq!(pods[0].containers[0].devices[0].ids[0].len(), 15 << 20);
    assert_eq!(pods[1].name, "web");
    kubelet.set_pods(vec![long(20 << 20)]);
    assert_eq!(
        client.list().unwrap_err().to_string(),
        "the server sent an answer of more than 16777216 bytes"
    );
}

/// Releases before 1.34 also list pods that have ended, whose devices other pods have already.
#[test]
fn the_devices_of_a_pod_in_the_shapes_of_the_releases() {
    let (folder, socket) = socket();
    let ended = pod("shop", "ended", &[(NIC, "eth1"), (NIC, "eth0")]);
    let kubelet =
        PodResourcesSocket::serve(&socket, vec![ended, pod("other", "web", &[(NIC, "eth8")]), web()]);
    let ids = |keys: &str| resource(&socket, &folder.path().join("none"), keys).device(ARGS).unwrap();
    for entries in [Entries::PerResource, Entries::PerNode, Entries::PerDevice] {
        kubelet.set_release(Release { entries, has_get: false, ..Release::default() });
        let found = ["", r#","index":1"#, r#","index":2"#].map(ids);
        // Sorted, without the duplicate.
        assert_eq!(found, [Some("eth1".to_owned()), Some("eth2".to_owned()), None], "{entries:?}");
    }
}

/// As kubelet 1.20.2 has written it for a static pod, whose UID is a hash.
const CHECKPOINT: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"0d3cbc0b57073a80370c3882279ac24d","ContainerName":"tools","ResourceName":"ferrule.dev/nic","DeviceIDs":{"0":["eth5"]},"AllocResp":"ChMKC0ZFUlJVTEVfTklDEgRldGgx"}],"RegisteredDevices":{"ferrule.dev/nic":["eth1","eth2"]}},"Checksum":3226186620}"#;

/// What the pod gets if List answers and does not tell its device, with each state of the checkpoint. A static pod that ends and its
/// successor have one name: only the checkpoint tells them apart.
#[test]
fn the_checkpoint_decides_where_list_does_not() {
    let (folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![]);
    let checkpoint = folder.path().join("checkpoint");
    let by_list = CHECKPOINT.replace(r#"{"0":["eth5"]}"#, r#"["eth5"]"#);
    let other_node = CHECKPOINT.replace(r#""0""#, r#""-1""#);
    let other_pod = CHECKPOINT.replace("0d3c", "ffff");
    let (none, several) =
        ("pod shop/web has no device of resource", "the kubelet lists several pods shop/web");
    for (file, if_none, if_several) in [
        (Some(CHECKPOINT), Ok("eth5"), Ok("eth5")),
        (Some(&by_list), Ok("eth5"), Ok("eth5")),
        (Some(&other_node), Ok("eth5"), Ok("eth5")),
        (Some(&other_pod), Err(none), Err(none)),
        (Some(&CHECKPOINT[..150]), Err(none), Err(several)),
        (None, Err(none), Err(several)),
    ] {
        match file {
            Some(file) => fs::write(&checkpoint, file).unwrap(),
            None => fs::remove_file(&checkpoint).unwrap(),
        }
        for (pods, expected) in [(vec![], if_none), (vec![web(), web()], if_several)] {
            kubelet.set_pods(pods);
            let args = ARGS.replace("0d3c", "0d3cbc0b57073a80370c3882279ac24d");
            let found = resource(&socket, &checkpoint, r#","required":true"#).device(&args);
            match (&found, expected) {
                (Ok(Some(id)), Ok(expected)) => assert_eq!(id, expected, "{file:?}"),
                (Err(error), Err(text)) => assert!(error.msg.starts_with(text), "{file:?}: {}", error.msg),
                _ => panic!("{file:?}: {found:?} instead of {expected:?}"),
            }
        }
    }
}

#[test]
fn a_pod_that_the_kubelet_lists_without_the_device() {
    let (folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![]);
    let device = |keys: &str| resource(&socket, &folder.path().join("none"), keys).device(ARGS);
    assert_eq!(device(""), Ok(None));
    let error = device(r#","required":true"#).unwrap_err();
    assert!(
        error.details.contains("admitted it before the device plugin had registered"),
        "{}",
        error.details
    );
    kubelet.set_pods(vec![web(), web()]);
    let error = device("").unwrap_err();
    assert_eq!((error.code.number(), error.msg.as_str()), (11, "the kubelet lists several pods shop/web"));
}
