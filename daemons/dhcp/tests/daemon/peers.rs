//! Our plugin with the reference's daemon, and the reference's plugin with ours.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::thread;

use cni_lab::testing::{Origin, PluginDir};
use cni_lab::{Place as _, TIMEOUT, eventually, go_bin_dir};
use cni_runner::Attachment;
use serde_json::json;

use crate::lab::{Lab, SOCKET, config};

#[test]
fn our_plugin_with_the_references_daemon() {
    let lab = Lab::new();
    let mut command = Command::new(go_bin_dir().unwrap().join("dhcp"));
    command.args(["daemon", "-socketpath", SOCKET]);
    let _daemon = lab.ctx.node.spawn(command).unwrap();
    assert!(eventually(TIMEOUT, || lab.answers()));
    let pod = lab.pod("one");
    let text = "this is the daemon of the reference plugins; stop it and start ferrule-dhcp";
    for (verb, code) in [("ADD", 5), ("DEL", 5), ("GC", 5), ("STATUS", 50)] {
        lab.ctx.fail(verb, &pod.attachment("eth0"), &config(&json!({}))).expect(code, text);
    }
}

/// A daemon of before DHCPv6 does not know the key, and gives a lease of IPv4.
#[test]
fn our_plugin_with_an_older_daemon() {
    let lab = Lab::new();
    lab.ctx.node.sh("mkdir -p /run/cni").unwrap();
    let listener = lab.ctx.node.run(|| UnixListener::bind(SOCKET).unwrap()).unwrap();
    let daemon = thread::spawn(move || {
        let (stream, _) = listener.accept().unwrap();
        let mut line = String::new();
        BufReader::new(&stream).read_line(&mut line).unwrap();
        (&stream).write_all(b"{\"ferruleDhcp\":1,\"lease\":{\"address\":\"10.9.0.5/24\"}}\n").unwrap();
        line
    });
    let pod = lab.pod("one");
    let conf = config(&json!({"families": ["ipv4", "ipv6"]}));
    let error = lab.ctx.fail("ADD", &pod.attachment("eth0"), &conf);
    error.expect(
        5,
        "ferrule-dhcp has answered without a lease of Ipv6; restart it with the program of this release",
    );
    assert!(daemon.join().unwrap().contains(r#""families":["ipv4","ipv6"]"#));
}

#[test]
fn the_references_plugin_with_our_daemon() {
    let lab = Lab::new();
    let _daemon = lab.daemon(&[]);
    let reference = lab.ctx.with_plugins(PluginDir::installed(Origin::Reference, "dhcp"));
    let pod = lab.pod("one");
    let mut conf = config(&json!({}));
    conf["cniVersion"] = json!("1.0.0");
    for verb in ["ADD", "DEL"] {
        let output = reference.call(verb, &pod.attachment("eth0"), &conf);
        let said = output.stdout_text();
        let text = "501 this is ferrule-dhcp: install Ferrule's dhcp plugin, or start the reference's daemon";
        assert!(!output.success() && said.contains(text), "{said}");
    }
}

#[test]
fn the_daemon_of_the_one_program() {
    let lab = Lab::new();
    let built = cni_lab::bin_dir().unwrap().join("dhcp");
    // A folder without the daemon.
    let script = format!("cp {} /run/dhcp && /run/dhcp daemon -h", built.display());
    let said = lab.ctx.node.sh(&script).unwrap_err().to_string();
    assert!(said.contains("cannot start /run/ferrule-dhcp: No such file"), "{said}");
    // Programs installed from one build.
    let output = lab.ctx.node.exec(Command::new(built).args(["daemon", "-h"])).unwrap();
    assert!(output.status.success() && output.stdout.starts_with(b"ferrule-dhcp v"), "{output:?}");
}

#[test]
fn without_a_daemon() {
    let lab = Lab::new();
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let text = "error dialing DHCP daemon: dial unix /run/cni/dhcp.sock: connect: no such file or directory";
    lab.ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(999, text);
    let status = lab.ctx.fail("STATUS", &Attachment::default(), &conf);
    status.expect(50, text);
    status.expect(50, "systemctl enable --now cni-dhcp.socket");
    lab.ctx.succeed("GC", &Attachment::default(), &conf);
    lab.ctx.del(&pod.attachment("eth0"), &conf);
    // A socket of nobody, as a killed daemon leaves it.
    let bind = || drop(std::os::unix::net::UnixListener::bind(SOCKET).unwrap());
    lab.ctx.node.run(bind).unwrap();
    lab.ctx.fail("ADD", &pod.attachment("eth0"), &conf).expect(999, "connect: connection refused");
    lab.ctx.del(&pod.attachment("eth0"), &conf);
}
