//! The client of gRPC that asks the kubelet, and the server of Go, which the kubelet has too.

use std::path::Path;
use std::time::Duration;

use cni_lab::{Containerd, Node, Place as _, bin_dir};
use ferrule_kubelet::grpc;

use crate::lab;

#[test]
fn our_grpc_client_and_the_server_of_go() {
    let node = Node::new().unwrap();
    let _containerd = Containerd::start(&node, &bin_dir().unwrap(), &lab::pods()).unwrap();
    let call = |service: &str, method: &str| {
        let path = format!("/runtime.v1.{service}/{method}");
        let socket = Path::new("/run/containerd/socket");
        node.run(|| grpc::call(socket, &path, b"", Duration::from_secs(20))).unwrap()
    };
    let answer = call("RuntimeService", "Version").unwrap();
    assert!(String::from_utf8_lossy(&answer).contains("containerd"), "{answer:?}");
    // An answer of trailers only, and one of a method that fails.
    let error = call("RuntimeService", "None").unwrap_err().to_string();
    assert_eq!(error, "unknown method None for service runtime.v1.RuntimeService (code 12 of gRPC)");
    let error = call("RuntimeService", "StartContainer").unwrap_err().to_string();
    assert!(error.starts_with("an error occurred when try to find container"), "{error}");
}
