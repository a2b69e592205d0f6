//! The mark of a boot, for what a plugin leaves in the kernel. A ruleset that is saved as text and restored at boot keeps names,
//! comments and values of maps, but no other userdata. The mark proves there that a container has not outlived a boot.

use ferrule_kernel::sysctl;

use crate::hash::sha512;

/// A short hash of a boot's ID. 0 is no boot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BootMark(pub u32);

impl BootMark {
    /// The boot of this kernel; no boot if the kernel does not tell.
    pub fn current() -> BootMark {
        match sysctl::boot_id().as_str() {
            "" => BootMark::default(),
            id => BootMark::of_id(id),
        }
    }

    fn of_id(id: &str) -> BootMark {
        let [a, b, c, d, ..] = sha512(id);
        BootMark(u32::from_be_bytes([a, b, c, d]))
    }

    /// Whether the mark is of another boot than `current`. Containers with it are gone then. False if one of them is unknown.
    pub fn is_before(self, current: BootMark) -> bool {
        let none = BootMark::default();
        self != none && current != none && self != current
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_mark_of_another_boot_is_before() {
        let [one, two] = ["a", "b"].map(BootMark::of_id);
        assert_eq!(one, BootMark::of_id("a"));
        assert!(one.is_before(two) && two.is_before(one) && !one.is_before(one));
        let none = BootMark::default();
        assert!(!none.is_before(one) && !one.is_before(none));
        assert_ne!(BootMark::current(), none);
    }
}
