//! Which device the kubelet has given to a pod.
//!
//! A device plugin offers the devices of a node as a resource, and the kubelet gives them to pods. It does not tell a CNI plugin which
//! pod has which device: the plugin asks the kubelet's service PodResources, or reads the kubelet's [`checkpoint`] if the service does not
//! answer. [`resource`] has the keys of the plugins, `device` finds the device, [`name`] checks the name of a resource, [`pod`]
//! names the pod, and [`pod_resources`] asks the service with [`grpc`]. [`claims`] are those of Dynamic Resource Allocation.

#![deny(missing_docs)]

pub mod checkpoint;
pub mod claims;
mod device;
pub mod grpc;
pub mod name;
pub mod pod;
pub mod pod_resources;
pub mod resource;

pub use pod::Pod;
pub use resource::{KUBELET, Resource, SOCKET, skipped};
