//! A node with a bridge, containers on it, the plugin and the daemon.

use std::fs;
use std::io::{self, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::process::Command;

use cni_lab::testing::{Origin, PluginDir, TestContext, network_config, overlay};
use cni_lab::{Background, Place as _, Pod, TIMEOUT, eventually};
use cni_runner::Attachment;
use serde_json::{Value, json};

pub(crate) const DAEMON: &str = env!("CARGO_BIN_EXE_ferrule-dhcp");
pub(crate) const SOCKET: &str = "/run/cni/dhcp.sock";
const LEASES: &str = "/run/cni/dhcp.leases";

/// A node with the bridge `br0`, which has the address 10.9.0.1/24.
pub(crate) struct Lab {
    pub(crate) ctx: TestContext,
    log: tempfile::NamedTempFile,
}

impl Lab {
    pub(crate) fn new() -> Lab {
        let ctx = TestContext::new(PluginDir::installed(Origin::Ours, "dhcp"));
        let bridge = "ip link add br0 type bridge; ip addr add 10.9.0.1/24 dev br0; ip link set br0 up";
        ctx.node.sh(bridge).unwrap();
        Lab { ctx, log: tempfile::NamedTempFile::new().unwrap() }
    }

    /// Starts the daemon with these flags and waits until it answers.
    pub(crate) fn daemon(&self, flags: &[&str]) -> Daemon {
        self.daemon_under("", flags)
    }

    /// Starts the daemon by this command, such as strace.
    pub(crate) fn daemon_under(&self, wrapper: &str, flags: &[&str]) -> Daemon {
        let mut command = Command::new("sh");
        let script = format!("exec {wrapper} {DAEMON} {} 2>>{}", flags.join(" "), self.log.path().display());
        command.args(["-c", &script]);
        let process = self.ctx.node.spawn(command).unwrap();
        assert!(eventually(TIMEOUT, || self.answers()), "the daemon does not start: {}", self.log());
        Daemon { process }
    }

    /// Whether a daemon answers, here to a line that is no request. It listens before it has written its files and before it
    /// handles signals, so a connection alone says too little.
    pub(crate) fn answers(&self) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = UnixStream::connect(SOCKET)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(b"?\n\n")?;
            Ok(stream.read(&mut [0])? > 0)
        };
        self.ctx.node.run(|| ask().unwrap_or(false)).unwrap()
    }

    /// What the daemon answers to this line.
    pub(crate) fn ask(&self, line: &str) -> Value {
        let ask = || -> io::Result<String> {
            let mut stream = UnixStream::connect(SOCKET)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.write_all(format!("{line}\n").as_bytes())?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        serde_json::from_str(&self.ctx.node.run(ask).unwrap().unwrap()).unwrap()
    }

    /// What the daemon has said.
    pub(crate) fn log(&self) -> String {
        fs::read_to_string(self.log.path()).unwrap()
    }

    /// Waits until the daemon says this.
    pub(crate) fn says(&self, text: &str) {
        assert!(eventually(TIMEOUT, || self.log().contains(text)), "not {text:?}: {}", self.log());
    }

    /// A container with the interface `eth0` on the bridge.
    pub(crate) fn pod(&self, name: &str) -> Pod {
        let pod = self.ctx.pod(name);
        let link = format!("ip link add v{name} master br0 up type veth peer name eth0 netns {name}");
        self.ctx.node.sh(&link).unwrap();
        pod
    }

    /// The names of the files in the folder of leases. A daemon that is killed while it writes leaves an unfinished one, which the next
    /// write replaces.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut names = self.ctx.node.list_dir(LEASES).unwrap();
        names.retain(|name| name != ".pending");
        names
    }

    /// The content of the lease's file of an attachment of network `net`.
    pub(crate) fn file(&self, attachment: &Attachment) -> Value {
        serde_json::from_str(&self.ctx.node.read_file(self.path(attachment)).unwrap()).unwrap()
    }

    /// Lets these times of a lease have come. No daemon runs meanwhile.
    pub(crate) fn rewrite(&self, attachment: &Attachment, times: &[&str]) {
        let mut file = self.file(attachment);
        for time in times {
            file["lease"][time] = json!(1);
        }
        self.ctx.node.write_file(self.path(attachment), &file.to_string()).unwrap();
    }

    pub(crate) fn path(&self, attachment: &Attachment) -> String {
        format!("{LEASES}/{}:{}:net", attachment.container_id, attachment.ifname)
    }

    /// Configures the leased addresses, as an interface plugin does.
    pub(crate) fn configure(&self, pod: &Pod, result: &Value) {
        for ip in result["ips"].as_array().unwrap() {
            let address = ip["address"].as_str().unwrap();
            let nodad = if address.contains(':') { "nodad" } else { "" };
            pod.sh(&format!("ip addr add {address} dev eth0 {nodad}")).unwrap();
        }
    }
}

/// A configuration of version 1.1.0 with more keys for `ipam`.
pub(crate) fn config(keys: &Value) -> Value {
    network_config("bridge", "1.1.0", &json!({"ipam": overlay(&json!({"type": "dhcp"}), keys)}))
}

/// A running daemon.
pub(crate) struct Daemon {
    process: Background,
}

impl Daemon {
    /// Sends a signal such as `KILL` and waits for the end. Returns the exit status.
    pub(crate) fn end(&mut self, signal: &str) -> Option<i32> {
        let pid = self.process.child().id().to_string();
        // It may have ended already.
        let _ = Command::new("kill").args([&format!("-{signal}"), &pid]).output().unwrap();
        self.wait()
    }

    /// Its process ID.
    pub(crate) fn pid(&mut self) -> u32 {
        self.process.child().id()
    }

    /// Waits for the end.
    pub(crate) fn wait(&mut self) -> Option<i32> {
        self.process.child().wait().unwrap().code()
    }

    /// How many descriptors and threads the process has.
    pub(crate) fn size(&mut self) -> (usize, usize) {
        let pid = self.process.child().id();
        let count = |what: &str| fs::read_dir(format!("/proc/{pid}/{what}")).unwrap().count();
        (count("fd"), count("task"))
    }
}
