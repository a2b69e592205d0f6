//! Debian's firewalld on a node, with a system bus of its own.

use std::fs;
use std::process::Command;

use crate::{Background, Node, Place as _, TIMEOUT, eventually};

/// A system bus on a node, and firewalld behind it. Both end with the value.
#[derive(Debug)]
pub struct Firewalld {
    node: Node,
    bus: Background,
    daemon: Option<Background>,
}

impl Firewalld {
    /// Starts the bus and firewalld. The packages are `dbus` and `firewalld`.
    pub fn start(node: &Node) -> Firewalld {
        let mut firewalld = Firewalld::only_bus(node);
        firewalld.start_daemon();
        firewalld
    }

    /// Starts only the bus.
    pub fn only_bus(node: &Node) -> Firewalld {
        node.run(|| fs::create_dir_all("/run/dbus")).unwrap().unwrap();
        let mut command = Command::new("dbus-daemon");
        command.args(["--system", "--nofork", "--nopidfile"]);
        let bus = node.spawn(command).unwrap();
        let is_there = || node.run(|| fs::exists("/run/dbus/system_bus_socket").unwrap()).unwrap();
        assert!(eventually(TIMEOUT, is_there), "dbus-daemon does not listen");
        Firewalld { node: node.clone(), bus, daemon: None }
    }

    /// Starts firewalld, and waits until it has written its rules.
    pub fn start_daemon(&mut self) {
        let mut command = Command::new("firewalld");
        command.args(["--nofork", "--nopid", "--log-file", "/run/firewalld.log"]);
        self.daemon = Some(self.node.spawn(command).unwrap());
        let is_running = || self.node.sh("firewall-cmd --state").is_ok();
        assert!(eventually(TIMEOUT, is_running), "{:?}", self.node.read_file("/run/firewalld.log"));
    }

    /// Ends firewalld, which removes its rules, and starts it again, as systemd does.
    pub fn restart_daemon(&mut self) {
        let mut daemon = self.daemon.take().expect("firewalld runs");
        self.node.tool("kill", &["-TERM", &daemon.id().to_string()]).unwrap();
        assert!(
            eventually(TIMEOUT, || daemon.child().try_wait().unwrap().is_some()),
            "firewalld does not end"
        );
        self.start_daemon();
    }

    /// Kills firewalld; its rules and the bus stay.
    pub fn stop_daemon(&mut self) {
        self.daemon = None;
    }

    /// The process of the bus.
    pub fn bus_pid(&mut self) -> u32 {
        self.bus.child().id()
    }

    /// Runs `firewall-cmd`, and returns its output.
    pub fn cmd(&self, arguments: &str) -> String {
        self.node.sh(&format!("firewall-cmd {arguments}")).unwrap().trim().to_owned()
    }
}
