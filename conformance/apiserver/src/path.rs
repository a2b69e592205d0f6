//! The paths of the API.

use crate::refusal::Refusal;

/// A resource in one version of its group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Resource {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) plural: String,
}

impl Resource {
    pub(crate) fn api_version(&self) -> String {
        match self.group.as_str() {
            "" => self.version.clone(),
            group => format!("{group}/{}", self.version),
        }
    }
}

/// The place of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) resource: Resource,
    /// Empty for objects of the cluster.
    pub(crate) namespace: String,
    pub(crate) name: String,
}

/// A path of the API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) resource: Resource,
    /// Absent for objects of the cluster, and for those of all namespaces.
    pub(crate) namespace: Option<String>,
    /// Absent for a collection.
    pub(crate) name: Option<String>,
    pub(crate) subresource: Option<String>,
}

impl Target {
    pub(crate) fn parse(path: &str) -> Result<Target, Refusal> {
        let unknown = || Refusal::new("NotFound", "the server could not find the requested resource");
        let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
        let (group, version, rest) = match parts.as_slice() {
            ["api", version, rest @ ..] => ("", version, rest),
            ["apis", group, version, rest @ ..] => (*group, version, rest),
            _ => return Err(unknown()),
        };
        let (namespace, rest) = match rest {
            ["namespaces", _, "status" | "finalize"] => (None, rest),
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (Some(*namespace), rest),
            _ => (None, rest),
        };
        let (plural, name, subresource) = match rest {
            [plural] => (plural, None, None),
            [plural, name] => (plural, Some(*name), None),
            [plural, name, subresource] => (plural, Some(*name), Some(*subresource)),
            _ => return Err(unknown()),
        };
        if plural.is_empty() || name == Some("") {
            return Err(unknown());
        }
        let resource = Resource {
            group: group.to_owned(),
            version: (*version).to_owned(),
            plural: (*plural).to_owned(),
        };
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (name, subresource) = (owned(name), owned(subresource));
        Ok(Target { resource, namespace: owned(namespace), name, subresource })
    }

    /// The object, if the path names one.
    pub(crate) fn key(&self) -> Option<Key> {
        let (resource, namespace) = (self.resource.clone(), self.namespace.clone().unwrap_or_default());
        self.name.clone().map(|name| Key { resource, namespace, name })
    }

    /// Whether an object belongs to the collection or is the object.
    pub(crate) fn covers(&self, key: &Key) -> bool {
        self.resource == key.resource
            && self.namespace.as_ref().is_none_or(|namespace| *namespace == key.namespace)
            && self.name.as_ref().is_none_or(|name| *name == key.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        for (path, expected) in [
            ("/api/v1/nodes", [" v1 nodes", "", "", ""]),
            ("/api/v1/nodes/a", [" v1 nodes", "", "a", ""]),
            ("/api/v1/nodes/a/status", [" v1 nodes", "", "a", "status"]),
            ("/api/v1/namespaces", [" v1 namespaces", "", "", ""]),
            ("/api/v1/namespaces/x", [" v1 namespaces", "", "x", ""]),
            ("/api/v1/namespaces/x/status", [" v1 namespaces", "", "x", "status"]),
            ("/api/v1/namespaces/x/events", [" v1 events", "x", "", ""]),
            ("/apis/resource.k8s.io/v1/resourceslices/s", ["resource.k8s.io v1 resourceslices", "", "s", ""]),
            (
                "/apis/resource.k8s.io/v1/namespaces/x/resourceclaims/c/status",
                ["resource.k8s.io v1 resourceclaims", "x", "c", "status"],
            ),
        ] {
            let Target { resource, namespace, name, subresource } = Target::parse(path).unwrap();
            let resource = format!("{} {} {}", resource.group, resource.version, resource.plural);
            let rest = [namespace, name, subresource].map(Option::unwrap_or_default);
            assert_eq!([&resource, &rest[0], &rest[1], &rest[2]], expected, "{path}");
        }
        for path in ["/", "/api/v1", "/apis/x/v1", "/version", "/api/v1/nodes/", "/api/v1/a/b/c/d"] {
            assert!(Target::parse(path).is_err(), "{path}");
        }
    }
}
