//! journald and syslog: sockets of the test in their places.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;

use cni_lab::testing::{Expect as _, TestContext, network_config};
use cni_lab::{Place as _, TIMEOUT};
use serde_json::{Value, json};

use crate::fixture::{node, with_log};

const JOURNALD: &str = "/run/systemd/journal/socket";
const SYSLOG: &str = "/dev/log";

fn socket(ctx: &TestContext, path: &str) -> UnixDatagram {
    let bind = || {
        fs::create_dir_all(Path::new(path).parent().unwrap()).unwrap();
        UnixDatagram::bind(path).unwrap()
    };
    let socket = ctx.node.run(bind).unwrap();
    socket.set_read_timeout(Some(TIMEOUT)).unwrap();
    socket
}

fn receive(socket: &UnixDatagram) -> String {
    let mut bytes = vec![0; 64 * 1024];
    let length = socket.recv(&mut bytes).unwrap();
    String::from_utf8(bytes[..length].to_vec()).unwrap()
}

/// Makes an ADD that succeeds and one that fails. Returns the fields of the lines: `[verb, error code]`.
fn make_calls(ctx: &TestContext) -> [Value; 2] {
    let attachment = ctx.pod("call-log-socket").attachment("lo");
    ctx.add(&attachment, &network_config("loopback", "1.0.0", &json!({})));
    let error = ctx.fail("ADD", &attachment, &network_config("loopback", "9.9.9", &json!({})));
    [json!(["ADD", null]), json!(["ADD", error.code])]
}

fn fields(line: &str) -> Value {
    let line: Value = serde_json::from_str(line).unwrap();
    json!([line["verb"], line["error"]["code"]])
}

#[test]
fn journald() {
    let ctx = with_log(&node("loopback"), "journald");
    let journal = socket(&ctx, JOURNALD);
    for (expected, priority) in make_calls(&ctx).iter().zip([6, 3]) {
        let entry = receive(&journal);
        let head = format!("SYSLOG_IDENTIFIER=ferrule\nPRIORITY={priority}\nMESSAGE=");
        let message = entry.strip_prefix(&head).and_then(|rest| rest.strip_suffix('\n'));
        assert_eq!(&fields(message.unwrap_or_else(|| panic!("{entry}"))), expected);
    }
}

#[test]
fn syslog() {
    let ctx = with_log(&node("loopback"), "syslog");
    ctx.node
        .sh("touch /run/null && mount --bind /dev/null /run/null && mount -t tmpfs tmpfs /dev
            touch /dev/null && mount --move /run/null /dev/null")
        .unwrap();
    let daemon = socket(&ctx, SYSLOG);
    for (expected, priority) in make_calls(&ctx).iter().zip([30, 27]) {
        let message = receive(&daemon);
        let (head, line) = message.split_once(": ").unwrap();
        assert_eq!(&fields(line), expected);
        let pid = serde_json::from_str::<Value>(line).unwrap()["pid"].clone();
        assert_eq!(head, format!("<{priority}>ferrule[{pid}]"));
    }
}

/// A daemon that does not read makes no call wait.
#[test]
fn a_full_queue() {
    let ctx = with_log(&node("loopback"), "journald");
    let journal = socket(&ctx, JOURNALD);
    let sender = UnixDatagram::unbound().unwrap();
    sender.set_nonblocking(true).unwrap();
    let fill = || while sender.send_to(b"x", JOURNALD).is_ok() {};
    ctx.node.run(fill).unwrap();
    let attachment = ctx.pod("call-log-queue").attachment("lo");
    let output = ctx.call("ADD", &attachment, &network_config("loopback", "1.0.0", &json!({})));
    output.result();
    assert!(output.stderr_text().contains("the call is not logged"), "{}", output.stderr_text());
    drop(journal);
}
