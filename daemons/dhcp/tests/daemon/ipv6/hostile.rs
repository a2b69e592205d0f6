//! A rogue server: every field of its answers at its limits.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cni_lab::testing::{is_up, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};
use serde_json::json;

use super::{file6, only_ipv6, rewrite6};
use crate::lab::Lab;
use crate::server6::Server;

/// Where an option with this code begins in a message. Those of a test's answers occur once.
fn at(bytes: &[u8], code: u16) -> usize {
    let mut at = 4;
    while u16::from_be_bytes([bytes[at], bytes[at + 1]]) != code {
        at += 4 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    }
    at
}

fn write(bytes: &mut [u8], at: usize, content: &[u8]) {
    bytes[at..at + content.len()].copy_from_slice(content);
}

const CLIENT: u16 = 1;
const SERVER: u16 = 2;
const IA: u16 = 3;
/// From the beginning of the IA: its identity, its times, its address, and that one's lifetimes.
const IAID: usize = 4;
const TIMES: usize = 8;
const ADDRESS: usize = 20;
const LIFETIMES: usize = 36;

type Change = fn(&mut Vec<u8>);

/// Answers that do not count, and what ADD says of them if no other comes.
const WORTHLESS: [(&str, &str, Change); 16] = [
    ("another transaction", "", |bytes| bytes[3] ^= 1),
    ("a client's message", "", |bytes| bytes[0] = 1),
    ("an unknown type", "", |bytes| bytes[0] = 255),
    ("nothing", "", |bytes| bytes.clear()),
    ("three bytes", "", |bytes| bytes.truncate(3)),
    ("no options", "", |bytes| bytes.truncate(4)),
    ("another client", "", |bytes| {
        let at = at(bytes, CLIENT);
        bytes[at + 10] ^= 1;
    }),
    ("a client over the end", "", |bytes| {
        let at = at(bytes, CLIENT);
        write(bytes, at + 2, &[255, 255]);
    }),
    ("a server without a name", "", |bytes| {
        let at = at(bytes, SERVER);
        bytes.drain(at + 4..at + 14);
        write(bytes, at + 2, &[0, 0]);
    }),
    ("another IA", "gives no address", |bytes| {
        let at = at(bytes, IA);
        bytes[at + IAID] ^= 1;
    }),
    ("T1 > T2", "gives no address", |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + TIMES, &[0, 0, 0, 9, 0, 0, 0, 8]);
    }),
    ("preferred > valid", "gives no address", |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + LIFETIMES, &[0, 0, 0, 9, 0, 0, 0, 8]);
    }),
    ("lifetimes of zero", "which no container can have", |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + LIFETIMES, &[0; 8]);
    }),
    ("a multicast address", "gives ff", |bytes| {
        let at = at(bytes, IA);
        bytes[at + ADDRESS] = 0xff;
    }),
    ("no address", "gives ::, which no container can have", |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + ADDRESS, &[0; 16]);
    }),
    ("a refusal", "answers Other(2): full\\u{1b}", |bytes| {
        bytes.extend([0, 13, 0, 7, 0, 2, b'f', b'u', b'l', b'l', 0x1b]);
    }),
];

#[test]
fn answers_that_do_not_count() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let mut daemon = lab.daemon(&["-resendtimeout", "1s"]);
    let pod = lab.pod("one");
    let attachment = pod.attachment("eth0");
    for (name, text, change) in WORTHLESS {
        server.forge(move |_, mut right| {
            change(&mut right);
            vec![right.clone(), right]
        });
        let (code, msg) = lab.ctx.fail("ADD", &attachment, &only_ipv6()).pair();
        let start = "error calling DHCP.Allocate: no more tries for an IPv6 address";
        assert!(code == 11 && msg.starts_with(start) && msg.contains(text), "{name}: {code} {msg}");
        assert_eq!(msg == start, text.is_empty(), "{name}: {msg}");
        assert!(!server.log().contains(&"Request".to_owned()), "{name}");
    }
    assert!(lab.files().is_empty());
    daemon.end("TERM");
    // All of them before each right answer with an address, at ADD and at T1. The last one is a refusal: it ends an exchange.
    server.forge(|_, right| {
        let rows = if at_ia(&right).is_some() { &WORTHLESS[..WORTHLESS.len() - 1] } else { &[] };
        let forged = rows.iter().map(|(_, _, change)| {
            let mut forged = right.clone();
            change(&mut forged);
            forged
        });
        forged.chain([right.clone()]).collect()
    });
    let mut daemon = lab.daemon(&[]);
    let result = lab.ctx.add(&attachment, &only_ipv6());
    daemon.end("KILL");
    rewrite6(&lab, &attachment, &["renew_at"]);
    let mut daemon = lab.daemon(&[]);
    assert!(
        eventually(TIMEOUT, || file6(&lab, &attachment)["lease"]["renew_at"] != json!(1)),
        "{}",
        lab.log()
    );
    lab.ctx.check(&attachment, &with_prev(&only_ipv6(), &result));
    lab.ctx.del(&attachment, &only_ipv6());
    assert_eq!(daemon.end("TERM"), Some(0));
    assert!(!lab.log().contains("panicked"), "{}", lab.log());
}

/// The IA, if the answer has one.
fn at_ia(bytes: &[u8]) -> Option<usize> {
    let mut at = 4;
    while at + 4 <= bytes.len() {
        if bytes[at..at + 2] == IA.to_be_bytes() {
            return Some(at);
        }
        at += 4 + usize::from(u16::from_be_bytes([bytes[at + 2], bytes[at + 3]]));
    }
    None
}

/// Answers that count: from T1 to the expiry in seconds.
const USABLE: [(&str, u64, Change); 6] = [
    ("usual times", 1800, |_| {}),
    ("times for ever", 1800, |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + TIMES, &[255; 8]);
    }),
    ("lifetimes for ever", 0, |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + LIFETIMES, &[255; 8]);
    }),
    ("the longest lifetimes", 0x7fff_ffff, |bytes| {
        let at = at(bytes, IA);
        write(bytes, at + LIFETIMES, &[255, 255, 255, 254, 255, 255, 255, 254]);
    }),
    ("thousands of options", 1800, |bytes| (0..400).for_each(|_| bytes.extend([0, 23, 0, 0]))),
    ("an option over the end", 1800, |bytes| bytes.extend([0, 23, 255, 255, 1])),
];

#[test]
fn answers_at_their_limits() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let attachment = pod.attachment("eth0");
    for (name, seconds, change) in USABLE {
        server.forge(move |_, mut right| {
            if at_ia(&right).is_some() {
                change(&mut right);
            }
            vec![right]
        });
        lab.ctx.add(&attachment, &only_ipv6());
        let lease = &file6(&lab, &attachment)["lease"];
        let time = |name: &str| lease[name].as_u64().unwrap();
        let left = time("expires_at") - time("renew_at");
        assert!(left.abs_diff(seconds * 1000) <= 1000, "{name}: {lease}");
        lab.ctx.del(&attachment, &only_ipv6());
    }
}

/// Messages faster than the daemon reads them, with random content behind the type of an answer.
#[test]
fn a_flood_at_add_and_at_t1() {
    let lab = Lab::new();
    let server = Server::start(&lab, 3600);
    let _daemon = lab.daemon(&["-resendtimeout", "30s"]);
    let [pod, calm] = ["one", "calm"].map(|name| lab.pod(name));
    pod.sh("ip link set eth0 up").unwrap();
    let own = || pod.sh("ip -6 -o addr show dev eth0 scope link -tentative").unwrap();
    assert!(eventually(TIMEOUT, || own().contains("fe80")));
    let own = own().split_whitespace().find(|word| word.starts_with("fe80")).unwrap().to_owned();
    let to = format!("[{}%br0]:546", own.trim_end_matches("/64"));
    let socket = lab.ctx.node.run(|| UdpSocket::bind("[::]:0")).unwrap().unwrap();
    let index = lab.ctx.node.run(|| nix::net::if_::if_nametoindex("br0").unwrap()).unwrap();
    let to = to.replace("%br0", &format!("%{index}")).parse::<std::net::SocketAddr>().unwrap();
    let (stop, sent) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                let mut message = [0; 600].map(|_: u8| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 56) as u8
                });
                message[0] = 7;
                sent.fetch_or(socket.send_to(&message, to).is_ok(), Ordering::Relaxed);
            }
        });
        let work = std::panic::AssertUnwindSafe(|| {
            assert!(eventually(TIMEOUT, || sent.load(Ordering::Relaxed)));
            let flooded = lab.ctx.call("ADD", &pod.attachment("eth0"), &only_ipv6());
            let said = flooded.stdout_text();
            assert!(flooded.success() || said.contains("DHCP.Allocate: no more tries"), "{said}");
            lab.ctx.add(&calm.attachment("eth0"), &only_ipv6());
            lab.ctx.del(&pod.attachment("eth0"), &only_ipv6());
        });
        let outcome = std::panic::catch_unwind(work);
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    assert!(is_up(&pod, "eth0") && server.leased().len() == 2, "{:?} {}", server.leased(), lab.log());
    // Nothing is said of each packet.
    assert!(lab.log().lines().count() < 200, "{}", lab.log());
}
