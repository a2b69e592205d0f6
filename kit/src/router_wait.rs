//! The key `waitForRA`: ADD waits for an address that a router advertises (SLAAC, RFC 4862), and reports it.
//!
//! The kernel makes the address, and removes it when its lifetime ends. What the advertisements say is foreign: at most `MOST`
//! addresses are reported, and none that is deprecated or that another host has.

use std::thread;
use std::time::{Duration, Instant};

use cni_common::spec::{CniError, Code, Context as _, IpConfig};
use ferrule_kernel::netlink::addr::{Address, DAD_FAILED, DEPRECATED, PERMANENT, TEMPORARY, TENTATIVE};
use ferrule_kernel::netlink::link::OPER_UP;
use ferrule_kernel::netlink::{Link, LinkId, Socket};
use ferrule_kernel::observer;
use ipnetwork::IpNetwork;

/// The range of the key in seconds. Runtimes give an ADD minutes.
const LIMITS: std::ops::RangeInclusive<i64> = 1..=60;
/// The length of the prefixes that the kernel makes addresses from.
const PREFIX: u8 = 64;
/// As many as the kernel makes by default (`max_addresses`).
const MOST: usize = 16;
const PAUSE: Duration = Duration::from_millis(10);

/// The value of the key.
///
/// # Errors
/// Code 7 if it is out of range.
pub fn limit(seconds: Option<i64>) -> Result<Option<Duration>, CniError> {
    let Some(seconds) = seconds else { return Ok(None) };
    let limit = u64::try_from(seconds).ok().filter(|_| LIMITS.contains(&seconds)).map(Duration::from_secs);
    limit.map(Some).ok_or_else(|| {
        let (min, max) = (LIMITS.start(), LIMITS.end());
        CniError::invalid_config(format!(
            "invalid waitForRA {seconds} (must be between {min} and {max} seconds)"
        ))
    })
}

/// An error if a link of this kind, on which no router can be, shall wait for one.
///
/// # Errors
/// Code 7.
pub fn refuse(wait: Option<Duration>, what: &str) -> Result<(), CniError> {
    let error = || CniError::invalid_config(format!("waitForRA: {what} hears no router"));
    wait.map_or(Ok(()), |_| Err(error()))
}

/// Whether an address in the result may be a router's: IPAM plugins give addresses with a gateway, or with another prefix length.
pub fn may_be_of_router(ip: &IpConfig) -> bool {
    ip.gateway.is_none() && ip.address.is_ipv6() && ip.address.prefix() == PREFIX
}

/// Waits until the link has addresses from a router that can be used. `assigned` are those that ADD has given it.
///
/// # Errors
/// Code 11 if it has none at the end of the limit.
pub fn wait(
    socket: &mut Socket,
    link: &Link,
    limit: Duration,
    assigned: &[IpNetwork],
) -> Result<Vec<IpNetwork>, CniError> {
    let (end, mut found) = (Instant::now() + limit, Vec::new());
    loop {
        let present =
            socket.addresses(link.index).context(|| format!("list the addresses of {:?}", link.name))?;
        let before = std::mem::replace(&mut found, of_router(&present, assigned));
        let is_over = Instant::now() >= end;
        // The kernel makes the addresses of one advertisement one after the other.
        if !found.is_empty() && (is_over || found == before) {
            return Ok(found);
        }
        if is_over {
            let now = socket.link(LinkId::Index(link.index));
            let has_carrier = !matches!(now, Ok(Some(link)) if link.operstate != OPER_UP);
            return Err(late(&link.name, limit, has_carrier, &present));
        }
        observer::step("wait for a router advertisement", || thread::sleep(PAUSE));
    }
}

/// The addresses that a router has given and that can be used.
fn of_router(present: &[Address], assigned: &[IpNetwork]) -> Vec<IpNetwork> {
    const UNUSABLE: u32 = PERMANENT | TENTATIVE | DAD_FAILED | DEPRECATED | TEMPORARY;
    let is_meant = |address: &&Address| {
        let IpNetwork::V6(v6) = address.network else { return false };
        let has_prefix = v6.network().to_bits() != 0 && v6.prefix() == PREFIX;
        address.scope == 0
            && address.flags & UNUSABLE == 0
            && has_prefix
            && !assigned.contains(&address.network)
    };
    let mut found: Vec<IpNetwork> = present.iter().filter(is_meant).map(|address| address.network).collect();
    found.sort();
    found.truncate(MOST);
    found
}

fn late(ifname: &str, limit: Duration, has_carrier: bool, present: &[Address]) -> CniError {
    let msg = format!("waitForRA: no router has given {ifname:?} an address within {} s", limit.as_secs());
    let error = CniError::new(Code::TryAgainLater, msg);
    let states =
        [(TENTATIVE, " (tentative)"), (DAD_FAILED, " (another host has it)"), (DEPRECATED, " (deprecated)")];
    let describe = |address: &Address| {
        let notes = states.iter().filter(|(flag, _)| address.flags & flag != 0).map(|(_, note)| *note);
        format!("{}{}", address.network, notes.collect::<String>())
    };
    let v6 = present.iter().filter(|address| address.network.is_ipv6()).take(MOST);
    let addresses: Vec<String> = v6.map(describe).collect();
    let addresses = if addresses.is_empty() { "none".to_owned() } else { addresses.join(", ") };
    let carrier = if has_carrier { "" } else { "the link has no carrier; " };
    error.with_details(format!("{carrier}its IPv6 addresses: {addresses}")).with_remedy(
        "let a router of this network advertise a prefix of 64 bits for autonomous configuration, or raise waitForRA",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str, flags: u32) -> Address {
        let network: IpNetwork = text.parse().unwrap();
        let is_local = matches!(network, IpNetwork::V6(v6) if v6.ip().is_unicast_link_local());
        Address { network, flags, scope: if is_local { 253 } else { 0 } }
    }

    #[test]
    fn only_usable_addresses_of_routers_are_reported() {
        let present = [
            address("10.1.2.3/24", 0),
            address("fe80::1/64", 0),
            address("2001:db8:2::1/64", 0),
            address("2001:db8:1::1/64", 0x100),
            address("2001:db8:1::2/64", TEMPORARY),
            address("2001:db8:1::3/64", PERMANENT),
            address("2001:db8:1::4/64", TENTATIVE),
            address("2001:db8:1::5/64", TENTATIVE | DAD_FAILED),
            address("2001:db8:1::6/64", DEPRECATED),
            address("2001:db8:1::7/128", 0),
            address("2001:db8:1::8/64", 0),
            address("::9/64", 0),
        ];
        let assigned = ["2001:db8:1::8/64".parse().unwrap()];
        let texts: Vec<String> = of_router(&present, &assigned).iter().map(ToString::to_string).collect();
        assert_eq!(texts, ["2001:db8:1::1/64", "2001:db8:2::1/64"]);
        let many: Vec<Address> = (1..=99).map(|n| address(&format!("2001:db8:{n}::1/64"), 0)).collect();
        assert_eq!(of_router(&many, &[]).len(), MOST);
        let error = late("eth0", Duration::from_secs(7), false, &present);
        assert_eq!(error.code, Code::TryAgainLater);
        assert_eq!(error.msg, "waitForRA: no router has given \"eth0\" an address within 7 s");
        for part in
            ["no carrier; ", "2001:db8:1::5/64 (tentative) (another host has it)", "::6/64 (deprecated)"]
        {
            assert!(error.details.contains(part), "{}", error.details);
        }
    }

    #[test]
    fn limits() {
        assert_eq!(limit(None).unwrap(), None);
        assert_eq!(limit(Some(60)).unwrap(), Some(Duration::from_secs(60)));
        for seconds in [0, -1, 61, i64::MAX] {
            let error = limit(Some(seconds)).unwrap_err();
            let msg = format!("invalid waitForRA {seconds} (must be between 1 and 60 seconds)");
            assert_eq!((error.code, error.msg), (Code::InvalidConfig, msg));
        }
        assert!(refuse(None, "x").is_ok() && refuse(Some(PAUSE), "x").is_err());
    }

    #[test]
    fn addresses_of_ipam_have_a_gateway_or_another_length() {
        let ip = |address: &str, gateway: Option<&str>| {
            let gateway = gateway.map(|gateway| gateway.parse().unwrap());
            may_be_of_router(&IpConfig { address: address.parse().unwrap(), gateway, interface: None })
        };
        assert!(ip("2001:db8::1/64", None));
        assert!(
            !ip("2001:db8::1/64", Some("2001:db8::2"))
                && !ip("2001:db8::1/128", None)
                && !ip("10.0.0.1/24", None)
        );
    }
}
