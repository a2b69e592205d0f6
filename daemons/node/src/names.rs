//! Names that several parts know.

/// The VXLAN device.
pub const VXLAN: &str = "ferrule.vxlan";
/// The WireGuard device.
pub const WIREGUARD: &str = "ferrule.wg";
/// The devices of overlays.
pub const OVERLAYS: [&str; 2] = [VXLAN, WIREGUARD];
/// The annotation of a Node that has its public key for WireGuard, in base64.
pub const KEY_ANNOTATION: &str = "ferrule.dev/wireguard-key";
