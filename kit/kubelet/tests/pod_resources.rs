//! The client of PodResources and a gRPC server of another implementation.

#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use cni_common::spec::NetConf;
use ferrule_fake_kubelet::{Entries, Get, PodResources as Served, PodResourcesSocket, Release, pod};
use ferrule_kubelet::grpc::Error;
use ferrule_kubelet::{Resource, pod_resources};
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

/// Asks for the pod `shop/web`.
fn ask(socket: &Path, limit: Duration) -> Result<Vec<u8>, Error> {
    pod_resources::ask(socket, "shop", "web", limit)
}

/// How long a question may take.
const LIMIT: Duration = Duration::from_secs(300);

#[test]
fn the_devices_of_a_pod() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![pod("shop", "db", &[]), web()]);
    for (get, name, calls) in [
        (Get::Answers, "web", 1),
        (Get::Answers, "db", 1),
        (Get::Answers, "none", 2),
        (Get::Disabled, "web", 2),
        (Get::Missing, "web", 2),
    ] {
        kubelet.set_release(Release { get, ..Release::default() });
        let before = kubelet.calls();
        let answer = pod_resources::ask(&socket, "shop", name, LIMIT).unwrap();
        assert_eq!(kubelet.calls() - before, calls, "{get:?} {name}");
        let ids = |resource| pod_resources::ids(&answer, "shop", name, resource).unwrap().unwrap();
        let expected =
            if name == "web" { (vec!["eth2", "eth1", "eth2"], vec!["eth9"]) } else { Default::default() };
        assert_eq!((ids(NIC), ids("other/nic")), expected, "{get:?} {name}");
    }
    drop(kubelet);
    assert!(matches!(ask(&socket, LIMIT), Err(Error::Io(_))));
}

#[test]
fn a_call_that_comes_too_soon_is_repeated() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![web()]);
    kubelet.refuse(2);
    ask(&socket, LIMIT).unwrap();
    assert_eq!(kubelet.calls(), 3);
    kubelet.refuse(10);
    let error = ask(&socket, LIMIT).unwrap_err().to_string();
    assert_eq!(error, "rejected by rate limit (code 8 of gRPC)");
    assert_eq!(kubelet.calls(), 8);
}

#[test]
fn a_kubelet_that_hangs() {
    let (_folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![web()]);
    kubelet.set_release(Release { hangs: true, ..Release::default() });
    let error = ask(&socket, Duration::from_millis(100)).unwrap_err();
    assert_eq!(error.to_string(), "the server has not answered in time");
}

/// More than a frame, than the window of HTTP/2 without our settings, and than the longest answer.
#[test]
fn long_answers() {
    let (_folder, socket) = socket();
    let long = |bytes| pod("shop", "long", &[(NIC, &"x".repeat(bytes))]);
    let kubelet = PodResourcesSocket::serve(&socket, vec![long(15 << 20), web()]);
    kubelet.set_release(Release { get: Get::Disabled, ..Release::default() });
    let answer = ask(&socket, LIMIT).unwrap();
    let ids = |name| pod_resources::ids(&answer, "shop", name, NIC).unwrap().unwrap();
    assert_eq!((ids("long")[0].len(), ids("web").len()), (15 << 20, 3));
    kubelet.set_pods(vec![long(20 << 20)]);
    let error = ask(&socket, LIMIT).unwrap_err();
    assert_eq!(error.to_string(), "the server sent an answer of more than 16777216 bytes");
}

/// Releases before 1.34 also list pods that have ended, whose devices other pods have already.
#[test]
fn the_devices_of_a_pod_in_the_shapes_of_the_releases() {
    let (folder, socket) = socket();
    let ended = pod("shop", "ended", &[(NIC, "eth1"), (NIC, "eth0")]);
    let kubelet =
        PodResourcesSocket::serve(&socket, vec![ended, pod("other", "web", &[(NIC, "eth8")]), web()]);
    let ids = |keys: &str| resource(&socket, &folder.path().join("none"), keys).device(ARGS).unwrap();
    for (entries, get) in [
        (Entries::PerResource, Get::Missing),
        (Entries::PerNode, Get::Disabled),
        (Entries::PerDevice, Get::Disabled),
        (Entries::PerDevice, Get::Answers),
    ] {
        kubelet.set_release(Release { entries, get, ..Release::default() });
        let found = ["", r#","index":1"#, r#","index":2"#].map(ids);
        // Sorted, without the duplicate.
        assert_eq!(found, [Some("eth1".to_owned()), Some("eth2".to_owned()), None], "{entries:?} {get:?}");
    }
}

/// As kubelet 1.20.2 has written it for a static pod, whose UID is a hash.
const CHECKPOINT: &str = r#"{"Data":{"PodDeviceEntries":[{"PodUID":"0d3cbc0b57073a80370c3882279ac24d","ContainerName":"tools","ResourceName":"ferrule.dev/nic","DeviceIDs":{"0":["eth5"]},"AllocResp":"ChMKC0ZFUlJVTEVfTklDEgRldGgx"}],"RegisteredDevices":{"ferrule.dev/nic":["eth1","eth2"]}},"Checksum":3226186620}"#;

/// What the pod gets if List answers and does not tell its device, with each state of the checkpoint. A static pod that ends and its
/// successor have one name: List has both, and only the checkpoint tells them apart. Get has the successor.
#[test]
fn the_checkpoint_decides_where_list_does_not() {
    let (folder, socket) = socket();
    let kubelet = PodResourcesSocket::serve(&socket, vec![]);
    kubelet.set_release(Release { get: Get::Disabled, ..Release::default() });
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
    kubelet.set_release(Release { get: Get::Disabled, ..Release::default() });
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
