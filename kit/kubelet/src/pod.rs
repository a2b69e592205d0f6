//! The pod of a call.

use std::fmt;

use cni_common::spec::{CniArgs, CniError};

/// A pod, as the runtime names it in CNI_ARGS. Its text is `NAMESPACE/NAME`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pod<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// Its name.
    pub name: &'a str,
    /// Its UID; empty if it is unknown.
    pub uid: &'a str,
}

impl<'a> Pod<'a> {
    /// The pod in CNI_ARGS.
    ///
    /// # Errors
    /// Code 4 if CNI_ARGS is invalid.
    pub fn of(cni_args: &'a str) -> Result<Option<Self>, CniError> {
        let [namespace, name, uid] = ["K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_UID"];
        let args = CniArgs::parse(cni_args, &[namespace, name, uid, "K8S_POD_INFRA_CONTAINER_ID"])?;
        let pod = |(namespace, name)| Pod { namespace, name, uid: args.get(uid).unwrap_or_default() };
        Ok(args.get(namespace).zip(args.get(name)).map(pod))
    }
}

impl fmt::Display for Pod<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pod_of_cni_args() {
        let args = "K8S_POD_INFRA_CONTAINER_ID=1;K8S_POD_UID=0d3c;IgnoreUnknown=1;K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop";
        assert_eq!(Pod::of(args), Ok(Some(Pod { namespace: "shop", name: "web", uid: "0d3c" })));
        let pod = Pod { namespace: "shop", name: "web", uid: "" };
        assert_eq!(Pod::of("K8S_POD_NAME=web;K8S_POD_NAMESPACE=shop"), Ok(Some(pod)));
        assert_eq!((Pod::of("K8S_POD_NAME=web"), Pod::of("")), (Ok(None), Ok(None)));
    }
}
