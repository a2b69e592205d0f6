//! Duplicate address detection (DAD) of IPv6: waits for its outcome.

use std::thread;
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Context};
use ferrule_kernel::netlink::addr::{Address, DAD_FAILED, TENTATIVE};
use ferrule_kernel::netlink::{Link, Socket};
use ferrule_kernel::observer;
use ipnetwork::IpNetwork;

/// How long the kernel may take: one probe after a random delay of up to one second, and one second for an
/// answer. The reference waits as long.
const TIMEOUT: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);

/// What duplicate address detection does with new IPv6 addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Dad {
    /// The addresses can be used at once.
    #[default]
    Off,
    /// ADD does not wait for the outcome.
    NoWait,
    /// ADD waits, and fails if another host has one of the addresses.
    Wait,
}

impl Dad {
    /// The value of the key `dad`. An empty text means `wait`.
    ///
    /// # Errors
    /// Code 7 if it is another one.
    pub fn parse(text: &str) -> Result<Dad, CniError> {
        match text {
            "" | "wait" => Ok(Dad::Wait),
            "nowait" => Ok(Dad::NoWait),
            "off" => Ok(Dad::Off),
            other => Err(CniError::invalid_config(format!("unknown dad: {other:?}"))
                .with_details("wait, nowait and off are known")),
        }
    }
}

/// What DAD says about an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Unique,
    Duplicate,
    Pending,
}

fn state(address: &Address) -> State {
    match address.flags {
        flags if flags & DAD_FAILED != 0 => State::Duplicate,
        flags if flags & TENTATIVE != 0 => State::Pending,
        _ => State::Unique,
    }
}

/// Waits until the kernel has found that no other host on the network has one of these addresses.
///
/// # Errors
/// Another host has one of the addresses, or DAD has not ended after 5 s.
pub fn wait(socket: &mut Socket, link: &Link, addresses: &[IpNetwork]) -> Result<(), CniError> {
    let name = &link.name;
    let end = Instant::now() + TIMEOUT;
    while addresses.iter().any(IpNetwork::is_ipv6) {
        let present = socket.addresses(link.index).context(|| format!("list the addresses of {name:?}"))?;
        let own: Vec<&Address> =
            present.iter().filter(|present| addresses.contains(&present.network)).collect();
        if let Some(duplicate) = own.iter().find(|address| state(address) == State::Duplicate) {
            return Err(duplicate_of(name, duplicate.network));
        }
        let Some(pending) = own.iter().find(|address| state(address) == State::Pending) else { break };
        if Instant::now() >= end {
            let msg = format!(
                "duplicate address detection of {} on {name:?} has not ended after {} s",
                pending.network,
                TIMEOUT.as_secs()
            );
            return Err(CniError::internal(msg));
        }
        observer::step("wait for duplicate address detection", || thread::sleep(PAUSE));
    }
    Ok(())
}

/// The error for an address that another host has.
pub(crate) fn duplicate_of(ifname: &str, address: IpNetwork) -> CniError {
    CniError::internal(format!("duplicate address detection of {ifname:?}: another host has {address}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_address_stays_tentative() {
        let with = |flags| state(&Address { network: "fd00::2/64".parse().unwrap(), flags, scope: 0 });
        assert_eq!(with(DAD_FAILED | TENTATIVE), State::Duplicate);
        assert_eq!(with(TENTATIVE), State::Pending);
        assert_eq!(with(0x80), State::Unique);
    }
}
