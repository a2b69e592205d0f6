//! What reaches a plugin through its environment.

use serde_json::{Value, json};

use super::life::{calls, checked, whole_life};
use crate::fixture::Place as _;
use crate::runner::Version;
use crate::suite::call::{Answer, Call};
use crate::suite::lab::Lab;
use crate::suite::outcome::{Trialled, ensure, fault, same, skip};
use crate::suite::stub::Reply;
use crate::suite::subject::{ANY, PLUGINS, Role};
use crate::suite::trial::Trial;

/// The variables that name an attachment.
const ATTACHMENT: [&str; 3] = ["CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"];
/// Those whose plugins can work in any namespace, the one they were started in included.
const ANYWHERE: &[Role] = &[Role::Loopback, Role::Ipam];

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("ENV-01", "version-without-arguments", ANY, version).anywhere(),
    Trial::new("ENV-01", "an-attachment-without-arguments", PLUGINS, attachment).each_version(),
    Trial::new("ENV-02", "each-operation-is-known", PLUGINS, operations).each_version(),
    Trial::new("ENV-02", "no-other-spelling-of-version", ANY, spelling_of_version).anywhere(),
    Trial::new("ENV-02", "no-other-spelling-at-an-attachment", PLUGINS, spelling),
    Trial::new("ENV-03", "an-unknown-operation", ANY, unknown_operation).each_version().anywhere(),
    Trial::new("ENV-04", "no-result-without-a-command", ANY, no_command).anywhere(),
    Trial::new("ENV-04", "no-change-without-a-command", PLUGINS, no_command_no_change),
    Trial::new("ENV-04a", "the-version-on-standard-error", ANY, version_line).only(&["firewall"]).anywhere(),
    Trial::new("ENV-05", "each-variable-missing-in-turn", PLUGINS, add_needs),
    Trial::new("ENV-05", "no-arguments-are-needed", PLUGINS, add_without_arguments).each_version(),
    Trial::new("ENV-06", "each-variable-missing-in-turn", PLUGINS, del_needs),
    Trial::new("ENV-06", "neither-namespace-nor-arguments-are-needed", PLUGINS, del_needs_less)
        .each_version(),
    Trial::new("ENV-07", "each-variable-missing-in-turn", PLUGINS, check_needs).each_version(),
    Trial::new("ENV-08", "no-attachment-is-named", PLUGINS, gc),
    Trial::new("ENV-09", "no-attachment-is-named", PLUGINS, status),
    Trial::new("ENV-09", "no-search-path-is-needed", PLUGINS, status_without_path),
    Trial::new("ENV-10", "nothing-but-the-command", ANY, version_alone).each_version().anywhere(),
    Trial::new("ENV-11", "no-search-path", PLUGINS, no_path),
    Trial::new("ENV-12", "every-missing-variable", PLUGINS, missing_are_named),
    Trial::new("ENV-12", "a-variable-that-is-not-valid", PLUGINS, invalid_are_named),
    Trial::new("ENV-12", "an-unknown-operation", ANY, unknown_operation_is_named).anywhere(),
    Trial::new("ENV-13", "an-empty-namespace-at-del", PLUGINS, empty_at_del).each_version(),
    Trial::new("ENV-13", "each-variable-empty-in-turn", PLUGINS, empty_at_add),
    Trial::new("ENV-14", "junk-at-version", ANY, junk_at_version).each_version().anywhere(),
    Trial::new("ENV-15", "junk-where-no-attachment-is-meant", PLUGINS, junk),
    Trial::new("ENV-17", "another-version-in-the-environment", PLUGINS, version_variable),
    Trial::new("ENV-18", "many-other-variables", PLUGINS, other_variables),
    Trial::new("ENV-18", "the-root-as-working-folder", PLUGINS, root_folder),
    Trial::new("ENV-18", "a-working-folder-that-is-gone", PLUGINS, gone_folder),
    Trial::new("ENV-18", "a-minimal-search-path", PLUGINS, minimal_path),
    Trial::new("ENV-19", "the-own-namespace-on-demand", ANYWHERE, netns_override),
    Trial::new("ENV-20", "several-faults-at-once", ANY, order_of_faults),
    Trial::new("ENV-21", "delegates-run-where-the-plugin-was-started", PLUGINS, namespace_of_delegates)
        .delegating(),
];

fn version(lab: &Lab<'_>) -> Trialled {
    lists_versions(&lab.call("VERSION").run()?)
}

/// Whether a call was answered as VERSION is.
fn lists_versions(answer: &Answer) -> Trialled {
    let lists = answer.result()?["supportedVersions"].as_array().is_some_and(|list| !list.is_empty());
    answer.ensure(lists, "a list `supportedVersions` with something in it", answer.shown())
}

fn attachment(lab: &Lab<'_>) -> Trialled {
    whole_life(lab, &lab.target("pod1")?, |call| call).map(drop)
}

fn operations(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    if lab.version >= Version::V0_2_0 {
        lists_versions(&lab.call("VERSION").run()?)?;
    }
    if lab.version >= Version::V0_4_0 {
        is_known(&lab.check(&target, &result).run()?)?;
    }
    if lab.version >= Version::V1_1_0 {
        is_known(&lab.call("STATUS").run()?)?;
        let here = json!([{"containerID": target.container_id, "ifname": target.ifname}]);
        lab.call("GC")
            .key("cni.dev/valid-attachments", here.clone())
            .key("cni.dev/attachments", here)
            .run()?
            .ok()?;
    }
    lab.detached(&target, &result).map(drop)
}

/// An operation that is not known is an error with code 4. Any other error says that it is.
fn is_known(answer: &Answer) -> Trialled {
    if answer.output.success() {
        return Ok(());
    }
    let refusal = answer.refused()?;
    answer.ensure(refusal.code != 4, "an operation that is known", refusal.text())
}

fn spelling_of_version(lab: &Lab<'_>) -> Trialled {
    for spelling in ["version", "Version", "VERSION ", " VERSION"] {
        lab.call(spelling).run()?.refused()?;
    }
    Ok(())
}

fn spelling(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let before = lab.snapshot()?;
    for spelling in ["add", "Add", "ADD ", "ADD\n"] {
        lab.add(&target).var("CNI_COMMAND", spelling).run()?.refused()?;
    }
    let changes = lab.changes_since(&before)?;
    ensure(changes.is_empty(), "a node as it was before", changes)?;
    let result = lab.attached(&target)?;
    lab.del(&target, Some(&result)).var("CNI_COMMAND", "del").run()?.refused()?;
    if lab.version >= Version::V0_4_0 {
        lab.check(&target, &result).var("CNI_COMMAND", "Check").run()?.refused()?;
    }
    Ok(())
}

fn unknown_operation(lab: &Lab<'_>) -> Trialled {
    for command in ["FOO", "UPDATE", "ADD,DEL"] {
        unknown(lab, command).run()?.refused()?.code_in(&[4])?;
    }
    Ok(())
}

/// A call with a command that is none, and nothing else that is wrong.
fn unknown<'l>(lab: &'l Lab<'_>, command: &str) -> Call<'l> {
    let call = lab.call(command).var("CNI_CONTAINERID", "pod1").var("CNI_IFNAME", "eth0");
    call.var("CNI_NETNS", "/run/netns/pod1")
}

/// Without a command a plugin may fail, or say on standard error what it is.
fn carries_out_nothing(answer: &Answer) -> Trialled {
    if answer.output.success() { answer.silent() } else { answer.refused().map(drop) }
}

fn no_command(lab: &Lab<'_>) -> Trialled {
    carries_out_nothing(&lab.call("").unset("CNI_COMMAND").run()?)?;
    carries_out_nothing(&lab.call("").run()?)
}

fn no_command_no_change(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let before = lab.snapshot()?;
    let absent = lab.add(&target).unset("CNI_COMMAND").run()?;
    carries_out_nothing(&absent)?;
    let empty = lab.add(&target).var("CNI_COMMAND", "").run()?;
    carries_out_nothing(&empty)?;
    lab.unchanged_since(&before, &empty)
}

fn version_line(lab: &Lab<'_>) -> Trialled {
    let answer = lab.call("").unset("CNI_COMMAND").run()?;
    answer.ok()?;
    let text = answer.output.stderr_text();
    let version =
        text.lines().find_map(|line| line.strip_prefix("CNI firewall plugin v")).unwrap_or_default();
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = version.split(['-', '+']).next().unwrap_or_default().split('.');
    let is_version = numbers.clone().count() == 3 && numbers.clone().all(is_number);
    answer.ensure(is_version, "a line `CNI firewall plugin v<version>` on standard error", answer.shown())
}

/// An error with code 4, which is defined from 1.0.0 on; before that any.
fn refused_for_environment(lab: &Lab<'_>, call: &Call<'_>) -> Trialled {
    let refusal = call.run()?.refused()?;
    if lab.version >= Version::V1_0_0 { refusal.code_in(&[4]).map(drop) } else { Ok(()) }
}

fn add_needs(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    for variable in ATTACHMENT {
        refused_for_environment(lab, &lab.add(&target).unset(variable))?;
    }
    Ok(())
}

fn add_without_arguments(lab: &Lab<'_>) -> Trialled {
    lab.add(&lab.target("pod1")?).unset("CNI_ARGS").run()?.ok()
}

fn del_needs(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        refused_for_environment(lab, &lab.del(&target, Some(&result)).unset(variable))?;
    }
    Ok(())
}

fn del_needs_less(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    lab.del(&target, Some(&result)).unset("CNI_NETNS").unset("CNI_ARGS").run()?.ok()
}

fn check_needs(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    for variable in ATTACHMENT {
        refused_for_environment(lab, &lab.check(&target, &result).unset(variable))?;
    }
    checked(lab, &target, &result, |call| call.unset("CNI_ARGS"))
}

/// A call that names no attachment: the variables are absent, or empty as libcni leaves them.
fn without_attachment<'c>(call: &Call<'c>) -> [Call<'c>; 2] {
    let (mut absent, mut empty) = (call.clone(), call.clone());
    for variable in ATTACHMENT {
        (absent, empty) = (absent.unset(variable), empty.var(variable, ""));
    }
    [absent.unset("CNI_ARGS"), empty.var("CNI_ARGS", "")]
}

/// A GC of a network without attachments.
fn collection<'l>(lab: &'l Lab<'_>) -> Call<'l> {
    lab.call("GC").key("cni.dev/valid-attachments", json!([])).key("cni.dev/attachments", json!([]))
}

fn gc(lab: &Lab<'_>) -> Trialled {
    without_attachment(&collection(lab)).iter().try_for_each(|call| call.run()?.silent())
}

fn status(lab: &Lab<'_>) -> Trialled {
    without_attachment(&lab.call("STATUS")).iter().try_for_each(|call| call.run()?.silent())
}

fn status_without_path(lab: &Lab<'_>) -> Trialled {
    if lab.subject.delegates {
        return skip("it has to find its IPAM plugin");
    }
    let [call, _] = without_attachment(&lab.call("STATUS").unset("CNI_PATH"));
    call.run()?.silent()
}

fn version_alone(lab: &Lab<'_>) -> Trialled {
    let [call, _] = without_attachment(&lab.call("VERSION").unset("CNI_PATH"));
    lists_versions(&call.run()?)
}

fn no_path(lab: &Lab<'_>) -> Trialled {
    if lab.subject.delegates {
        return skip("it has to find its IPAM plugin");
    }
    whole_life(lab, &lab.target("pod1")?, |call| call.unset("CNI_PATH"))?;
    if lab.version >= Version::V1_1_0 { lab.call("STATUS").unset("CNI_PATH").run()?.ok() } else { Ok(()) }
}

fn missing_are_named(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let mut call = lab.add(&target);
    for variable in ATTACHMENT {
        call = call.unset(variable);
    }
    let mut refusal = call.run()?.refused()?.code_in(&[4])?;
    for variable in ATTACHMENT {
        refusal = refusal.mentions(variable)?;
    }
    Ok(())
}

fn invalid_are_named(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    for variable in ["CNI_CONTAINERID", "CNI_IFNAME"] {
        lab.add(&target).var(variable, "a/b").run()?.refused()?.code_in(&[4])?.mentions(variable)?;
    }
    Ok(())
}

fn unknown_operation_is_named(lab: &Lab<'_>) -> Trialled {
    unknown(lab, "FOO").run()?.refused()?.code_in(&[4])?.mentions("CNI_COMMAND").map(drop)
}

fn empty_at_del(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    lab.del(&target, Some(&result)).var("CNI_NETNS", "").run()?.ok()
}

fn empty_at_add(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    for variable in ATTACHMENT {
        refused_for_environment(lab, &lab.add(&target).var(variable, ""))?;
    }
    lab.add(&target).var("CNI_ARGS", "").run()?.ok()
}

/// Values that no attachment can have.
fn with_junk(call: Call<'_>) -> Call<'_> {
    call.var("CNI_CONTAINERID", "a/b").var("CNI_NETNS", "dummy").var("CNI_IFNAME", "a name that is too long/")
}

fn junk_at_version(lab: &Lab<'_>) -> Trialled {
    lists_versions(&with_junk(lab.call("VERSION")).var("CNI_PATH", "dummy").var("CNI_ARGS", "junk").run()?)
}

fn junk(lab: &Lab<'_>) -> Trialled {
    with_junk(collection(lab)).run()?.silent()?;
    with_junk(lab.call("STATUS")).run()?.silent()?;
    lists_versions(&with_junk(lab.call("VERSION")).run()?)
}

fn version_variable(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let answer = lab.add(&target).var("CNI_VERSION", "banana").run()?;
    let (seen, expected) = (answer.result()?["cniVersion"].clone(), Value::from(lab.version.to_string()));
    answer.ensure(seen == expected, format!("a result of {expected}"), seen)
}

fn other_variables(lab: &Lab<'_>) -> Trialled {
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
    let life = whole_life(lab, &lab.target("pod1")?, |call| {
        let call = others.iter().fold(call, |call, (name, value)| call.var(name, *value));
        call.var("BULK", &bulk)
    });
    life.map(drop)
}

fn root_folder(lab: &Lab<'_>) -> Trialled {
    whole_life(lab, &lab.target("pod1")?, |call| call.by_way_of("cd / && exec @PLUGIN@")).map(drop)
}

fn gone_folder(lab: &Lab<'_>) -> Trialled {
    let way = format!(
        "d='{}/gone' && mkdir \"$d\" && cd \"$d\" && rmdir \"$d\" && exec @PLUGIN@",
        lab.dir().display()
    );
    whole_life(lab, &lab.target("pod1")?, |call| call.by_way_of(&way)).map(drop)
}

fn minimal_path(lab: &Lab<'_>) -> Trialled {
    whole_life(lab, &lab.target("pod1")?, |call| call.var("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")).map(drop)
}

fn netns_override(lab: &Lab<'_>) -> Trialled {
    for (number, value) in ["1", "true", "TRUE"].iter().enumerate() {
        let mut target = lab.target(&format!("pod{number}"))?;
        target.netns = "/proc/self/ns/net".to_owned();
        whole_life(lab, &target, |call| call.var("CNI_NETNS_OVERRIDE", *value))?;
    }
    Ok(())
}

/// Pairs of faults; the code is that of the one which the reference finds first.
fn order_of_faults(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let add = || lab.call_for("ADD", &target);
    let variable_and_syntax = add().unset("CNI_NETNS").bytes("{");
    let variable_and_stream = add().unset("CNI_NETNS").by_way_of("exec @PLUGIN@ </");
    let variable_and_name = add().unset("CNI_NETNS").key("name", "");
    let name_and_version = add().without_key("name").key("cniVersion", "99.9.9");
    let faults =
        [(variable_and_syntax, 4), (variable_and_stream, 4), (variable_and_name, 4), (name_and_version, 7)];
    faults.iter().try_for_each(|(call, code)| call.run()?.refused()?.code_in(&[*code]).map(drop))
}

fn namespace_of_delegates(lab: &Lab<'_>) -> Trialled {
    let node = lab.node()?;
    let own = node.run(|| std::fs::read_link("/proc/thread-self/ns/net"))??.to_string_lossy().into_owned();
    let (ipam, target) = (lab.ipam()?, lab.target("pod1")?);
    ipam.on("CHECK", Reply::Text("", 0))?;
    let result = lab.attached(&target)?;
    for call in calls(lab, &target, &result).iter().skip(1) {
        call.run()?.ok()?;
    }
    for call in ipam.calls()? {
        same(&format!("the network namespace of {}", call.verb()), &own, &call.netns)?;
    }
    let verbs = ipam.verbs()?;
    if verbs.iter().any(|verb| verb == "ADD") {
        return Ok(());
    }
    fault("an ADD of the IPAM plugin", format!("{verbs:?}"))
}
