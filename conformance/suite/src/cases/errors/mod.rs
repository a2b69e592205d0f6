//! Test cases of exit status, output and error objects.

mod codes;
mod delegate;
mod output;
mod provoked;

use crate::plugin_under_test::{ANY, PLUGINS};
use crate::test_case::TestCase;

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("EXIT-01", "a-success-ends-with-0", PLUGINS, output::success_ends_with_zero).each_version(),
    TestCase::new("EXIT-01", "a-failure-ends-with-another-status", ANY, output::failure_does_not),
    TestCase::new("ERR-01", "a-failure-prints-an-error-object", ANY, output::error_objects).each_version(),
    TestCase::new("ERR-01", "a-crash-of-the-delegate", PLUGINS, delegate::crash).delegating(),
    TestCase::new("ERR-02", "the-keys-of-an-error-object", ANY, output::error_keys).each_version(),
    TestCase::new("ERR-03", "no-reserved-code", ANY, codes::known_codes).each_version(),
    TestCase::new("ERR-03", "no-reserved-code-when-the-delegate-dies", PLUGINS, delegate::code_of_a_crash)
        .delegating(),
    TestCase::new("ERR-04", "the-code-that-there-is", ANY, codes::fitting_codes).each_version(),
    TestCase::new("ERR-04", "an-input-that-cannot-be-read", ANY, codes::unreadable_input),
    TestCase::new("ERR-05", "a-field-that-is-not-supported", PLUGINS, codes::unsupported_field)
        .only(&["bridge"]),
    TestCase::new("ERR-07", "a-value-that-makes-no-sense", PLUGINS, codes::invalid_value).only(&[
        "bandwidth",
        "bridge",
        "host-local",
        "macvlan",
        "portmap",
    ]),
    TestCase::new("ERR-08", "one-document-of-a-failure", ANY, output::one_document_of_failure).each_version(),
    TestCase::new("ERR-08", "one-document-of-a-success", PLUGINS, output::one_document_of_success)
        .each_version(),
    TestCase::new("ERR-09", "an-error-at-add", PLUGINS, delegate::error_at_add).delegating().each_version(),
    TestCase::new("ERR-09", "an-error-at-check", PLUGINS, delegate::error_at_check).delegating(),
    TestCase::new("OUT-01", "add-prints-its-result", PLUGINS, output::result_of_add).each_version(),
    TestCase::new("OUT-02", "the-others-print-nothing", PLUGINS, output::silence).each_version(),
    TestCase::new("OUT-03", "no-logs-among-the-output", PLUGINS, output::no_logs),
    TestCase::new("OUT-03", "the-logs-of-a-delegate", PLUGINS, delegate::logs).delegating(),
    TestCase::new("LOG-02", "the-error-names-what-is-wrong", PLUGINS, output::telling),
    TestCase::new("LOG-02", "the-error-names-the-missing-delegate", PLUGINS, delegate::missing).delegating(),
];
