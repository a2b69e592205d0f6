//! The messages and services between the kubelet and a device plugin or a DRA driver, as clients and servers.
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

/// How the kubelet's plugin watcher registers a driver.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all)]
pub mod registration {
    tonic::include_proto!("pluginregistration");
}

/// Dynamic Resource Allocation: claims are prepared for pods, and given back.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all)]
pub mod dra {
    pub mod v1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1");
    }
    pub mod v1beta1 {
        tonic::include_proto!("k8s.io.kubelet.pkg.apis.dra.v1beta1");
    }
}

/// The health of a DRA driver's devices.
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all)]
pub mod health {
    pub use super::podresources as v1;
    pub mod v1alpha1 {
        tonic::include_proto!("v1alpha1");
    }
}

/// The kubelet's list of pods and their devices. The package has the name of that of [`health`].
#[allow(missing_docs, unreachable_pub, rust_2018_idioms, clippy::all)]
pub mod podresources {
    tonic::include_proto!("v1");
}
