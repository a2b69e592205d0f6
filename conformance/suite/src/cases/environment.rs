//! Test cases of the environment variables of a call.

use serde_json::{Value, json};

use super::life::{add_check_del, calls, checked};
use crate::call::{Answer, Call};
use crate::outcome::{TestResult, ensure, mismatch, same, skip};
use crate::plugin_under_test::{ANY, PLUGINS, Role};
use crate::stub::Reply;
use crate::test_case::TestCase;
use crate::test_context::TestContext;
use cni_lab::Place as _;
use cni_runner::Version;

/// The variables that name an attachment.
const ATTACHMENT: [&str; 3] = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
/// Roles of plugins that can work in any namespace, including the one they were started in.
const ANYWHERE: &[Role] = &[Role::Loopback, Role::Ipam];

/// In the order of the requirements.
pub(super) const CASES: &[TestCase] = &[
    TestCase::new("ENV-01", "version-without-arguments", ANY, version).anywhere(),
    TestCase::new("ENV-01", "an-attachment-without-arguments", PLUGINS, attachment).each_version(),
    TestCase::new("ENV-02", "each-operation-is-known", PLUGINS, operations).each_version(),
    TestCase::new("ENV-02", "no-other-spelling-of-version", ANY, spelling_of_version).anywhere(),
    TestCase::new("ENV-02", "no-other-spelling-at-an-attachment", PLUGINS, spelling),
    TestCase::new("ENV-03", "an-unknown-operation", ANY, unknown_operation).each_version().anywhere(),
    TestCase::new("ENV-04", "no-result-without-a-command", ANY, no_command).anywhere(),
    TestCase::new("ENV-04", "no-change-without-a-command", PLUGINS, no_command_no_change),
    TestCase::new("ENV-04a", "the-version-on-standard-error", ANY, version_line)
        .only(&["firewall"])
        .anywhere(),
    TestCase::new("ENV-05", "each-variable-missing-in-turn", PLUGINS, add_needs),
    TestCase::new("ENV-05", "no-arguments-are-needed", PLUGINS, add_without_arguments).each_version(),
    TestCase::new("ENV-06", "each-variable-missing-in-turn", PLUGINS, del_needs),
    TestCase::new("ENV-06", "neither-namespace-nor-arguments-are-needed", PLUGINS, del_needs_less)
        .each_version(),
    TestCase::new("ENV-07", "each-variable-missing-in-turn", PLUGINS, check_needs).each_version(),
    TestCase::new("ENV-08", "no-attachment-is-named", PLUGINS, gc),
    TestCase::new("ENV-09", "no-attachment-is-named", PLUGINS, status),
    TestCase::new("ENV-09", "no-search-path-is-needed", PLUGINS, status_without_path),
    TestCase::new("ENV-10", "nothing-but-the-command", ANY, version_alone).each_version().anywhere(),
    TestCase::new("ENV-11", "no-search-path", PLUGINS, no_path),
    TestCase::new("ENV-12", "every-missing-variable", PLUGINS, missing_are_named),
    TestCase::new("ENV-12", "a-variable-that-is-not-valid", PLUGINS, invalid_are_named),
    TestCase::new("ENV-12", "an-unknown-operation", ANY, unknown_operation_is_named).anywhere(),
    TestCase::new("ENV-13", "an-empty-namespace-at-del", PLUGINS, empty_at_del).each_version(),
    TestCase::new("ENV-13", "each-variable-empty-in-turn", PLUGINS, empty_at_add),
    TestCase::new("ENV-14", "junk-at-version", ANY, junk_at_version).each_version().anywhere(),
    TestCase::new("ENV-15", "junk-where-no-attachment-is-meant", PLUGINS, junk),
    TestCase::new("ENV-17", "another-version-in-the-environment", PLUGINS, version_variable),
    TestCase::new("ENV-18", "many-other-variables", PLUGINS, other_variables),
    TestCase::new("ENV-18", "the-root-as-working-folder", PLUGINS, root_folder),
    TestCase::new("ENV-18", "a-working-folder-that-is-gone", PLUGINS, gone_folder),
    TestCase::new("ENV-18", "a-minimal-search-path", PLUGINS, minimal_path),
    TestCase::new("ENV-19", "the-own-namespace-on-demand", ANYWHERE, netns_override),
    TestCase::new("ENV-20", "several-faults-at-once", ANY, error_order),
    TestCase::new("ENV-21", "delegates-run-where-the-plugin-was-started", PLUGINS, namespace_of_delegates)
        .delegating(),
];

fn version(test: &TestContext<'_>) -> TestResult {
    lists_versions(&test.call("VERSION").run()?)
}

/// Expects an answer to VERSION.
fn lists_versions(answer: &Answer) -> TestResult {
    let lists = answer.result()?["supportedVersions"].as_array().is_some_and(|list| !list.is_empty());
    answer.ensure(lists, "a non-empty list `supportedVersions`", answer.shown())
}

fn attachment(test: &TestContext<'_>) -> TestResult {
    add_check_del(test, &test.target("pod1")?, |call| call).map(drop)
}

fn operations(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    if test.version >= Version::V0_2_0 {
        lists_versions(&test.call("VERSION").run()?)?;
    }
    if test.version >= Version::V0_4_0 {
        is_known(&test.check(&target, &result).run()?)?;
    }
    if test.version >= Version::V1_1_0 {
        is_known(&test.call("STATUS").run()?)?;
        let here = json!([{"containerID": target.container_id, "ifname": target.ifname}]);
        test.call("GC")
            .key("cni.dev/valid-attachments", here.clone())
            .key("cni.dev/attachments", here)
            .run()?
            .ok()?;
    }
    test.detached(&target, &result).map(drop)
}

/// Expects success or an error other than code 4, which means an unknown operation.
fn is_known(answer: &Answer) -> TestResult {
    if answer.output.success() {
        return Ok(());
    }
    let refusal = answer.refused()?;
    answer.ensure(refusal.code != 4, "a known operation", refusal.text())
}

fn spelling_of_version(test: &TestContext<'_>) -> TestResult {
    for spelling in ["version", "Version", "VERSION ", " VERSION"] {
        test.call(spelling).run()?.refused()?;
    }
    Ok(())
}

fn spelling(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let before = test.snapshot()?;
    for spelling in ["add", "Add", "ADD ", "ADD\n"] {
        test.add(&target).var("CNI_COMMAND", spelling).run()?.refused()?;
    }
    let changes = test.changes_since(&before)?;
    ensure(changes.is_empty(), "no change on the node", changes)?;
    let result = test.attached(&target)?;
    test.del(&target, Some(&result)).var("CNI_COMMAND", "del").run()?.refused()?;
    if test.version >= Version::V0_4_0 {
        test.check(&target, &result).var("CNI_COMMAND", "Check").run()?.refused()?;
    }
    Ok(())
}

fn unknown_operation(test: &TestContext<'_>) -> TestResult {
    for command in ["FOO", "UPDATE", "ADD,DEL"] {
        unknown(test, command).run()?.refused()?.code_in(&[4])?;
    }
    Ok(())
}

/// An otherwise valid call with an unknown command.
fn unknown<'l>(test: &'l TestContext<'_>, command: &str) -> Call<'l> {
    let call = test.call(command).var("CNI_CONTAINERID", "pod1").var("CNI_IFNAME", "eth0");
    call.var("CNI_NETNS", "/run/netns/pod1")
}

/// Expects an error, or success with nothing on standard output; standard error may have any text.
fn no_operation(answer: &Answer) -> TestResult {
    if answer.output.success() { answer.silent() } else { answer.refused().map(drop) }
}

fn no_command(test: &TestContext<'_>) -> TestResult {
    no_operation(&test.call("").unset("CNI_COMMAND").run()?)?;
    no_operation(&test.call("").run()?)
}

fn no_command_no_change(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let before = test.snapshot()?;
    let absent = test.add(&target).unset("CNI_COMMAND").run()?;
    no_operation(&absent)?;
    let empty = test.add(&target).var("CNI_COMMAND", "").run()?;
    no_operation(&empty)?;
    test.unchanged_since(&before, &empty)
}

fn version_line(test: &TestContext<'_>) -> TestResult {
    let answer = test.call("").unset("CNI_COMMAND").run()?;
    answer.ok()?;
    let text = answer.output.stderr_text();
    let version =
        text.lines().find_map(|line| line.strip_prefix("CNI firewall plugin v")).unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = version.split(['-', '+']).next().unwrap_or_default().split('.');
    let is_version = numbers.clone().count() == 3 && numbers.clone().all(is_number);
    answer.ensure(is_version, "a line `CNI firewall plugin v<version>` on standard error", answer.shown())
}

/// Expects an error with code 4, which the specification defines from 1.0.0 on; before that any error.
fn refused_for_environment(test: &TestContext<'_>, call: &Call<'_>) -> TestResult {
    let refusal = call.run()?.refused()?;
    if test.version >= Version::V1_0_0 { refusal.code_in(&[4]).map(drop) } else { Ok(()) }
}

fn add_needs(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for variable in ATTACHMENT {
        refused_for_environment(test, &test.add(&target).unset(variable))?;
    }
    Ok(())
}

fn add_without_arguments(test: &TestContext<'_>) -> TestResult {
    test.add(&test.target("pod1")?).unset("CNI_ARGS").run()?.ok()
}

fn del_needs(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        refused_for_environment(test, &test.del(&target, Some(&result)).unset(variable))?;
    }
    Ok(())
}

fn del_needs_less(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.del(&target, Some(&result)).unset("CNI_NETNS").unset("CNI_ARGS").run()?.ok()
}

fn check_needs(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    for variable in ATTACHMENT {
        refused_for_environment(test, &test.check(&target, &result).unset(variable))?;
    }
    checked(test, &target, &result, |call| call.unset("CNI_ARGS"))
}

/// Two variants of a call without an attachment: with the variables absent, and empty as from libcni.
fn without_attachment<'c>(call: &Call<'c>) -> [Call<'c>; 2] {
    let (mut absent, mut empty) = (call.clone(), call.clone());
    for variable in ATTACHMENT {
        (absent, empty) = (absent.unset(variable), empty.var(variable, ""));
    }
    [absent.unset("CNI_ARGS"), empty.var("CNI_ARGS", "")]
}

/// GC of a network without attachments.
fn collection<'l>(test: &'l TestContext<'_>) -> Call<'l> {
    test.call("GC").key("cni.dev/valid-attachments", json!([])).key("cni.dev/attachments", json!([]))
}

fn gc(test: &TestContext<'_>) -> TestResult {
    without_attachment(&collection(test)).iter().try_for_each(|call| call.run()?.silent())
}

fn status(test: &TestContext<'_>) -> TestResult {
    without_attachment(&test.call("STATUS")).iter().try_for_each(|call| call.run()?.silent())
}

fn status_without_path(test: &TestContext<'_>) -> TestResult {
    if test.plugin.delegates {
        return skip("the plugin needs CNI_PATH to find its IPAM plugin");
    }
    let [call, _] = without_attachment(&test.call("STATUS").unset("CNI_PATH"));
    call.run()?.silent()
}

fn version_alone(test: &TestContext<'_>) -> TestResult {
    let [call, _] = without_attachment(&test.call("VERSION").unset("CNI_PATH"));
    lists_versions(&call.run()?)
}

fn no_path(test: &TestContext<'_>) -> TestResult {
    if test.plugin.delegates {
        return skip("the plugin needs CNI_PATH to find its IPAM plugin");
    }
    add_check_del(test, &test.target("pod1")?, |call| call.unset("CNI_PATH"))?;
    if test.version >= Version::V1_1_0 { test.call("STATUS").unset("CNI_PATH").run()?.ok() } else { Ok(()) }
}

fn missing_are_named(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let mut call = test.add(&target);
    for variable in ATTACHMENT {
        call = call.unset(variable);
    }
    let mut refusal = call.run()?.refused()?.code_in(&[4])?;
    for variable in ATTACHMENT {
        refusal = refusal.mentions(variable)?;
    }
    Ok(())
}

fn invalid_are_named(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        test.add(&target).var(variable, "a/b").run()?.refused()?.code_in(&[4])?.mentions(variable)?;
    }
    Ok(())
}

fn unknown_operation_is_named(test: &TestContext<'_>) -> TestResult {
    unknown(test, "FOO").run()?.refused()?.code_in(&[4])?.mentions("CNI_COMMAND").map(drop)
}

fn empty_at_del(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let result = test.attached(&target)?;
    test.del(&target, Some(&result)).var("CNI_NETNS", "").run()?.ok()
}

fn empty_at_add(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    for variable in ATTACHMENT {
        refused_for_environment(test, &test.add(&target).var(variable, ""))?;
    }
    test.add(&target).var("CNI_ARGS", "").run()?.ok()
}

/// Sets the variables of an attachment to invalid values.
fn with_junk(call: Call<'_>) -> Call<'_> {
    call.var("CNI_CONTAINERID", "a/b").var("CNI_NETNS", "dummy").var("CNI_IFNAME", "a name that is too long/")
}

fn junk_at_version(test: &TestContext<'_>) -> TestResult {
    lists_versions(&with_junk(test.call("VERSION")).var("CNI_PATH", "dummy").var("CNI_ARGS", "junk").run()?)
}

fn junk(test: &TestContext<'_>) -> TestResult {
    with_junk(collection(test)).run()?.silent()?;
    with_junk(test.call("STATUS")).run()?.silent()?;
    lists_versions(&with_junk(test.call("VERSION")).run()?)
}

fn version_variable(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let answer = test.add(&target).var("CNI_VERSION", "banana").run()?;
    let (seen, expected) = (answer.result()?["cniVersion"].clone(), Value::from(test.version.to_string()));
    answer.ensure(seen == expected, format!("a result of {expected}"), seen)
}

fn other_variables(test: &TestContext<'_>) -> TestResult {
    let others = [
        ("TRACEPARENT", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
        ("TRACESTATE", "vendor=1"),
        ("BAGGAGE", "a=b"),
        ("CNI_SOMETHING", "else"),
        ("LANG", "tr_TR.UTF-8"),
        ("LC_ALL", "de_DE.UTF-8"),
        ("HOME", "/nonexistent"),
        ("TMPDIR", "/nonexistent"),
        ("CONFIG", "{"),
        ("EMPTY", ""),
    ];
    let bulk = "x".repeat(100_000);
    let life = add_check_del(test, &test.target("pod1")?, |call| {
        let call = others.iter().fold(call, |call, (name, value)| call.var(name, *value));
        call.var("BULK", &bulk)
    });
    life.map(drop)
}

fn root_folder(test: &TestContext<'_>) -> TestResult {
    add_check_del(test, &test.target("pod1")?, |call| call.through_script("cd / && exec @PLUGIN@")).map(drop)
}

fn gone_folder(test: &TestContext<'_>) -> TestResult {
    let way = format!(
        "d='{}/gone' && mkdir \"$d\" && cd \"$d\" && rmdir \"$d\" && exec @PLUGIN@",
        test.dir().display()
    );
    add_check_del(test, &test.target("pod1")?, |call| call.through_script(&way)).map(drop)
}

fn minimal_path(test: &TestContext<'_>) -> TestResult {
    add_check_del(test, &test.target("pod1")?, |call| call.var("PATH", "/usr/sbin:/usr/bin:/sbin:/bin"))
        .map(drop)
}

fn netns_override(test: &TestContext<'_>) -> TestResult {
    if test.plugin.description.interface.is_some() {
        return skip("it uses an interface, which the node's own namespace does not have");
    }
    for (number, value) in ["1", "true", "TRUE"].iter().enumerate() {
        let mut target = test.target(&format!("pod{number}"))?;
        target.netns = "/proc/self/ns/net".to_owned();
        add_check_del(test, &target, |call| call.var("CNI_NETNS_OVERRIDE", *value))?;
    }
    Ok(())
}

/// Calls with two errors each, and the code of the error that the reference reports.
fn error_order(test: &TestContext<'_>) -> TestResult {
    let target = test.target("pod1")?;
    let add = || test.call_for("ADD", &target);
    let variable_and_syntax = add().unset("CNI_NETNS").bytes("{");
    let variable_and_stream = add().unset("CNI_NETNS").through_script("exec @PLUGIN@ </");
    let variable_and_name = add().unset("CNI_NETNS").key("name", "");
    let name_and_version = add().without_key("name").key("cniVersion", "99.9.9");
    let problems =
        [(variable_and_syntax, 4), (variable_and_stream, 4), (variable_and_name, 4), (name_and_version, 7)];
    problems.iter().try_for_each(|(call, code)| call.run()?.refused()?.code_in(&[*code]).map(drop))
}

fn namespace_of_delegates(test: &TestContext<'_>) -> TestResult {
    let node = test.node()?;
    let own = node.run(|| std::fs::read_link("/proc/thread-self/ns/net"))??.to_string_lossy().into_owned();
    let (ipam, target) = (test.ipam()?, test.target("pod1")?);
    ipam.on("CHECK", Reply::Text("", 0))?;
    let result = test.attached(&target)?;
    for call in calls(test, &target, &result).iter().skip(1) {
        call.run()?.ok()?;
    }
    for call in ipam.calls()? {
        same(&format!("the network namespace of {}", call.verb()), &own, &call.netns)?;
    }
    let verbs = ipam.verbs()?;
    if verbs.iter().any(|verb| verb == "ADD") {
        return Ok(());
    }
    mismatch("a call of the IPAM plugin's ADD", format!("{verbs:?}"))
}
