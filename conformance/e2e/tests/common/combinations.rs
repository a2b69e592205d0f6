//! Ferrule's and the reference's programs in one chain.

use cni_lab::testing::{Origin, PluginDir, Random};
use cni_lab::{Node, NodeRuntime};

/// All combinations of origins of a network's plugins. The first plugin makes the interface.
pub(crate) struct Combinations(Vec<(Origin, String, PluginDir)>);

impl Combinations {
    /// The plugins of a chain, the main plugin first.
    pub(crate) fn new(names: &[&str]) -> Combinations {
        let folders = (0..1 << names.len()).map(|number: u32| {
            let origin = |position: usize| match number >> position & 1 {
                0 => Origin::Ours,
                _ => Origin::Reference,
            };
            let mut plugins = PluginDir::installed(origin(0), names[0]);
            let mut who = format!("{:?} {}", origin(0), names[0]);
            for (position, name) in names.iter().enumerate().skip(1) {
                plugins = plugins.with(origin(position), &[name]);
                who.push_str(&format!(", {:?} {name}", origin(position)));
            }
            (origin(0), who, plugins)
        });
        Combinations(folders.collect())
    }

    /// A runtime with each of the combinations.
    #[allow(dead_code)] // the soak uses it
    pub(crate) fn all<'n>(&self, node: &'n Node) -> Vec<NodeRuntime<'n>> {
        self.0.iter().map(|(_, _, plugins)| node.runtime([plugins.path()])).collect()
    }

    /// A runtime with one of the combinations, whose main plugin it is, and the combination in words.
    pub(crate) fn pick<'n>(&self, node: &'n Node, random: &mut Random) -> (Origin, &str, NodeRuntime<'n>) {
        let (main, who, plugins) = &self.0[random.below(self.0.len())];
        (*main, who, node.runtime([plugins.path()]))
    }
}
