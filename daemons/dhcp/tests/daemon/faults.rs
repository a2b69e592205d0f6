//! A network that loses, delays and duplicates, a server that refuses, and none at all.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cni_lab::{Place as _, TIMEOUT, eventually};
use dhcproto::v4::MessageType;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::json;

use crate::lab::{Lab, config};
use crate::server::{Reaction, Server};

#[test]
fn lost_delayed_duplicate_and_refused_messages() {
    use MessageType::{Discover, Request};
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&["-timeout", "200ms"]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    for (kind, reaction) in [
        (Discover, Reaction::Lose),
        (Discover, Reaction::Delay),
        (Discover, Reaction::Duplicate),
        (Request, Reaction::Lose),
        (Request, Reaction::Delay),
        (Request, Reaction::Duplicate),
        (Request, Reaction::Refuse),
    ] {
        server.rule(move |this, count| if this == kind && count == 1 { reaction } else { Reaction::Answer });
        let result = lab.ctx.add(&attachment, &conf);
        assert_eq!(
            result["ips"][0]["address"],
            json!(format!("{}/24", server.leased()[0])),
            "{kind:?} {reaction:?}"
        );
        lab.ctx.del(&attachment, &conf);
        server.wait_for(
            &format!("Release from {}", result["ips"][0]["address"].as_str().unwrap().replace("/24", "")),
            1,
        );
        assert!(server.leased().is_empty() && lab.files().is_empty(), "{kind:?} {reaction:?}");
        server.log();
    }
}

#[test]
fn a_network_that_loses_every_second_message() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&["-timeout", "100ms"]);
    server.rule(|_, count| if count % 2 == 1 { Reaction::Lose } else { Reaction::Answer });
    for number in 0..3 {
        let pod = lab.pod(&format!("p{number}"));
        lab.ctx.add(&pod.attachment("eth0"), &config(&json!({})));
    }
    assert_eq!(server.leased().len(), 3);
}

/// The daemon is kept from running while the answers come: it reads all of them before it asks again. On a busy machine it may have
/// been about to ask when it was stopped, but not twice.
#[test]
fn an_answer_behind_others_and_after_the_deadline() {
    const PAUSE: Duration = Duration::from_millis(1200);
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&[]);
    let pid = Pid::from_raw(daemon.pid().cast_signed());
    let asks_again = |name: &str| {
        let (mut stopped, repeated) = (None, Arc::new(AtomicBool::new(false)));
        let shared = Arc::clone(&repeated);
        server.forge(move |message, right| {
            let is_discover = message.opts().msg_type() == Some(MessageType::Discover);
            let since = *stopped.get_or_insert_with(|| {
                kill(pid, Signal::SIGSTOP).unwrap();
                thread::spawn(move || {
                    thread::sleep(PAUSE);
                    kill(pid, Signal::SIGCONT).unwrap();
                });
                Instant::now()
            });
            // What comes earlier has left before the daemon was stopped.
            if is_discover && since.elapsed() >= PAUSE {
                shared.store(true, Ordering::Relaxed);
            }
            // An answer that no container can use.
            let mut junk = right.clone();
            junk[16..20].fill(0);
            let all = if is_discover { vec![junk.clone(), junk, right] } else { vec![right] };
            all.into_iter().map(|bytes| (bytes, SocketAddr::from(([255; 4], 68)))).collect()
        });
        let pod = lab.pod(name);
        // Until then the kernel drops what goes in either direction.
        pod.sh("ip link set eth0 up").unwrap();
        let is_up = format!(
            "bridge link show dev v{name} | grep -q 'state forwarding' && ip link show br0 | grep -q 'state UP'"
        );
        assert!(eventually(TIMEOUT, || lab.ctx.node.sh(&is_up).is_ok()));
        lab.ctx.add(&pod.attachment("eth0"), &config(&json!({})));
        repeated.load(Ordering::Relaxed)
    };
    assert!(!asks_again("one") || !asks_again("two"), "{:?} {}", server.log(), lab.log());
}

/// The reference's tests compare the first text.
#[test]
fn failures_have_the_references_texts() {
    let lab = Lab::new();
    let _daemon = lab.daemon(&["-timeout", "100ms", "--resendmax=200ms", "-resendtimeout", "300ms"]);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let fail = |attachment, code, msg: &str| {
        let error = lab.ctx.fail("ADD", attachment, &conf);
        assert_eq!(error.pair(), (code, msg.to_owned()));
        assert!(lab.files().is_empty());
        lab.ctx.del(attachment, &conf);
    };
    fail(&attachment, 11, "error calling DHCP.Allocate: no more tries");
    let missing = pod.attachment("nope");
    fail(&missing, 999, r#"error calling DHCP.Allocate: error looking up "nope": Link not found"#);
    pod.sh("ip link set lo up").unwrap();
    let server = Server::start(&lab, 3600);
    server.option(1, &[]);
    fail(&attachment, 999, "error calling DHCP.Allocate: DHCP option Subnet Mask not found in DHCPACK");
    server.wait_for("Release from 10.9.0.10", 1);
    server.rule(|kind, _| if kind == MessageType::Request { Reaction::Refuse } else { Reaction::Answer });
    fail(&attachment, 11, "error calling DHCP.Allocate: no more tries");
    let mut gone = attachment.clone();
    gone.netns = "/run/netns/gone".to_owned();
    let msg = r#"error calling DHCP.Allocate: failed to Statfs "/run/netns/gone": no such file or directory"#;
    fail(&gone, 999, msg);
}

/// DEL does not wait for an ADD that still looks for a server.
#[test]
fn del_stops_a_running_add() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    server.rule(|_, _| Reaction::Lose);
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    std::thread::scope(|scope| {
        let add = scope.spawn(|| lab.ctx.fail("ADD", &attachment, &conf));
        server.wait_for("Discover from 0.0.0.0", 1);
        lab.ctx.del(&attachment, &conf);
        add.join().unwrap().expect(999, "the lease was released");
    });
    assert!(lab.files().is_empty());
}

/// The link goes while ADD looks for a server, which ends the search.
#[test]
fn a_link_that_goes_during_add() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    server.rule(|_, _| Reaction::Lose);
    let pod = lab.pod("one");
    thread::scope(|scope| {
        let add = scope.spawn(|| lab.ctx.fail("ADD", &pod.attachment("eth0"), &config(&json!({}))));
        server.wait_for("Discover from 0.0.0.0", 1);
        pod.sh("ip link del eth0").unwrap();
        add.join().unwrap().expect(999, "the link eth0 is gone");
    });
    assert!(lab.files().is_empty());
}

#[test]
fn two_adds_at_once_get_one_lease() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&["-timeout", "100ms"]);
    server.rule(|_, count| if count == 1 { Reaction::Lose } else { Reaction::Answer });
    let (pod, conf) = (lab.pod("one"), config(&json!({})));
    let attachment = pod.attachment("eth0");
    let results = std::thread::scope(|scope| {
        [(); 3].map(|()| scope.spawn(|| lab.ctx.add(&attachment, &conf))).map(|add| add.join().unwrap())
    });
    assert!(results.iter().all(|result| *result == results[0]) && server.leased().len() == 1);
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| lab.ctx.del(&attachment, &conf));
        }
    });
    server.wait_for("Release from 10.9.0.10", 1);
    assert_eq!(server.log().iter().filter(|line| line.starts_with("Release")).count(), 1);
}
