//! Test cases of delegation and of IPAM plugins.

mod delegate;
mod failures;
mod host_local;
mod ipam;

use crate::cases::tools::released_without_namespace;
use crate::plugin_under_test::Role;
use crate::test_case::TestCase;

const INTERFACE: &[Role] = &[Role::Interface];
const IPAM: &[Role] = &[Role::Ipam];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("DLG-01", "the-first-folder-that-has-it-wins", INTERFACE, delegate::first_folder)
        .delegating(),
    TestCase::new("DLG-01", "a-folder-of-that-name-is-passed-over", INTERFACE, delegate::folder_of_that_name)
        .delegating(),
    TestCase::new("DLG-02", "the-environment-is-the-same", INTERFACE, delegate::environment).delegating(),
    TestCase::new("DLG-03", "the-configuration-is-complete", INTERFACE, delegate::configuration)
        .delegating()
        .each_version(),
    TestCase::new("DLG-04", "standard-error-is-passed-on", INTERFACE, delegate::standard_error).delegating(),
    TestCase::new("DLG-05", "every-verb-is-delegated", INTERFACE, delegate::verbs)
        .delegating()
        .each_version(),
    TestCase::new("DLG-05", "a-refused-check-is-an-error", INTERFACE, delegate::refused_check)
        .delegating()
        .each_version(),
    TestCase::new("DLG-05", "a-refused-del-is-an-error", INTERFACE, delegate::refused_del)
        .delegating()
        .each_version(),
    TestCase::new("DLG-05", "a-refused-gc-is-an-error", INTERFACE, delegate::refused_gc).delegating(),
    TestCase::new("DLG-06", "after-a-refused-add-comes-a-del", INTERFACE, failures::refused_add).delegating(),
    TestCase::new("DLG-07", "without-an-address-the-delegate-is-called-off", INTERFACE, failures::no_address)
        .delegating(),
    TestCase::new(
        "DLG-07",
        "an-impossible-route-calls-the-delegate-off",
        INTERFACE,
        failures::impossible_route,
    )
    .delegating(),
    TestCase::new("DLG-08", "a-result-without-a-version-is-accepted", INTERFACE, failures::no_version)
        .delegating()
        .each_version(),
    TestCase::new("DLG-08", "null-crashes-nothing", INTERFACE, failures::null).delegating().each_version(),
    TestCase::new("DLG-09", "a-dying-delegate-is-an-error", INTERFACE, failures::crash).delegating(),
    TestCase::new("DLG-09", "junk-is-an-error", INTERFACE, failures::junk).delegating(),
    TestCase::new("IPAM-01", "the-delegate-decides", INTERFACE, ipam::decides).delegating().each_version(),
    TestCase::new("IPAM-01", "a-slow-delegate-is-waited-for", INTERFACE, ipam::slow).delegating(),
    TestCase::new("IPAM-01", "there-is-an-address", IPAM, ipam::gives_address).each_version(),
    TestCase::new(
        "IPAM-01",
        "addresses-are-of-the-range-and-routes-as-configured",
        IPAM,
        host_local::from_the_range,
    )
    .only(&["host-local"])
    .each_version(),
    TestCase::new("IPAM-02", "there-are-no-interfaces", IPAM, ipam::no_interfaces).each_version(),
    TestCase::new("IPAM-03", "the-result-is-of-the-configurations-version", IPAM, ipam::right_version)
        .each_version(),
    TestCase::new("IPAM-03", "an-unknown-version-is-refused", IPAM, ipam::unknown_version),
    TestCase::new("IPAM-04", "at-the-same-time-all-addresses-differ", IPAM, ipam::all_differ),
    TestCase::new("IPAM-05", "del-releases-without-a-namespace", IPAM, released_without_namespace)
        .each_version(),
    TestCase::new("IPAM-05", "del-of-an-unknown-container-succeeds", IPAM, ipam::unknown_container)
        .each_version(),
    TestCase::new("IPAM-06", "only-what-matters-is-returned", INTERFACE, ipam::least).delegating(),
    TestCase::new("IPAM-07", "state-has-the-form-of-the-reference", IPAM, host_local::form)
        .only(&["host-local"]),
    TestCase::new("IPAM-07", "state-of-the-reference-is-understood", IPAM, host_local::understood)
        .only(&["host-local"]),
    TestCase::new("IPAM-07", "state-without-interface-names-is-understood", IPAM, host_local::legacy)
        .only(&["host-local"]),
];
