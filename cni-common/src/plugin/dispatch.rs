//! Dispatch: reads the request, calls the plugin's verb, prints one JSON document and exits with status 0 or
//! 1.

use std::panic;
use std::process::ExitCode;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;

use super::call_log;
use super::env::{Environment, Verb};
use super::panics;
use super::streams::{read_document_within, read_request, write_answer};
use super::{AddRequest, DelRequest, GcRequest, Plugin, Sandbox, StatusRequest};
use crate::netns::{self, ContainerNetns, Netns};
use crate::remark;
use crate::spec::{AddResult, CniError, Code, Failures, NetConf, SpecVersion};

/// How long VERSION waits for input from a caller that does not close standard input.
const VERSION_TIMEOUT: Duration = Duration::from_millis(100);

/// Runs the plugin: reads the request of the runtime, calls the verb, prints the answer.
pub fn run(plugin: &Plugin) -> ExitCode {
    start(plugin, &[], || ())
}

/// Runs the plugin whose name equals the file name in `argv[0]`. One executable can contain several plugins,
/// with a link for each name. A plugin that delegates to another one of `plugins` calls it without a child
/// process, see [`Delegate`].
///
/// Under another name the program is the tool `tool`, unless a runtime calls it. `observe` is called if the call is
/// logged: it lets the caller record more, see [`call_log`].
///
/// [`Delegate`]: super::Delegate
pub fn run_one_of(plugins: &'static [&'static Plugin], tool: fn() -> ExitCode, observe: fn()) -> ExitCode {
    let started_as = std::env::args_os().next().unwrap_or_default();
    // Not Path::file_name, which is several pages of code.
    let name = started_as.as_encoded_bytes().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    match plugins.iter().find(|plugin| name == plugin.name.as_bytes()) {
        Some(plugin) => start(plugin, plugins, observe),
        None if std::env::var_os("CNI_COMMAND").is_none_or(|command| command.is_empty()) => tool(),
        None => {
            let names: Vec<&str> = plugins.iter().map(|plugin| plugin.name).collect();
            let (name, names) = (String::from_utf8_lossy(name), names.join(", "));
            let msg =
                format!("no plugin {name:?} in this program; install it under one of these names: {names}");
            remark!("{msg}");
            let _ = print_json(&CniError::internal(msg).to_json(SpecVersion::NEWEST));
            ExitCode::FAILURE
        }
    }
}

fn start(plugin: &Plugin, siblings: &'static [&'static Plugin], observe: fn()) -> ExitCode {
    print_panics_as_errors();
    let env = Environment { siblings, ..Environment::read(|name| std::env::var_os(name)) };
    if env.command.is_empty() {
        let arguments: Vec<String> =
            std::env::args_os().skip(1).map(|argument| argument.to_string_lossy().into_owned()).collect();
        return (plugin.tool)(&arguments).unwrap_or_else(|| {
            // Users and some runtimes read it.
            remark!("CNI {} plugin v{}", plugin.name, plugin.version);
            remark!("CNI protocol versions supported: {}", version_texts(plugin.spec_versions).join(", "));
            ExitCode::SUCCESS
        });
    }
    if call_log::start(plugin.name, &env) {
        observe();
    }
    let mut version = SpecVersion::NEWEST;
    match dispatch(plugin, &env, &mut version) {
        Ok(result) => {
            call_log::finish(Ok(result.as_ref()));
            if is_undo() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
        Err(error) if is_undo() => {
            remark!("DEL after the panic failed: {error}");
            call_log::finish(Err(&error));
            ExitCode::FAILURE
        }
        Err(error) => {
            // If stdout cannot be written, only the exit status reports the failure.
            let _ = print_json(&error.to_json(version));
            call_log::finish(Err(&error));
            ExitCode::FAILURE
        }
    }
}

/// Whether this process undoes an ADD that has panicked, and has printed its error.
fn is_undo() -> bool {
    std::env::var_os(panics::UNDOES).is_some()
}

/// Makes a panic print an error object and exit with status 1. Without this the runtime would only see
/// SIGABRT.
fn print_panics_as_errors() {
    panic::set_hook(Box::new(|info| {
        let error = CniError::internal(format!("{}internal error: {info}", panics::name()));
        if is_undo() {
            remark!("{error}");
        } else {
            let _ = print_json(&error.to_json(SpecVersion::NEWEST));
        }
        call_log::finish(Err(&error));
        if !is_undo() {
            panics::undo();
        }
        std::process::exit(1);
    }));
}

fn version_texts(versions: &[SpecVersion]) -> Vec<&'static str> {
    versions.iter().map(|version| version.as_str()).collect()
}

/// Prints a document in one write, indented because it appears in logs.
fn print_json(value: &Value) -> Result<(), CniError> {
    let mut text = Vec::with_capacity(1024);
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"    ");
    let mut serializer = serde_json::Serializer::with_formatter(&mut text, formatter);
    let failed =
        |error: &dyn std::fmt::Display| CniError::new(Code::Io, format!("error writing to stdout: {error}"));
    serde::Serialize::serialize(value, &mut serializer).map_err(|error| failed(&error))?;
    text.push(b'\n');
    write_answer(&text).map_err(|error| failed(&error))
}

/// Returns the printed result of ADD.
fn dispatch(
    plugin: &Plugin,
    env: &Environment,
    version: &mut SpecVersion,
) -> Result<Option<Value>, CniError> {
    let verb = Verb::parse(&env.command);
    if verb == Some(Verb::Version) {
        return print_json(&version_answer(plugin)).map(|()| None);
    }
    if let Some(verb) = verb {
        env.validate(verb)?;
    }
    let request = call_log::step("request", read_request)
        .map_err(|error| CniError::new(Code::Io, format!("error reading from stdin: {error}")))?;
    let config = NetConf::parse(request)?;
    call_log::network(config.name());
    if let Some(known) = SpecVersion::parse(config.version_text()) {
        *version = known;
    }
    let Some(verb) = verb else {
        return Err(CniError::new(Code::InvalidEnvironment, format!("unknown CNI_COMMAND: {}", env.command)));
    };
    let Some(result) = perform(plugin, verb, env, &config)? else { return Ok(None) };
    let printed = result.to_json(*version).and_then(|json| print_json(&json).map(|()| json));
    printed.map(Some).inspect_err(|_| {
        // The runtime gets no result, so ADD has failed. DEL removes the attachment.
        if let Err(error) = perform(plugin, Verb::Del, env, &config) {
            remark!("DEL after the failed ADD failed: {error}");
        }
    })
}

/// Runs a verb: everything except reading the configuration and printing the result. Only ADD returns a
/// result.
pub(super) fn perform(
    plugin: &Plugin,
    verb: Verb,
    env: &Environment,
    config: &NetConf,
) -> Result<Option<AddResult>, CniError> {
    let version = check_version(plugin, verb, config)?;
    match verb {
        Verb::Add => return on_attachment(env, config, version, plugin.add).map(Some),
        Verb::Check => on_attachment(env, config, version, plugin.check),
        Verb::Del => del(plugin, env, config, version),
        Verb::Gc => (plugin.gc)(&GcRequest { config, env, valid: &config.valid_attachments()? }),
        Verb::Status => (plugin.status)(&StatusRequest { config, env }),
        Verb::Version => Ok(()),
    }
    .map(|()| None)
}

/// Calls `work` with the request of ADD, CHECK and repair.
pub(super) fn on_attachment<T>(
    env: &Environment,
    config: &NetConf,
    version: SpecVersion,
    work: impl FnOnce(&AddRequest<'_>) -> Result<T, CniError>,
) -> Result<T, CniError> {
    let sandbox = open_sandbox(env)?;
    let (container_id, ifname) = (&*env.container_id, &*env.ifname);
    let prev_result = config.prev_result(version)?;
    work(&AddRequest { config, version, env, container_id, ifname, sandbox: &sandbox, prev_result })
}

/// Checks that the plugin supports the configuration's version and that this version allows the verb.
pub(super) fn check_version(plugin: &Plugin, verb: Verb, config: &NetConf) -> Result<SpecVersion, CniError> {
    if matches!(verb, Verb::Check | Verb::Gc | Verb::Status) {
        config.check_version_form()?;
    }
    let version = config.version(plugin.spec_versions)?;
    let is_allowed = match verb {
        Verb::Check => version >= SpecVersion::V0_4_0,
        Verb::Gc | Verb::Status => version >= SpecVersion::V1_1_0,
        Verb::Add | Verb::Del | Verb::Version => true,
    };
    if is_allowed {
        return Ok(version);
    }
    Err(CniError::new(Code::IncompatibleVersion, format!("config version does not allow {}", verb.as_str())))
}

/// Opens CNI_NETNS, unless the call has opened it already. Fails if it is the plugin's own namespace and CNI_NETNS_OVERRIDE is not set.
fn open_sandbox(env: &Environment) -> Result<Sandbox, CniError> {
    let path = env.netns.clone();
    if let Some(netns) = env.opened.get(&path) {
        return Ok(Sandbox { path, netns: Ok(netns) });
    }
    let netns = Netns::open(&path);
    if let Ok(netns) = &netns {
        if !env.netns_override && netns::is_own(netns)? {
            return Err(same_netns());
        }
        env.opened.keep(&path, netns);
    }
    Ok(Sandbox { path, netns })
}

fn same_netns() -> CniError {
    let msg = "plugin's netns and netns from CNI_NETNS should not be the same";
    CniError::new(Code::InvalidNetns, msg)
}

/// Runs DEL, without the namespace if CNI_NETNS no longer exists, is the plugin's own or cannot be opened. In the last two
/// cases this is an error, which is returned after the plugin's DEL has run: the runtime then calls DEL again.
fn del(plugin: &Plugin, env: &Environment, config: &NetConf, version: SpecVersion) -> Result<(), CniError> {
    let (netns, is_own) = match env.opened.get(&env.netns) {
        Some(netns) => (ContainerNetns::Open(netns), false),
        None if env.netns_override => (ContainerNetns::open(&env.netns), false),
        None => ContainerNetns::open_other(&env.netns),
    };
    if let Some(netns) = netns.opened() {
        env.opened.keep(&env.netns, netns);
    }
    let prev_result = config.prev_result(version).unwrap_or_else(|error| {
        remark!("DEL ignores prevResult: {error}");
        None
    });
    let (container_id, ifname) = (&*env.container_id, &*env.ifname);
    let call = DelRequest { config, version, env, container_id, ifname, netns: &netns, prev_result };
    let mut failures = Failures::default();
    failures.keep(if is_own { Err(same_netns()) } else { Ok(()) });
    if let ContainerNetns::Unknown(error) = &netns {
        failures.keep(Err::<(), _>(error.clone()));
    }
    failures.keep((plugin.del)(&call));
    failures.into_result()
}

/// The answer of VERSION. `cniVersion` is the caller's version if the plugin supports it, else the plugin's
/// newest.
fn version_answer(plugin: &Plugin) -> Value {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct Request {
        #[serde(rename = "cniVersion")]
        cni_version: String,
    }
    let supported = plugin.spec_versions;
    let request = read_document_within(VERSION_TIMEOUT).and_then(|json| json.decode::<Request>().ok());
    let text = request.map(|request| request.cni_version).filter(|text| !text.is_empty());
    let version = text
        .and_then(|text| SpecVersion::parse(&text))
        .filter(|version| supported.contains(version))
        .or(supported.last().copied())
        .unwrap_or(SpecVersion::NEWEST);
    serde_json::json!({ "cniVersion": version.as_str(), "supportedVersions": version_texts(supported) })
}
