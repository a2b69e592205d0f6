//! A trial: one thing that is done to a plugin to see whether it keeps a requirement.

use super::outcome::TestResult;
use super::plugin_under_test::{PluginUnderTest, Role};
use super::test_context::TestContext;

/// What a plugin is put through.
#[derive(Debug, Clone, Copy)]
pub struct TestCase {
    /// The requirement that it shows.
    pub requirement: &'static str,
    /// Its own name, in words with hyphens; unique among those of the requirement.
    pub name: &'static str,
    /// The roles of the plugins it is for.
    pub roles: &'static [Role],
    /// Only for plugins of these names; all if empty.
    pub only: &'static [&'static str],
    /// Only for plugins that delegate to an IPAM plugin.
    pub delegating: bool,
    /// Whether it is made with each version of the specification, or with the newest only.
    pub each_version: bool,
    /// Whether it works without a node of its own, hence without root.
    pub anywhere: bool,
    /// Does it.
    pub run: fn(&TestContext<'_>) -> TestResult,
}

impl TestCase {
    /// A trial with the newest version, on a node of its own.
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

    /// Only for plugins of these names.
    #[must_use]
    pub const fn only(mut self, names: &'static [&'static str]) -> TestCase {
        self.only = names;
        self
    }

    /// Only for plugins that delegate to an IPAM plugin.
    #[must_use]
    pub const fn delegating(mut self) -> TestCase {
        self.delegating = true;
        self
    }

    /// With each version that the requirement, the plugin and the user allow.
    #[must_use]
    pub const fn each_version(mut self) -> TestCase {
        self.each_version = true;
        self
    }

    /// Needs neither a node nor root: the plugin changes nothing if it does what it should.
    #[must_use]
    pub const fn anywhere(mut self) -> TestCase {
        self.anywhere = true;
        self
    }

    /// Whether it is for this plugin.
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
