//! Makes the tap device, with an SELinux label if the configuration has one.

use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode, Stdio};

use cni_common::netns::Netns;
use cni_common::remark;
use cni_common::spec::{CniError, Context as _};
use ferrule_kernel::tun::{self, Tap};
use ferrule_kit::netns::enter;

use crate::config::Conf;

/// The first argument of the program that makes a device with a label.
const MAKE: &str = "make-tap";

/// Makes the device in the container.
pub fn make(netns: &Netns, conf: &Conf, ifname: &str) -> Result<(), CniError> {
    let Conf { owner, group, multi_queue, .. } = *conf;
    let tap = Tap { name: ifname.to_owned(), owner, group, multi_queue };
    let failed = || "failed to create tap";
    enter(netns, || match conf.selinux_context.as_str() {
        "" => tap.make().context(failed),
        label => make_labelled(&tap, label).map_err(|why| CniError::internal(format!("{}: {why}", failed()))),
    })
}

/// Starts this program again with the label: the kernel labels a device like the process that makes it.
fn make_labelled(tap: &Tap, label: &str) -> Result<(), String> {
    tun::label_next_program(label).map_err(|error| format!("failed set socket label: {error}"))?;
    let id = |id: Option<u32>| id.map_or_else(String::new, |id| id.to_string());
    let child = Command::new("/proc/self/exe")
        .arg0("tap")
        .args([MAKE, &tap.name, &id(tap.owner), &id(tap.group), &tap.multi_queue.to_string()])
        .env_clear()
        .stdin(Stdio::null())
        .output();
    // The next program that this thread starts is the IPAM plugin.
    let unlabelled = tun::label_next_program("");
    let output = child.map_err(|error| format!("start a program with the label {label:?}: {error}"))?;
    unlabelled.map_err(|error| format!("remove the label: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() { Ok(()) } else { Err(said.trim().to_owned()) }
}

/// Makes the device for [`make`], with the label. `None` for other arguments.
pub fn tool(arguments: &[String]) -> Option<ExitCode> {
    let [verb, name, owner, group, multi_queue] = arguments else { return None };
    if verb != MAKE {
        return None;
    }
    let (owner, group) = (owner.parse().ok(), group.parse().ok());
    let made = Tap { name: name.clone(), owner, group, multi_queue: multi_queue == "true" }.make();
    Some(made.map_or_else(
        |error| {
            remark!("{error}");
            ExitCode::FAILURE
        },
        |()| ExitCode::SUCCESS,
    ))
}
