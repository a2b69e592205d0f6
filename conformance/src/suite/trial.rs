//! A trial: one thing that is done to a plugin to see whether it keeps a requirement.

use super::lab::Lab;
use super::outcome::Trialled;
use super::subject::{Role, Subject};

/// What a plugin is put through.
#[derive(Debug, Clone, Copy)]
pub struct Trial {
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
    pub run: fn(&Lab<'_>) -> Trialled,
}

impl Trial {
    /// A trial with the newest version, on a node of its own.
    pub const fn new(
        requirement: &'static str,
        name: &'static str,
        roles: &'static [Role],
        run: fn(&Lab<'_>) -> Trialled,
    ) -> Trial {
        Trial {
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
    pub const fn only(mut self, names: &'static [&'static str]) -> Trial {
        self.only = names;
        self
    }

    /// Only for plugins that delegate to an IPAM plugin.
    #[must_use]
    pub const fn delegating(mut self) -> Trial {
        self.delegating = true;
        self
    }

    /// With each version that the requirement, the plugin and the user allow.
    #[must_use]
    pub const fn each_version(mut self) -> Trial {
        self.each_version = true;
        self
    }

    /// Needs neither a node nor root: the plugin changes nothing if it does what it should.
    #[must_use]
    pub const fn anywhere(mut self) -> Trial {
        self.anywhere = true;
        self
    }

    /// Whether it is for this plugin.
    pub fn is_for(&self, subject: &Subject) -> bool {
        self.roles.contains(&subject.role)
            && (self.only.is_empty() || self.only.contains(&subject.name.as_str()))
            && (!self.delegating || subject.delegates)
    }

    /// `REQUIREMENT/name`.
    pub fn id(&self) -> String {
        format!("{}/{}", self.requirement, self.name)
    }
}
