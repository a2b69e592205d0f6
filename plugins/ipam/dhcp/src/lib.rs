//! The `dhcp` CNI IPAM plugin: asks a daemon for DHCP leases, which the daemon keeps renewed.
//!
//! The plugin lives for one call; the daemon is the program `ferrule-dhcp`, which is not linked into the plugins.
//!
//! - [`config`] decodes and checks the keys.
//! - [`wire`] is the protocol between the plugin and the daemon.
//! - [`client`] asks the daemon.
//! - [`list`] lists and releases leases for the operator's tool.
//! - [`result`] makes the result of ADD from a lease, and compares a lease with `prevResult`.

#![deny(missing_docs)]

pub mod client;
pub mod config;
pub mod list;
pub mod result;
pub mod wire;

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use cni_common::plugin::{AddRequest, Attachment, DelRequest, GcRequest, Plugin, StatusRequest};
use cni_common::remark;
use cni_common::spec::{AddResult, CniError, Code};
use ferrule_kit::check::prev_result;

use config::Config;
use wire::{Key, Operation, Request};

/// The daemon's program.
pub const DAEMON: &str = "ferrule-dhcp";

/// The plugin.
pub const PLUGIN: Plugin = Plugin { tool, check, gc, status, ..Plugin::new("dhcp", add, del) };

/// `dhcp daemon ..`, as the reference's daemon is started: becomes the daemon's program beside this one.
fn tool(arguments: &[String]) -> Option<ExitCode> {
    let [first, rest @ ..] = arguments else { return None };
    if first != "daemon" {
        return None;
    }
    let daemon = std::env::current_exe().unwrap_or_default().with_file_name(DAEMON);
    let error = Command::new(&daemon).args(rest).exec();
    remark!("dhcp daemon: cannot start {}: {error}; copy {DAEMON} there from the build", daemon.display());
    Some(ExitCode::FAILURE)
}

fn add(call: &AddRequest<'_>) -> Result<AddResult, CniError> {
    let config = Config::load(call.config, &call.env.args)?;
    let mut request = request(Operation::Acquire, Attachment::from(call));
    request.netns = absolute(call.sandbox.path())?;
    (request.families, request.options) = (config.families, config.options);
    request.rapid_commit = config.rapid_commit;
    request.wait = client::ACQUIRE.as_millis().try_into().unwrap_or_default();
    result::result_of(&client::ask(&config.socket, &request)?, config.priority)
}

/// Compares `prevResult` with the lease. Unlike the reference's CHECK it never asks the server for a lease.
fn check(call: &AddRequest<'_>) -> Result<(), CniError> {
    let config = Config::load(call.config, &call.env.args)?;
    let mut request = request(Operation::Show, Attachment::from(call));
    request.netns = absolute(call.sandbox.path())?;
    request.families = config.families;
    let result = prev_result(call)?;
    result::compare(&client::ask(&config.socket, &request)?, result, call.ifname)
}

fn del(call: &DelRequest<'_>) -> Result<(), CniError> {
    let socket = Config::socket(call.config);
    let request = request(Operation::Release, Attachment::from(call));
    match client::ask(&socket, &request) {
        Ok(_) => Ok(()),
        Err(client::Error::NoDaemon(_)) => client::forget(&socket, &request),
        Err(error) => Err(error.into()),
    }
}

/// Releases the leases of attachments that are not valid. Without a daemon there is nothing to do: when it starts, it
/// drops the leases whose namespace is gone.
fn gc(call: &GcRequest<'_>) -> Result<(), CniError> {
    let network = Attachment { network: call.config.name(), container_id: "", ifname: "" };
    let mut request = request(Operation::Collect, network);
    request.valid =
        call.valid.iter().map(|valid| (valid.container_id.clone(), valid.ifname.clone())).collect();
    match client::ask(&Config::socket(call.config), &request) {
        Ok(_) | Err(client::Error::NoDaemon(_)) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Checks the configuration, and that the daemon answers.
fn status(call: &StatusRequest<'_>) -> Result<(), CniError> {
    let unavailable = |error: CniError| CniError { code: Code::NotAvailable, ..error };
    let config = Config::load(call.config, "").map_err(unavailable)?;
    let network = Attachment { network: call.config.name(), container_id: "", ifname: "" };
    let asked = client::ask(&config.socket, &request(Operation::Ping, network));
    asked.map(drop).map_err(|error| unavailable(error.into()))
}

fn request(operation: Operation, attachment: Attachment<'_>) -> Request {
    let Attachment { network, container_id, ifname } = attachment;
    Request {
        ferrule_dhcp: wire::PROTOCOL,
        operation,
        key: Key {
            network: network.to_owned(),
            container_id: container_id.to_owned(),
            ifname: ifname.to_owned(),
        },
        ..Request::default()
    }
}

/// The daemon has another working directory.
fn absolute(path: &str) -> Result<String, CniError> {
    std::path::absolute(path)
        .map(|path| path.to_string_lossy().into_owned())
        .map_err(|error| CniError::internal(format!("failed to make {path:?} an absolute path: {error}")))
}
