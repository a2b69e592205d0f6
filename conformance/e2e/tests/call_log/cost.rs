//! What the log costs when it is on.

use std::os::unix::net::UnixDatagram;
use std::time::Duration;
use std::{fs, thread};

use cni_lab::Place as _;
use cni_lab::testing::{TestContext, host_local, network_config, with_prev};
use serde_json::json;

use crate::fixture::{node, with_log};

const VALUES: [&str; 3] = ["off", "/run/calls", "journald"];
const ROUNDS: usize = 1000;

/// Prints the figures that README.md has: the median of each value of the variable, whose calls take turns.
#[test]
#[ignore = "benchmark: cargo test -p ferrule-e2e --test call_log cost -- --ignored --nocapture"]
fn of_a_call() {
    let loopback = node("loopback");
    let attachment = loopback.pod("call-log-cost").attachment("lo");
    compare(&loopback, "ADD", &attachment, &network_config("loopback", "1.0.0", &json!({})));
    let bridge = node("bridge");
    let attachment = bridge.pod("call-log-cost").attachment("eth0");
    let conf = network_config(
        "bridge",
        "1.0.0",
        &json!({"isGateway": true, "ipMasq": true, "ipam": host_local(&["10.1.0.0/24"])}),
    );
    let conf = with_prev(&conf, &bridge.add(&attachment, &conf));
    compare(&bridge, "CHECK", &attachment, &conf);
}

fn compare(ctx: &TestContext, verb: &str, attachment: &cni_runner::Attachment, conf: &serde_json::Value) {
    let bind = || {
        fs::create_dir_all("/run/systemd/journal").unwrap();
        UnixDatagram::bind("/run/systemd/journal/socket").unwrap()
    };
    let journal = ctx.node.run(bind).unwrap();
    let mut entry = vec![0; 64 * 1024];
    thread::spawn(move || while journal.recv(&mut entry).is_ok() {});
    let execs = VALUES.map(|value| {
        let mut exec = with_log(ctx, value).exec(verb, attachment, conf);
        // With a limit the runner polls for the plugin's end.
        exec.timeout = None;
        exec
    });
    let mut times: [Vec<Duration>; VALUES.len()] = Default::default();
    let measure = || {
        for _ in 0..ROUNDS {
            for (exec, times) in execs.iter().zip(&mut times) {
                let output = exec.run().unwrap();
                assert!(output.success(), "{}", output.stderr_text());
                times.push(output.wall);
            }
        }
    };
    ctx.node.run(measure).unwrap();
    let medians = times.map(|mut times| {
        times.sort();
        times[ROUNDS / 2]
    });
    for (value, median) in VALUES.iter().zip(medians) {
        println!(
            "{verb} of {}: {value:12} {median:?}, {:?} more",
            ctx.plugin.display(),
            median.saturating_sub(medians[0])
        );
    }
}
