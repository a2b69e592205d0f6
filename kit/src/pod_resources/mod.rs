//! Which device the kubelet has given to a pod.
//!
//! A device plugin offers the devices of a node as a resource, and the kubelet gives them to pods. It does not tell a CNI plugin which
//! pod has which device: the plugin asks the kubelet's service PodResources, or reads the kubelet's [`checkpoint`] if the service does not
//! answer. [`resource`] has the keys of the plugins, `ask` finds the device, [`name`] checks the name of a resource, [`pod`]
//! names the pod, [`client`] makes the calls, [`message`] decodes the answers with [`protobuf`], and [`lookup`] decides.

mod ask;
pub mod checkpoint;
pub mod client;
pub mod lookup;
pub mod message;
pub mod name;
pub mod pod;
pub mod protobuf;
pub mod resource;

pub use pod::Pod;
pub use resource::{KUBELET, Resource, SOCKET, skipped};
