//! The configuration on standard input, and the network's name.

mod forms;
mod meaning;

use serde_json::json;

use super::life::{calls, whole_life};
use crate::runner::Version;
use crate::suite::call::Call;
use crate::suite::lab::Lab;
use crate::suite::outcome::Trialled;
use crate::suite::subject::{ANY, PLUGINS, Role};
use crate::suite::trial::Trial;

/// Plugins that have no use for a network's name in a path.
const NAMELESS: &[Role] = &[Role::Loopback, Role::Interface, Role::Chained];
const BAD_NAMES: [&str; 9] = ["-n", "_n", ".n", "n/x", "n x", "n:x", "../n", "ñ", "n\n"];
/// More than a pipe holds at once.
const LONG_INPUT: usize = 100_000;

/// In the order of their requirements.
pub(super) const TRIALS: &[Trial] = &[
    Trial::new("CFG-01", "in-two-writes", PLUGINS, two_writes),
    Trial::new("CFG-01", "more-than-a-pipe-holds", PLUGINS, long_input),
    Trial::new("CFG-02", "what-is-no-configuration", ANY, undecodable),
    Trial::new("CFG-02", "another-type-of-version", ANY, undecodable_version),
    Trial::new("CFG-03", "a-folder-as-standard-input", ANY, unreadable),
    Trial::new("CFG-03", "no-standard-input", ANY, no_input),
    Trial::new("CFG-04", "a-field-that-is-not-known", PLUGINS, unknown_field),
    Trial::new("CFG-05", "arguments-that-are-not-known", PLUGINS, unknown_args),
    Trial::new("CFG-06", "capabilities", PLUGINS, capabilities),
    Trial::new("CFG-07", "reserved-keys", PLUGINS, reserved_keys),
    Trial::new("CFG-08", "host-ports", PLUGINS, forms::case_of_host_ports).only(&["portmap"]),
    Trial::new("CFG-08", "rates", PLUGINS, forms::case_of_rates).only(&["bandwidth"]),
    Trial::new("CFG-08", "ranges", PLUGINS, forms::case_of_ranges).only(&["host-local"]),
    Trial::new("CFG-09", "null-for-what-every-network-may-have", PLUGINS, forms::nulls),
    Trial::new("CFG-09", "null-in-runtime-config", PLUGINS, forms::nulls_of_the_runtime),
    Trial::new("CFG-09", "null-in-the-configuration-of-a-plugin", PLUGINS, forms::nulls_of_the_plugin)
        .only(&["bandwidth", "bridge", "host-local", "macvlan", "portmap", "ptp"]),
    Trial::new("CFG-10", "keys-in-reverse-order", PLUGINS, forms::reverse_order),
    Trial::new("CFG-10", "every-character-escaped", PLUGINS, forms::escapes),
    Trial::new("CFG-10", "much-white-space", PLUGINS, forms::white_space),
    Trial::new("CFG-11", "a-burst-of-35-bits", PLUGINS, forms::large_burst).only(&["bandwidth"]),
    Trial::new("CFG-12", "no-type", PLUGINS, no_type),
    Trial::new("CFG-13", "masquerading-on-demand", PLUGINS, meaning::masquerading).only(&["bridge", "ptp"]),
    Trial::new("CFG-13", "addresses-of-the-ipam-plugin", PLUGINS, meaning::addresses).delegating(),
    Trial::new("CFG-13", "name-servers", PLUGINS, meaning::name_servers).only(&["bridge", "macvlan", "ptp"]),
    Trial::new("CFG-14", "a-delegate-by-a-path", PLUGINS, meaning::delegate_by_path).delegating(),
    Trial::new("CFG-15", "no-ipam-in-every-form", PLUGINS, meaning::no_ipam).delegating(),
    Trial::new("CFG-16", "ranges", PLUGINS, forms::empty_in_ranges).only(&["host-local"]),
    Trial::new("CFG-16", "host-addresses", PLUGINS, forms::empty_host_address).only(&["portmap"]),
    Trial::new("CFG-17", "a-subnet", PLUGINS, forms::leading_zeros).only(&["host-local"]),
    Trial::new("NET-01", "no-name", ANY, no_name).each_version(),
    Trial::new("NET-01", "an-empty-name", ANY, empty_name).each_version(),
    Trial::new("NET-01", "a-number-for-a-name", ANY, number_for_a_name),
    Trial::new("NET-02", "every-valid-form", PLUGINS, good_names),
    Trial::new("NET-02", "forms-that-are-not-valid", PLUGINS, bad_names).each_version(),
    Trial::new("NET-03", "a-name-of-300-characters", NAMELESS, long_name),
];

fn two_writes(lab: &Lab<'_>) -> Trialled {
    let way = "{ dd bs=1 count=20 2>/dev/null; sleep 0.05; cat; } | @PLUGIN@";
    whole_life(lab, &lab.target("pod1")?, |call| call.by_way_of(way)).map(drop)
}

fn long_input(lab: &Lab<'_>) -> Trialled {
    let life = whole_life(lab, &lab.target("pod1")?, |call| {
        let bytes = [vec![b' '; LONG_INPUT], call.input()].concat();
        call.bytes(bytes)
    });
    life.map(drop)
}

fn undecodable(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let add = lab.add(&target);
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
    // Decodable, but without a name.
    add.bytes("null").run()?.refused()?.code_in(&[6, 7]).map(drop)
}

fn undecodable_version(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    lab.add(&target).key("cniVersion", 1).run()?.refused()?.code_in(&[6]).map(drop)
}

fn unreadable(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    lab.add(&target).by_way_of("exec @PLUGIN@ </").run()?.refused()?.code_in(&[5]).map(drop)
}

fn no_input(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    // Some languages open /dev/null in place of a closed stream before a program begins: it is empty then.
    lab.add(&target).by_way_of("exec @PLUGIN@ <&-").run()?.refused()?.code_in(&[5, 6]).map(drop)
}

fn unknown_field(lab: &Lab<'_>) -> Trialled {
    let answer = lab.add(&lab.target("pod1")?).key("trialKey", "trialValue").run()?;
    if answer.output.success() {
        return Ok(());
    }
    answer.refused()?.code_in(&[2])?.mentions("trialKey")?.mentions("trialValue").map(drop)
}

fn unknown_args(lab: &Lab<'_>) -> Trialled {
    let args = json!({"labels": {"a": "b"}, "org.example": ["x", 7, null], "cni": {"trialKey": 1}});
    whole_life(lab, &lab.target("pod1")?, |call| call.key("args", args.clone())).map(drop)
}

fn capabilities(lab: &Lab<'_>) -> Trialled {
    let declared = json!({
        "portMappings": true, "bandwidth": true, "ipRanges": true, "ips": true, "mac": true, "dns": true,
        "aliases": true, "deviceID": true, "infinibandGUID": true, "cgroupPath": true, "trialKey": true,
        "io.kubernetes.cri.pod-annotations": true, "denied": false});
    whole_life(lab, &lab.target("pod1")?, |call| call.key("capabilities", declared.clone())).map(drop)
}

fn reserved_keys(lab: &Lab<'_>) -> Trialled {
    let life = whole_life(lab, &lab.target("pod1")?, |call| {
        call.key("cni.dev/trial", json!({"a": [1]})).key("cni.dev/", true)
    });
    life.map(drop)
}

fn no_type(lab: &Lab<'_>) -> Trialled {
    let answer = lab.add(&lab.target("pod1")?).without_key("type").run()?;
    if answer.output.success() {
        answer.result().map(drop)
    } else {
        answer.refused()?.code_in(&[6, 7]).map(drop)
    }
}

/// An ADD that has to fail, with one of these codes if the version defines them.
fn refused_with(lab: &Lab<'_>, call: &Call<'_>, codes: &[u64]) -> Trialled {
    let refusal = call.run()?.refused()?;
    if lab.version >= Version::V1_0_0 { refusal.code_in(codes).map(drop) } else { Ok(()) }
}

fn no_name(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    refused_with(lab, &lab.add(&target).without_key("name"), &[7])
}

fn empty_name(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    refused_with(lab, &lab.add(&target).key("name", ""), &[7])
}

fn number_for_a_name(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    refused_with(lab, &lab.add(&target).key("name", 7), &[6, 7])
}

fn good_names(lab: &Lab<'_>) -> Trialled {
    for (number, name) in ["n", "7", "N0", "n-a_m.e", "a..b"].iter().enumerate() {
        whole_life(lab, &lab.target(&format!("pod{number}"))?, |call| call.key("name", *name))?;
    }
    Ok(())
}

fn bad_names(lab: &Lab<'_>) -> Trialled {
    let target = lab.target("pod1")?;
    let result = lab.attached(&target)?;
    for call in calls(lab, &target, &result) {
        for name in BAD_NAMES {
            call.clone().key("name", name).run()?.refused()?;
        }
    }
    Ok(())
}

fn long_name(lab: &Lab<'_>) -> Trialled {
    let name = "n".repeat(300);
    whole_life(lab, &lab.target("pod1")?, |call| call.key("name", name.as_str())).map(drop)
}
