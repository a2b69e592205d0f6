//! The container's network namespace of one call.

use std::sync::OnceLock;

use crate::netns::Netns;

/// The namespace that the plugin of a call has opened. Delegates that are functions work in the same one, although its path may lead
/// elsewhere meanwhile. A copy of the [`Environment`](super::Environment), which may be of another container, has none.
#[derive(Debug, Default)]
pub struct Opened(OnceLock<(String, Netns)>);

impl Clone for Opened {
    fn clone(&self) -> Opened {
        Opened::default()
    }
}

impl Opened {
    /// The namespace, if it was opened by this path.
    pub(super) fn get(&self, path: &str) -> Option<Netns> {
        self.0.get().filter(|(opened, _)| opened == path).map(|(_, netns)| netns.clone())
    }

    /// Keeps the first one.
    pub(super) fn keep(&self, path: &str, netns: &Netns) {
        self.0.get_or_init(|| (path.to_owned(), netns.clone()));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_same_path_of_the_same_call_counts() {
        let opened = Opened::default();
        let netns = Netns::open("/proc/self/ns/net").unwrap();
        assert!(opened.get("/a").is_none());
        opened.keep("/a", &netns);
        assert_eq!(opened.get("/a").unwrap().identity().unwrap(), netns.identity().unwrap());
        assert!(opened.get("/b").is_none() && opened.clone().get("/a").is_none());
    }
}
