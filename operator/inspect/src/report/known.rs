//! Names that several parts print.

use super::mask::names::Class;
use crate::cache::{Cache, Entry};
use crate::sight;

/// The names of this node, which each part may print.
pub(super) fn host() -> (Class, String) {
    (Class::Node, sight::host_name())
}

/// The names in the cached results. Each part that may print one learns them itself: another part may not end in time.
pub(super) fn names_of(cache: &Cache) -> Vec<(Class, String)> {
    let mut names = Vec::new();
    let mut add = |class, name: &str| names.push((class, name.to_owned()));
    for Entry { owner, pod, netns, sent, .. } in &cache.entries {
        owner.container.iter().for_each(|name| add(Class::Container, name));
        owner.network.iter().for_each(|name| add(Class::Network, name));
        let pod = pod.as_deref().unwrap_or_default();
        let (namespace, pod) = pod.split_once('/').unwrap_or(("", pod));
        add(Class::Namespace, namespace);
        add(Class::Pod, pod);
        if !netns.starts_with("/proc/") {
            add(Class::Netns, netns.rsplit('/').next().unwrap_or_default());
        }
        for (key, value) in &sent.cni_args {
            let class = match key.as_str() {
                "K8S_POD_UID" => Class::Uid,
                "K8S_POD_INFRA_CONTAINER_ID" => Class::Container,
                _ => continue,
            };
            add(class, value);
        }
    }
    names.retain(|(_, name)| !name.is_empty());
    names
}
