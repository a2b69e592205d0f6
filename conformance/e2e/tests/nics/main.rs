//! A NIC for a pod: `ferrule-nic` offers it to the kubelet, containerd calls `host-device`, and that asks the kubelet.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod admitted;
mod examples;
mod grpc;
mod kubelet;
mod lab;
#[path = "../common/leftovers.rs"]
mod leftovers;
mod static_pods;
