//! The firewalld backend: each address of a container becomes a source of a zone, at run time only.

pub mod dbus;

use std::fs;
use std::io::ErrorKind;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt as _;

use cni_common::remark;
use cni_common::spec::{CniError, Code};

use self::dbus::{Bus, Error, Method, is_true};
use crate::plan::single;

const SERVICE: &str = "org.fedoraproject.FirewallD1";
const PATH: &str = "/org/fedoraproject/FirewallD1";
const ZONE: &str = "org.fedoraproject.FirewallD1.zone";
const BUS: Method<'_> = Method {
    service: "org.freedesktop.DBus",
    path: "/org/freedesktop/DBus",
    interface: "org.freedesktop.DBus",
    name: "NameHasOwner",
};

/// A connection to firewalld.
pub struct Firewalld(Bus);

/// Whether this process may use firewalld: root of the initial user namespace. In another one, the bus of the machine may be
/// visible, but firewalld refuses its calls.
fn is_allowed() -> bool {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    is_root && map.split_whitespace().eq(["0", "0", "4294967295"])
}

impl Firewalld {
    /// Connects to the system bus.
    ///
    /// # Errors
    /// Code 11 if the bus does not answer in time, otherwise 999.
    pub fn connect() -> Result<Self, CniError> {
        if !is_allowed() {
            return Err(CniError::internal("backend firewalld needs root in the initial user namespace"));
        }
        Bus::connect().map(Firewalld).map_err(|error| described("firewalld", &error))
    }

    /// firewalld, if it runs and this process may use it.
    pub fn find() -> Option<Self> {
        if !is_allowed() {
            return None;
        }
        let found = Bus::connect()
            .and_then(|mut bus| Ok(is_true(&bus.call(BUS, &[SERVICE])?).then_some(Firewalld(bus))));
        found.unwrap_or_else(|error| {
            if !matches!(&error, Error::Io(error) if error.kind() == ErrorKind::NotFound) {
                remark!("cannot tell whether firewalld runs: {error}");
            }
            None
        })
    }

    /// Whether firewalld runs.
    pub fn is_running(&mut self) -> bool {
        self.0.call(BUS, &[SERVICE]).is_ok_and(|answer| is_true(&answer))
    }

    fn call(&mut self, name: &str, zone: &str, address: IpAddr) -> Result<Vec<u8>, Error> {
        self.0.call(Method { service: SERVICE, path: PATH, interface: ZONE, name }, &[zone, &single(address)])
    }

    /// Makes the address a source of the zone. It may be one already.
    ///
    /// # Errors
    /// Code 11 if firewalld does not answer in time, otherwise 999 with its words.
    pub fn add(&mut self, zone: &str, address: IpAddr) -> Result<(), CniError> {
        match self.call("addSource", zone, address) {
            Err(Error::Refused(why)) if why.contains("ZONE_ALREADY_SET") => Ok(()),
            Err(error) => {
                let step = format!("failed to add the address {} to {zone} zone", single(address));
                Err(described(&step, &error))
            }
            Ok(_) => Ok(()),
        }
    }

    /// Removes the source from the zone. A failure is only logged: DEL must not fail because of firewalld.
    pub fn remove(&mut self, zone: &str, address: IpAddr) {
        match self.call("removeSource", zone, address) {
            Ok(_) => {}
            Err(Error::Refused(why)) if why.contains("UNKNOWN_SOURCE") || why.contains("ZONE_CONFLICT") => {}
            Err(error) => {
                remark!("failed to remove the address {} from {zone} zone: {error}", single(address))
            }
        }
    }

    /// Checks that the address is a source of the zone.
    ///
    /// # Errors
    /// Code 999 if it is not.
    pub fn check(&mut self, zone: &str, address: IpAddr) -> Result<(), CniError> {
        let missing = format!("failed to find the address {} in {zone} zone", single(address));
        match self.call("querySource", zone, address) {
            Ok(answer) if is_true(&answer) => Ok(()),
            Ok(_) => Err(CniError::internal(missing)),
            Err(error) => Err(described(&missing, &error)),
        }
    }
}

fn described(step: &str, error: &Error) -> CniError {
    let is_late = matches!(error, Error::Io(error) if error.kind() == ErrorKind::TimedOut);
    CniError::new(if is_late { Code::TryAgainLater } else { Code::Internal }, format!("{step}: {error}"))
}
