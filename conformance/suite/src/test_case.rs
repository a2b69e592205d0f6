//! A test case: one check whether a plugin keeps a requirement.

use super::outcome::TestResult;
use super::plugin_under_test::{PluginUnderTest, Role};
use super::test_context::TestContext;

/// One test case and the plugins that it applies to.
#[derive(Debug, Clone, Copy)]
pub struct TestCase {
    /// The ID of the requirement that it checks.
    pub requirement: &'static str,
    /// Its name: lower-case words with hyphens, unique within the requirement.
    pub name: &'static str,
    /// The roles that it applies to.
    pub roles: &'static [Role],
    /// The names of the plugins that it applies to; all if empty.
    pub only: &'static [&'static str],
    /// Whether it applies only to plugins that delegate to an IPAM plugin.
    pub delegating: bool,
    /// Whether it runs with each version of the specification or only with the newest.
    pub each_version: bool,
    /// Whether it works without a node, and so without root.
    pub anywhere: bool,
    /// The check itself.
    pub run: fn(&TestContext<'_>) -> TestResult,
}

impl TestCase {
    /// A test case that runs on a node with the newest version.
    pub const fn new(
        requirement: &'static str,
        name: &'static str,
        roles: &'static [Role],
        run: fn(&TestContext<'_>) -> TestResult,
    ) -> TestCase {
        TestCase {
            requirement,
            name,
            roles,
            only: &[],
            delegating: false,
            each_version: false,
            anywhere: false,
            run,
        }
    }

    /// Applies only to plugins of these names.
    #[must_use]
    pub const fn only(mut self, names: &'static [&'static str]) -> TestCase {
        self.only = names;
        self
    }

    /// Applies only to plugins that delegate to an IPAM plugin.
    #[must_use]
    pub const fn delegating(mut self) -> TestCase {
        self.delegating = true;
        self
    }

    /// Runs with each version that the requirement, the plugin and the user's options allow.
    #[must_use]
    pub const fn each_version(mut self) -> TestCase {
        self.each_version = true;
        self
    }

    /// Needs neither a node nor root: a plugin that behaves correctly changes nothing.
    #[must_use]
    pub const fn anywhere(mut self) -> TestCase {
        self.anywhere = true;
        self
    }

    /// Whether it applies to this plugin.
    pub fn is_for(&self, plugin: &PluginUnderTest) -> bool {
        self.roles.contains(&plugin.role)
            && (self.only.is_empty() || self.only.contains(&plugin.name.as_str()))
            && (!self.delegating || plugin.delegates)
    }

    /// `REQUIREMENT/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.requirement, self.name)
    }
}
