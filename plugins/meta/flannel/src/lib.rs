//! The `flannel` CNI plugin: makes the configuration of another plugin, the delegate, from what flannel's daemon has written to
//! `subnet.env`, and calls it. The delegate is `bridge` with `host-local`, unless the configuration names others.
//!
//! [`subnet_env`] reads the daemon's file, [`config`] makes the delegate's configuration, and [`state`] keeps it for DEL: all
//! verbs after ADD use the configuration of ADD, also if the daemon has another subnet by then. All links, addresses and rules belong to
//! the delegate, on the network of the same name.

#![deny(missing_docs)]

pub mod config;
pub mod state;
pub mod subnet_env;

use std::path::Path;

use cni_common::plugin::{
    AddRequest, Attachment, DelRequest, Delegate, Environment, GcRequest, Plugin, StatusRequest, Verb,
};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code, Context as _, Failures, NetConf};

use config::{Conf, Object};
use state::{Saved, State};
use subnet_env::SubnetEnv;

const NAME: &str = "flannel";

/// The plugin.
pub const PLUGIN: Plugin = Plugin { check, repair: Some(repair), gc, status, ..Plugin::new(NAME, add, del) };

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let conf = Conf::read(call.config)?;
    let env = SubnetEnv::read(conf.subnet_file())?;
    let mut made = conf.delegated(call.config, &env)?;
    let saved = made.clone();
    conf.renew(&mut made, call.config);
    let made = net_conf(&made)?;
    let delegate = delegate(call.env, &made)?;
    // The file comes first: DEL after a kill needs it.
    let state = State::new(conf.data_dir(), &Attachment::from(call));
    let former = state.save(saved)?;
    delegate.add_or_leave(call.version).inspect_err(|_| state.undo(former))
}

fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let made = net_conf(&of_attachment(call)?)?;
    delegate(call.env, &made)?.call(Verb::Check)
}

/// As CHECK, by the delegate's repair. Only a delegate in this program has one.
fn repair(call: &AddRequest<'_>) -> Result<(), CniError> {
    let made = net_conf(&of_attachment(call)?)?;
    let name = type_of(&made)?;
    let plugin = call.env.siblings.iter().find(|plugin| plugin.name == name);
    let repair = plugin.and_then(|plugin| plugin.repair).ok_or_else(|| {
        CniError::internal(format!("the delegate {name:?} has nothing that can be made again"))
    })?;
    let prev_result = made.prev_result(call.version)?;
    repair(&AddRequest { config: &made, prev_result, ..*call })
}

/// The delegate's configuration of ADD. If its file is lost, a new one.
fn of_attachment(call: &AddRequest<'_>) -> Result<Object, CniError> {
    let conf = Conf::read(call.config)?;
    let mut made = match State::new(conf.data_dir(), &Attachment::from(call)).read()? {
        Saved::Own(saved) => saved,
        Saved::Nothing | Saved::OfAnother => {
            conf.delegated(call.config, &SubnetEnv::read(conf.subnet_file())?)?
        }
    };
    conf.renew(&mut made, call.config);
    Ok(made)
}

/// Calls the delegate's DEL with the configuration of ADD. The file stays until that has succeeded.
fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let ignore = |error| remark!("flannel: DEL ignores the configuration: {error}");
    let conf = Conf::read(call.config).map_err(ignore).unwrap_or_default();
    let state = State::new(conf.data_dir(), &Attachment::from(call));
    let mut failures = Failures::default();
    let without_state = || without_state(&conf, call.env, call.config).map_err(ignore).ok().flatten();
    let (made, is_own) = match failures.keep(state.read()) {
        Some(Saved::Own(saved)) => (Some(saved), true),
        Some(Saved::Nothing) => (without_state(), true),
        Some(Saved::OfAnother) | None => (without_state(), false),
    };
    let outcome = made.map_or(Ok(()), |mut made| {
        conf.renew(&mut made, call.config);
        let made = net_conf(&made)?;
        delegate(call.env, &made)?.call(Verb::Del)
    });
    if failures.keep(outcome).is_some() && is_own {
        failures.keep(state.remove());
    }
    failures.into_result()
}

/// Calls the delegate's GC, and removes the state files of lost attachments.
fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let conf = Conf::read(call.config)?;
    let delegated = || {
        let Some(mut made) = without_state(&conf, call.env, call.config)? else { return Ok(()) };
        config::set_valid(&mut made, call.valid);
        let made = net_conf(&made)?;
        delegate(call.env, &made)?.call(Verb::Gc)
    };
    let mut failures = Failures::default();
    failures.keep(delegated());
    failures.keep(state::collect(Path::new(conf.data_dir()), call.config.name(), call.valid));
    failures.into_result()
}

/// Checks the configuration and flannel's file, and that the delegate is ready.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
    let conf = Conf::read(call.config).map_err(unavailable)?;
    let env = SubnetEnv::read(conf.subnet_file()).map_err(unavailable)?;
    let made = net_conf(&conf.delegated(call.config, &env)?)?;
    delegate(call.env, &made).map_err(unavailable)?.call(Verb::Status)
}

/// The delegate's configuration for DEL and GC that have no file of ADD. Without flannel's file it lacks the subnets, which
/// only other projects' plugins need then: `None` for those.
fn without_state(conf: &Conf, env: &Environment, config: &NetConf) -> Result<Option<Object>, CniError> {
    let subnets = SubnetEnv::read(conf.subnet_file()).ok();
    let made = conf.delegated(config, &subnets.clone().unwrap_or_default())?;
    let is_ours = env.siblings.iter().any(|plugin| made["type"] == plugin.name);
    Ok((subnets.is_some() || is_ours).then_some(made))
}

fn net_conf(made: &Object) -> Result<NetConf, CniError> {
    let text = serde_json::to_vec(made);
    NetConf::parse(text.context(|| "write the delegate's configuration")?)
}

/// The plugin that `type` names. Not flannel, which would call itself for ever.
fn type_of(made: &NetConf) -> Result<String, CniError> {
    #[derive(Default, serde::Deserialize)]
    #[serde(default)]
    struct Type {
        r#type: String,
    }
    match made.decode::<Type>()?.r#type {
        name if name == NAME => Err(CniError::invalid_config("flannel cannot be its own delegate")),
        name => Ok(name),
    }
}

fn delegate<'a>(env: &'a Environment, made: &'a NetConf) -> Result<Delegate<'a>, CniError> {
    Delegate::find(&type_of(made)?, env, made)
}
