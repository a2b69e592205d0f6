//! Random MAC addresses.

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::Mac;

/// A random locally administered unicast address.
///
/// # Errors
/// The kernel returned no random bytes.
pub fn random() -> Result<Mac, CniError> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).context(|| "get random bytes for a MAC address")?;
    Ok(Mac::local(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_macs_are_local_and_differ() {
        let (a, b) = (random().unwrap(), random().unwrap());
        assert_ne!(a, b);
        assert!(a.is_unicast() && a.0[0] & 2 == 2);
    }
}
