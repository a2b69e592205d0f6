//! A DHCP server that people run.

use std::process::Command;

use crate::{Background, Place, TIMEOUT, eventually};

/// Where [`dnsmasq`] keeps its leases, one a line.
pub const DNSMASQ_LEASES: &str = "/run/dnsmasq.leases";

/// Starts dnsmasq as a DHCP server on one interface, with more options such as `--dhcp-range=...`. It runs until the handle
/// is dropped.
pub fn dnsmasq(place: &impl Place, interface: &str, options: &[&str]) -> Background {
    let mut command = Command::new("dnsmasq");
    command.args(["--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--no-ping"]);
    command.args(["--bind-interfaces", "--user=root", "--pid-file=/run/dnsmasq.pid", "--dhcp-authoritative"]);
    command.arg(format!("--interface={interface}")).arg(format!("--dhcp-leasefile={DNSMASQ_LEASES}"));
    command.args(options);
    let server = place.spawn(command).unwrap();
    let listens = || place.sh("ss -Hlun sport = :67").is_ok_and(|text| !text.trim().is_empty());
    assert!(eventually(TIMEOUT, listens), "dnsmasq does not start");
    server
}
