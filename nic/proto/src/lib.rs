//! The messages and services between the kubelet and a device plugin, as clients and servers.
//!
//! The `.proto` files beside this crate name the fields in snake_case; only packages, services, methods and field numbers
//! are on the wire. The kubelet's definitions of releases 1.26 to 1.37 agree with them.

/// The device plugin API: `Registration`, which the kubelet serves, and `DevicePlugin`, which the plugin serves.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all)]
pub mod v1beta1 {
    tonic::include_proto!("v1beta1");

    /// The only version that a kubelet accepts.
    pub const VERSION: &str = "v1beta1";
    /// A device that the kubelet may give to a pod. Each other text counts as unhealthy.
    pub const HEALTHY: &str = "Healthy";
    /// The usual text for a device that the kubelet may not give away.
    pub const UNHEALTHY: &str = "Unhealthy";
}

/// The kubelet's list of pods and their devices.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all)]
pub mod podresources {
    tonic::include_proto!("v1");
}
