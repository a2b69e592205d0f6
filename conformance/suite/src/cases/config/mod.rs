//! Test cases of the configuration on standard input and the network's name.

mod forms;
mod meaning;

use serde_json::json;

use super::life::{add_check_del, calls};
use crate::call::Call;
use crate::outcome::TestResult;
use crate::plugin_under_test::{ANY, PLUGINS, Role};
use crate::test_case::TestCase;
use crate::test_context::TestContext;
use cni_runner::Version;

/// Roles of plugins that do not use the network's name in a path.
const NAMELESS: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];
const BAD_NAMES: [&str; 9] = ["-n", "_n", ".n", "n/x", "n x", "n:x", "../n", "ñ", "n\n"];
/// More than the capacity of a pipe.
const LONG_INPUT: usize = 100_000;

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("CFG-01", "in-two-writes", PLUGINS, two_writes),
    TestCase::new("CFG-01", "more-than-a-pipe-holds", PLUGINS, long_input),
    TestCase::new("CFG-02", "what-is-no-configuration", ANY, undecodable),
    TestCase::new("CFG-02", "another-type-of-version", ANY, undecodable_version),
    TestCase::new("CFG-03", "a-folder-as-standard-input", ANY, unreadable),
    TestCase::new("CFG-03", "no-standard-input", ANY, no_input),
    TestCase::new("CFG-04", "a-field-that-is-not-known", PLUGINS, unknown_field),
    TestCase::new("CFG-05", "arguments-that-are-not-known", PLUGINS, unknown_args),
    TestCase::new("CFG-06", "capabilities", PLUGINS, capabilities),
    TestCase::new("CFG-07", "reserved-keys", PLUGINS, reserved_keys),
    TestCase::new("CFG-08", "host-ports", PLUGINS, forms::case_of_host_ports).only(&["portmap"]),
    TestCase::new("CFG-08", "rates", PLUGINS, forms::case_of_rates).only(&["bandwidth"]),
    TestCase::new("CFG-08", "ranges", PLUGINS, forms::case_of_ranges).only(&["host-local"]),
    TestCase::new("CFG-09", "null-for-what-every-network-may-have", PLUGINS, forms::nulls),
    TestCase::new("CFG-09", "null-in-runtime-config", PLUGINS, forms::nulls_of_the_runtime),
    TestCase::new("CFG-09", "null-in-the-configuration-of-a-plugin", PLUGINS, forms::nulls_of_the_plugin)
        .only(&[
            "bandwidth",
            "bridge",
            "dummy",
            "host-local",
            "ipvlan",
            "macvlan",
            "portmap",
            "ptp",
            "tap",
            "vlan",
        ]),
    TestCase::new("CFG-10", "keys-in-reverse-order", PLUGINS, forms::reverse_order),
    TestCase::new("CFG-10", "every-character-escaped", PLUGINS, forms::escapes),
    TestCase::new("CFG-10", "much-white-space", PLUGINS, forms::white_space),
    TestCase::new("CFG-11", "a-burst-of-35-bits", PLUGINS, forms::large_burst).only(&["bandwidth"]),
    TestCase::new("CFG-12", "no-type", PLUGINS, no_type),
    TestCase::new("CFG-13", "masquerading-on-demand", PLUGINS, meaning::masquerading)
        .only(&["bridge", "ptp"]),
    TestCase::new("CFG-13", "addresses-of-the-ipam-plugin", PLUGINS, meaning::addresses).delegating(),
    TestCase::new("CFG-13", "name-servers", PLUGINS, meaning::name_servers)
        .only(&["bridge", "ipvlan", "macvlan", "ptp", "tap", "vlan"]),
    TestCase::new("CFG-14", "a-delegate-by-a-path", PLUGINS, meaning::delegate_by_path).delegating(),
    TestCase::new("CFG-15", "no-ipam-in-every-form", PLUGINS, meaning::no_ipam).delegating(),
    TestCase::new("CFG-16", "ranges", PLUGINS, forms::empty_in_ranges).only(&["host-local"]),
    TestCase::new("CFG-16", "host-addresses", PLUGINS, forms::empty_host_address).only(&["portmap"]),
    TestCase::new("CFG-17", "a-subnet", PLUGINS, forms::leading_zeros).only(&["host-local"]),
    TestCase::new("NET-01", "no-name", ANY, no_name).each_version(),
    TestCase::new("NET-01", "an-empty-name", ANY, empty_name).each_version(),
    TestCase::new("NET-01", "a-number-for-a-name", ANY, number_for_a_name),
    TestCase::new("NET-02", "every-valid-form", PLUGINS, good_names),
    TestCase::new("NET-02", "forms-that-are-not-valid", PLUGINS, bad_names).each_version(),
    TestCase::new("NET-03", "a-name-of-300-characters", NAMELESS, long_name),
];

fn two_writes(test: &TestContext<'_>) -> TestResult {
    let way = "{ dd bs=1 count=20 2>/dev/null; sleep 0.05; cat; } | @PLUGIN@";
    add_check_del(test, &test.target("pod1")?, |call| call.through_script(way)).map(drop)
}

fn long_input(test: &TestContext<'_>) -> TestResult {
    let life = add_check_del(test, &test.target("pod1")?, |call| {
        let bytes = [vec![b' '; LONG_INPUT], call.input()].concat();
        call.bytes(bytes)
    });
    life.map(drop)
}

fn undecodable(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let add = test.add(&target);
    let input = add.input();
    let with = |more: &[u8]| [input.as_slice(), more].concat();
    let cut = input.split_last().map(|(_, rest)| rest.to_vec()).unwrap_or_default();
    for bytes in [
        b"".to_vec(),
        b"{".to_vec(),
        b"[]".to_vec(),
        b"5".to_vec(),
        b"\"\"".to_vec(),
        cut,
        with(b"x"),
        with(&input),
    ] {
        add.clone().bytes(bytes).run()?.refused()?.code_in(&[6])?;
    }
    // `null` can be decoded, but has no name.
    add.bytes("null").run()?.refused()?.code_in(&[6, 7]).map(drop)
}

fn undecodable_version(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.add(&target).key("cniVersion", 1).run()?.refused()?.code_in(&[6]).map(drop)
}

fn unreadable(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    test.add(&target).through_script("exec @PLUGIN@ </").run()?.refused()?.code_in(&[5]).map(drop)
}

fn no_input(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    // Some language runtimes open /dev/null for a closed standard input; then the input is empty.
    test.add(&target).through_script("exec @PLUGIN@ <&-").run()?.refused()?.code_in(&[5, 6]).map(drop)
}

fn unknown_field(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).key("trialKey", "trialValue").run()?;
    if answer.output.success() {
        return Ok(());
    }
    answer.refused()?.code_in(&[2])?.mentions("trialKey")?.mentions("trialValue").map(drop)
}

fn unknown_args(test: &TestContext<'_>) -> TestResult {
    let args = json!({"labels": {"a": "b"}, "org.example": ["x", 7, null], "cni": {"trialKey": 1}});
    add_check_del(test, &test.target("pod1")?, |call| call.key("args", args.clone())).map(drop)
}

fn capabilities(test: &TestContext<'_>) -> TestResult {
    let declared = json!({
        "portMappings": true, "bandwidth": true, "ipRanges": true, "ips": true, "mac": true, "dns": true,
        "aliases": true, "deviceID": true, "infinibandGUID": true, "cgroupPath": true, "trialKey": true,
        "io.kubernetes.cri.pod-annotations": true, "denied": false});
    add_check_del(test, &test.target("pod1")?, |call| call.key("capabilities", declared.clone())).map(drop)
}

fn reserved_keys(test: &TestContext<'_>) -> TestResult {
    let life = add_check_del(test, &test.target("pod1")?, |call| {
        call.key("cni.dev/trial", json!({"a": [1]})).key("cni.dev/", true)
    });
    life.map(drop)
}

fn no_type(test: &TestContext<'_>) -> TestResult {
    let answer = test.add(&test.target("pod1")?).without_key("type").run()?;
    if answer.output.success() {
        answer.result().map(drop)
    } else {
        answer.refused()?.code_in(&[6, 7]).map(drop)
    }
}

/// Expects a call to fail; from 1.0.0 on, which defines the codes, with one of these codes.
fn refused_with(test: &TestContext<'_>, call: &Call<'_>, codes: &[u64]) -> TestResult {
    let refusal = call.run()?.refused()?;
    if test.version >= Version::V1_0_0 { refusal.code_in(codes).map(drop) } else { Ok(()) }
}

fn no_name(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    refused_with(test, &test.add(&target).without_key("name"), &[7])
}

fn empty_name(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    refused_with(test, &test.add(&target).key("name", ""), &[7])
}

fn number_for_a_name(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    refused_with(test, &test.add(&target).key("name", 7), &[6, 7])
}

fn good_names(test: &TestContext<'_>) -> TestResult {
    for (number, name) in ["n", "7", "N0", "n-a_m.e", "a..b"].iter().enumerate() {
        add_check_del(test, &test.target(&format!("pod{number}"))?, |call| call.key("name", *name))?;
    }
    Ok(())
}

fn bad_names(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for call in calls(test, &target, &result) {
        for name in BAD_NAMES {
            call.clone().key("name", name).run()?.refused()?;
        }
    }
    Ok(())
}

fn long_name(test: &TestContext<'_>) -> TestResult {
    let name = "n".repeat(300);
    add_check_del(test, &test.target("pod1")?, |call| call.key("name", name.as_str())).map(drop)
}
