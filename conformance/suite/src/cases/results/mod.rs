//! Test cases of the layout, the content and the conversion of results.

mod content;
mod convert;
mod links;
mod rich;
mod routes;

use crate::plugin_under_test::{PLUGINS, Role, STATEFUL};
use crate::test_case::TestCase;

/// Roles of plugins whose results have interfaces.
const LINKS: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];
/// Roles of plugins that may make interfaces.
const INTERFACE_OR_CHAINED: &[Role] = &[Role::Interface, Role::Chained];
/// Roles of plugins that also work below 0.3.0, which has no chains.
const FIRST: &[Role] = &[Role::Loopback, Role::Interface, Role::Ipam];
const INTERFACE: &[Role] = &[Role::Interface];
const IPAM: &[Role] = &[Role::Ipam];
const CHAINED: &[Role] = &[Role::Chained];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("RES-01", "whatever-the-version-of-what-is-handed-in", PLUGINS, content::version)
        .each_version(),
    TestCase::new("RES-02", "an-address-and-one-of-each-family", FIRST, content::oldest).each_version(),
    TestCase::new("RES-02", "two-addresses-of-one-family", IPAM, content::two_addresses)
        .only(&["host-local"])
        .each_version(),
    TestCase::new("RES-02", "no-address-at-all", INTERFACE, content::no_address).delegating().each_version(),
    TestCase::new("RES-03", "each-address-says-its-family", PLUGINS, content::family).each_version(),
    TestCase::new("RES-04", "no-address-says-its-family", PLUGINS, content::no_family).each_version(),
    TestCase::new("RES-05", "addresses-with-prefix-and-host-part", PLUGINS, content::host_part)
        .each_version(),
    TestCase::new("RES-06", "indices-are-those-of-interfaces", LINKS, links::indices).each_version(),
    TestCase::new("RES-07", "each-address-is-on-the-interface-in-the-container", INTERFACE, links::owners)
        .each_version(),
    TestCase::new("RES-08", "each-interface-is-where-the-result-says", LINKS, links::places).each_version(),
    TestCase::new("RES-09", "hardware-addresses-are-the-kernels", LINKS, links::macs).each_version(),
    TestCase::new("RES-10", "every-new-link-is-listed", INTERFACE_OR_CHAINED, links::complete).each_version(),
    TestCase::new("RES-11", "routes-of-one-family-each", PLUGINS, routes::families).each_version(),
    TestCase::new("RES-12", "a-gateway-makes-no-default-route", INTERFACE, routes::gateway_only)
        .delegating()
        .each_version(),
    TestCase::new("RES-12", "a-gateway-is-no-route-of-the-result", IPAM, routes::gateway_of_ipam)
        .each_version(),
    TestCase::new("RES-13", "numbers-of-routes-are-handed-on", STATEFUL, routes::numbers),
    TestCase::new("RES-14", "an-mtu-that-is-given-is-the-kernels", LINKS, links::mtus),
    TestCase::new("RES-15", "later-fields-are-left-out", STATEFUL, routes::later_fields).each_version(),
    TestCase::new("RES-16", "empty-parts", PLUGINS, content::empty_parts).each_version(),
    TestCase::new("RES-17", "no-interfaces-of-an-ipam-plugin", IPAM, content::no_interfaces).each_version(),
    TestCase::new("RES-18", "addresses-and-dns-are-those-of-ipam", INTERFACE, content::as_ipam_said)
        .delegating()
        .each_version(),
    TestCase::new("CONV-01", "from-the-other-of-the-oldest", INTERFACE, convert::between_oldest)
        .delegating()
        .each_version(),
    TestCase::new("CONV-02", "from-the-oldest", INTERFACE, convert::from_oldest).delegating().each_version(),
    TestCase::new("CONV-03", "to-the-oldest", INTERFACE, convert::middle_to_oldest)
        .delegating()
        .each_version(),
    TestCase::new("CONV-03", "to-the-oldest-without-addresses", INTERFACE, convert::nothing_to_oldest)
        .delegating()
        .each_version(),
    TestCase::new("CONV-04", "between-0.3.0-and-0.4.0", INTERFACE, convert::from_middle)
        .delegating()
        .each_version(),
    TestCase::new("CONV-04", "a-previous-result-of-0.3.0-to-0.4.0", CHAINED, convert::previous)
        .each_version(),
    TestCase::new("CONV-05", "from-0.3.0-to-0.4.0", INTERFACE, convert::from_middle)
        .delegating()
        .each_version(),
    TestCase::new("CONV-06", "from-1.0.0-and-later", INTERFACE, convert::from_newest)
        .delegating()
        .each_version(),
    TestCase::new("CONV-07", "between-1.0.0-and-1.1.0", INTERFACE, convert::from_newest)
        .delegating()
        .each_version(),
    TestCase::new("CONV-07", "a-previous-result-of-1.0.0-and-later", CHAINED, convert::previous)
        .each_version(),
    TestCase::new("CONV-08", "from-1.0.0-and-later-to-the-oldest", INTERFACE, convert::newest_to_oldest)
        .delegating()
        .each_version(),
    TestCase::new(
        "CONV-09",
        "nothing-is-lost-without-conversion",
        INTERFACE_OR_CHAINED,
        convert::same_version,
    )
    .each_version(),
    TestCase::new("CONV-10", "an-ipv6-address-in-capitals", INTERFACE_OR_CHAINED, convert::canonical)
        .each_version(),
    TestCase::new("CONV-10", "an-ipv4-address-mapped-into-ipv6", INTERFACE_OR_CHAINED, convert::mapped)
        .each_version(),
    TestCase::new("CONV-11", "a-result-without-a-version", INTERFACE_OR_CHAINED, convert::without_version)
        .each_version(),
    TestCase::new("CONV-11", "a-previous-result-of-another-shape", CHAINED, convert::other_layout)
        .each_version(),
];
