//! The name of a resource, and the names that follow from it.

use ferrule_kit::pod_resources::name;

/// The most bytes of a socket's file name: a socket path may have 107, and the kubelet's folder has 32.
const MAX_SOCKET: usize = 75;

/// The name of a resource, if a kubelet accepts it.
pub(super) fn resource(prefix: &str, name: &str) -> Result<String, String> {
    let full = format!("{prefix}/{name}");
    let refused = |why| format!("the kubelet refuses the resource name {full:?}: {why}");
    name::check(&full).map_err(refused)?;
    if socket_name(&full).len() > MAX_SOCKET {
        return Err(format!("the resource name {full:?} is too long for the name of a socket"));
    }
    Ok(full)
}

/// The file name of the resource's socket.
pub fn socket_name(resource: &str) -> String {
    format!("{}.sock", resource.replace('/', "_"))
}

/// The resource as part of an environment variable: upper case, and each character that a shell does not accept becomes `_`.
pub fn env_name(resource: &str) -> String {
    let accepted = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
    resource.chars().map(accepted).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_names() {
        let error = resource("a.kubernetes.io", "x").unwrap_err();
        assert_eq!(
            error,
            "the kubelet refuses the resource name \"a.kubernetes.io/x\": the domain belongs to Kubernetes"
        );
        let error = resource(&["abc"; 10].join("."), &"x".repeat(40)).unwrap_err();
        assert!(error.ends_with("is too long for the name of a socket"), "{error}");
        assert_eq!(resource("a-1.b", "X_y.z").unwrap(), "a-1.b/X_y.z");
    }

    #[test]
    fn names_that_follow() {
        assert_eq!(socket_name("ferrule.dev/nic"), "ferrule.dev_nic.sock");
        assert_eq!(env_name("ferrule.dev/nic-10g"), "FERRULE_DEV_NIC_10G");
    }
}
