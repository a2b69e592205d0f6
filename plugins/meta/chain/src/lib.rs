//! The `chain` CNI plugin: runs the verbs of the plugins in its configuration, its members, in one process, as libcni runs those of a
//! list.
//!
//! [`config`] makes the configuration of each member, without the kernel or the disk. A member that belongs to this
//! program is called as a function, any other is started as a process: `Delegate` of cni-common. All links, addresses, rules and files
//! belong to the members, on the network of the same name, and are those of the list. This plugin keeps no state.

#![deny(missing_docs)]

pub mod config;

use cni_common::plugin::{
    AddRequest, DelRequest, Delegate, Environment, GcRequest, Plugin, StatusRequest, Verb, in_case_of_panic,
};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code, Context as _, Failures, NetConf, SpecVersion};

use ferrule_kernel::netlink::deferred;
use ferrule_kit::fold::{CHAIN, Object};

use config::Chain;

/// The plugin.
pub const PLUGIN: Plugin = Plugin {
    // Versions before 0.3.0 have no chains, and some plugins do not have them.
    spec_versions: SpecVersion::CHAINED,
    check,
    gc,
    status,
    ..Plugin::new(CHAIN, add, del)
};

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let chain = read(call.config)?;
    let mut result = AddResult::default();
    let mut previous = chain.prev_result().cloned();
    for number in 0..chain.len() {
        let conf = chain.of_attachment(number, previous.as_ref());
        let name = chain.type_of(number);
        let mut is_done = false;
        let added = net_conf(&conf).and_then(|conf| {
            let member = Delegate::find(name, call.env, &conf)?.as_member();
            // A first member may find the interface of an earlier ADD, which a DEL would remove.
            in_case_of_panic(failed(name, "add"), (number > 0).then(|| call.config.raw()));
            // A member of this program has undone itself, and an interface that an earlier ADD has made is not this one's.
            is_done = number > 0 && !member.is_function();
            result = member.add_or_leave(call.version)?;
            is_done = true;
            result.to_json(call.version)
        });
        let added = added.map_err(|error| named(name, "add", error));
        previous = Some(added.inspect_err(|_| undo(&chain, number + usize::from(is_done), call.env))?);
    }
    in_case_of_panic(String::new(), None);
    Ok(result)
}

/// DEL of the first members, in reverse order, as a runtime calls it after an ADD that has failed: without a result.
fn undo(chain: &Chain, members: usize, env: &Environment) {
    for number in (0..members).rev() {
        if let Err(error) = run(chain, number, Verb::Del, env, &chain.of_attachment(number, None)) {
            remark!("DEL after the failed ADD failed: {error}");
        }
    }
}

fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let chain = read(call.config)?;
    (0..chain.len()).try_for_each(|number| {
        run(&chain, number, Verb::Check, call.env, &chain.of_attachment(number, chain.prev_result()))
    })
}

/// Goes on after an error. The kernel lets the removal of an IFB, of a veth pair and of nf_tables elements each wait for a grace period:
/// they wait together. ADD has refused a configuration that cannot be decoded, and a chain in it.
fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let ignore = |error| remark!("chain: DEL ignores the configuration: {error}");
    let chain = Chain::read(call.config).map_err(ignore).unwrap_or_default();
    let mut failures = Failures::default();
    deferred::begin();
    for number in (0..chain.len()).rev().filter(|number| !matches!(chain.type_of(*number), "" | CHAIN)) {
        let conf = chain.of_attachment(number, chain.prev_result());
        let name = chain.type_of(number);
        let deleted = net_conf(&conf).and_then(|conf| {
            let member = Delegate::find(name, call.env, &conf)?;
            if !member.is_function() {
                // Another project's plugin finds what a list would have left to it.
                failures.keep(end_deferring());
                deferred::begin();
            }
            in_case_of_panic(failed(name, "delete"), None);
            member.as_member().call(Verb::Del)
        });
        failures.keep(deleted.map_err(|error| named(name, "delete", error)));
    }
    failures.keep(end_deferring());
    failures.into_result()
}

/// Removes the links that members have left to later ones.
fn end_deferring() -> Result<(), CniError> {
    let mut failures = Failures::default();
    for (link, error) in deferred::end() {
        failures.keep(Err::<(), _>(CniError::internal(format!("remove {:?}: {error}", link.name))));
    }
    failures.into_result()
}

fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let chain = read(call.config)?;
    let mut failures = Failures::default();
    for number in 0..chain.len() {
        failures.keep(run(&chain, number, Verb::Gc, call.env, &chain.of_gc(number)));
    }
    failures.into_result()
}

/// Checks the configuration, that each member exists, and that each is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let chain = read(call.config)?;
    (0..chain.len()).try_for_each(|number| {
        let conf = net_conf(&chain.of_network(number))?;
        let member = Delegate::find(chain.type_of(number), call.env, &conf)
            .map_err(|error| CniError { code: Code::NotAvailable, ..error })?;
        member.call(Verb::Status).map_err(|error| named(chain.type_of(number), "status", error))
    })
}

fn read(config: &NetConf) -> Result<Chain, CniError> {
    let chain = Chain::read(config)?;
    chain.judge().map(|()| chain)
}

/// Runs CHECK, DEL or GC of a member.
fn run(chain: &Chain, number: usize, verb: Verb, env: &Environment, conf: &Object) -> Result<(), CniError> {
    let name = chain.type_of(number);
    let text = match verb {
        Verb::Check => "check",
        Verb::Del => "delete",
        _ => "gc",
    };
    in_case_of_panic(failed(name, text), None);
    let called = net_conf(conf).and_then(|conf| Delegate::find(name, env, &conf)?.as_member().call(verb));
    called.map_err(|error| named(name, text, error))
}

/// The member's error with libcni's text for a plugin that has failed.
fn named(name: &str, verb: &str, error: CniError) -> CniError {
    CniError { msg: failed(name, verb) + &error.msg, ..error }
}

fn failed(name: &str, verb: &str) -> String {
    format!("plugin type={name:?} failed ({verb}): ")
}

fn net_conf(conf: &Object) -> Result<NetConf, CniError> {
    let text = serde_json::to_vec(conf);
    NetConf::parse(text.context(|| "write a member's configuration")?)
}
