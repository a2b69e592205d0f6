//! A rogue server: every field of its answers at its limits, in every state of a lease. The daemon takes what a container can
//! use and ignores the rest: the right answer counts nevertheless. Without one ADD fails, or the interface goes down when the
//! lease expires.

mod flood;
mod strangers;
mod table;

use cni_lab::testing::{is_up, with_prev};
use cni_lab::{TIMEOUT, eventually};
use serde_json::{Value, json};

use table::{Change, Draft, Phase, Table};

const ACK: u8 = 5;
const NAK: u8 = 6;

/// Its name, the expected end, and how the answer differs from the right one.
type Row<T> = (String, T, Change);

fn row<T>(name: &str, value: T, change: impl Fn(&mut Draft) + Send + Sync + 'static) -> Row<T> {
    let (name, change) = table::row(name, change);
    (name, value, change)
}

/// Answers that do not count, and what ADD says of them if no other comes.
fn worthless() -> Vec<Row<&'static str>> {
    let mut rows = vec![
        row("op of a client", "", |answer| answer.field(0, &[1])),
        row("htype 6", "", |answer| answer.field(1, &[6])),
        row("another transaction", "", |answer| answer.fixed[7] ^= 1),
        row("another MAC address", "", |answer| answer.fixed[33] ^= 1),
        row("no magic cookie", "", |answer| answer.field(236, &[0])),
        row("no message type", "", |answer| answer.remove(53)),
        row("message type over the end", "", |answer| answer.overrun(53)),
        row("server over the end", "without a valid server identifier", |answer| answer.overrun(54)),
        row("no server", "without a valid server identifier", |answer| answer.remove(54)),
        row("NAK of another server", "", |answer| {
            answer.set(53, &[NAK]);
            answer.set(54, &[10, 9, 0, 99]);
        }),
    ];
    for len in [0, 17, 255] {
        rows.push(row(&format!("hlen {len}"), "", move |answer| answer.field(2, &[len])));
    }
    for cut in [0, 1, 28, 34, 239, 240, 242] {
        rows.push(row(&format!("{cut} bytes"), "", move |answer| answer.cut = cut));
    }
    for kind in [0, 1, 3, 7, 255] {
        rows.push(row(&format!("message type {kind}"), "", move |answer| answer.set(53, &[kind])));
    }
    for (address, text) in [
        ([0; 4], "10.9.0.1 gives 0.0.0.0/24"),
        ([127, 0, 0, 1], "10.9.0.1 gives 127.0.0.1/24"),
        ([224, 0, 0, 1], "10.9.0.1 gives 224.0.0.1/24"),
        ([255; 4], "10.9.0.1 gives 255.255.255.255/24"),
        ([10, 9, 0, 0], "10.9.0.1 gives 10.9.0.0/24"),
        ([10, 9, 0, 255], "10.9.0.1 gives 10.9.0.255/24"),
        ([10, 9, 0, 1], "10.9.0.1 gives 10.9.0.1/24"),
    ] {
        rows.push(row(&format!("yiaddr {address:?}"), text, move |answer| answer.field(16, &address)));
    }
    for server in [&[0; 4][..], &[255; 4], &[127, 0, 0, 1], &[10, 9, 0], &[10, 9, 0, 1, 0]] {
        let text = "without a valid server identifier";
        rows.push(row(&format!("server {server:?}"), text, move |answer| answer.set(54, server)));
    }
    rows
}

#[test]
fn answers_that_do_not_count() {
    let rows = worthless();
    let texts: Vec<_> = rows.iter().map(|(_, text, _)| *text).collect();
    let table = Table::new(rows.into_iter().map(|(name, _, change)| (name, change)).collect());
    let (lab, conf) = (&table.lab, &table.conf);
    table.server.option(58, &1_u32.to_be_bytes());
    table.server.option(59, &20_u32.to_be_bytes());
    let mut daemon = lab.daemon(&["-resendtimeout", "4s"]);
    table.each(|number, name, attachment| {
        let (code, msg) = lab.ctx.fail("ADD", attachment, conf).pair();
        let start = "error calling DHCP.Allocate: no more tries";
        assert!(code == 11 && msg.starts_with(start) && msg.contains(texts[number]), "{name}: {code} {msg}");
        assert_eq!(msg == start, texts[number].is_empty(), "{name}: {msg}");
    });
    assert!(lab.files().is_empty());
    let log = table.server.log();
    assert!(!log.iter().any(|line| line.starts_with("Request")), "{log:?} {}", lab.log());
    daemon.end("TERM");
    let mut daemon = lab.daemon(&[]);
    table.set(Phase::Both);
    let results = table.each(|_, _, attachment| lab.ctx.add(attachment, conf));
    table.wait_for("lease renewed, 10.9.0.", 2);
    table.each(|number, _, attachment| lab.ctx.check(attachment, &with_prev(conf, &results[number])));
    table.set(Phase::ShortLease);
    table.wait_for("lease expired, bringing interface DOWN", 1);
    assert!(eventually(TIMEOUT, || lab.files().is_empty()));
    table.each(|number, name, attachment| {
        let error = lab.ctx.fail("CHECK", attachment, &with_prev(conf, &results[number]));
        error.expect(999, "no lease for one/net/e");
        assert!(!is_up(&table.pod, &attachment.ifname), "{name}");
    });
    table.set(Phase::Right);
    // The usual times: sixty renewals a second would keep a busy machine from DEL.
    [58, 59].into_iter().for_each(|code| table.server.option(code, &[]));
    table.each(|_, _, attachment| lab.ctx.add(attachment, conf));
    table.del();
    assert_eq!(daemon.end("TERM"), Some(0));
    assert!(!lab.log().contains("panicked"), "{}", lab.log());
}

/// What a lease says: from T1 to the expiry, in seconds, and the router.
fn says(file: &Value, seconds: u64, gateway: &Value) -> bool {
    let lease = &file["lease"];
    let time = |name: &str| lease[name].as_u64().unwrap();
    let left = time("expires_at") - time("renew_at");
    (left, &lease["settings"]["gateway"]) == (seconds * 1000, gateway)
}

/// Answers that count, with the lease that comes of them: from T1 to the expiry, and the router. Without a lease ADD fails.
fn usable() -> Vec<Row<Option<(u64, Value)>>> {
    const HOUR: [u8; 4] = 3600_u32.to_be_bytes();
    let seconds = |time: u32| time.to_be_bytes();
    let usual = || Some((1800, Value::Null));
    let mut rows = vec![
        row("no lease time", usual(), |answer| answer.remove(51)),
        row("two lease times", usual(), |answer| answer.set(51, &[0, 0, 0, 9, 0, 0, 0, 9, 9])),
        row("lease time 0xffffffff", Some((0, Value::Null)), |answer| answer.set(51, &[255; 4])),
        row("lease time 0xfffffffe", Some((0x7fff_ffff, Value::Null)), |answer| {
            answer.set(51, &[255, 255, 255, 254]);
        }),
        row("T1 > T2 > lease", usual(), move |answer| {
            answer.set(58, &seconds(9000));
            answer.set(59, &seconds(8000));
        }),
        row("T1 = T2 = lease", usual(), move |answer| {
            answer.set(58, &HOUR);
            answer.set(59, &HOUR);
        }),
        row("T1 = T2 = 0", usual(), move |answer| {
            answer.set(58, &seconds(0));
            answer.set(59, &seconds(0));
        }),
        row("an option over the end", usual(), |answer| answer.tail = vec![12, 255, b'h']),
        row("a code without a length", usual(), |answer| answer.tail = vec![3]),
        row("no end", usual(), |answer| answer.tail = vec![0; 900]),
        row("overloaded with junk", usual(), |answer| {
            answer.set(52, &[3]);
            answer.field(44, &[255; 64]);
            answer.field(108, &[7; 128]);
        }),
        row("router outside of the net", Some((1800, json!("192.0.2.1"))), |answer| {
            answer.set(3, &[192, 0, 2, 1]);
        }),
        row("the second router", Some((1800, json!("10.9.0.1"))), |answer| {
            answer.set(3, &[0, 0, 0, 0, 10, 9, 0, 1]);
        }),
    ];
    for router in [&[0; 4][..], &[255; 4], &[127, 0, 0, 1], &[224, 0, 0, 1], &[10, 9, 0], &[]] {
        rows.push(row(&format!("router {router:?}"), usual(), move |answer| answer.set(3, router)));
    }
    for mask in [&[0; 4][..], &[255, 0, 255, 0], &[255; 3], &[255; 5], &[]] {
        rows.push(row(&format!("mask {mask:?}"), None, move |answer| answer.set(1, mask)));
    }
    rows.push(row("no mask", None, |answer| answer.remove(1)));
    rows
}

#[test]
fn answers_at_their_limits() {
    let mut expected = Vec::new();
    let rows = usable().into_iter().map(|(name, lease, change)| {
        expected.push(lease);
        (name, change)
    });
    let table = Table::new(rows.collect());
    let (lab, conf) = (&table.lab, &table.conf);
    let mut daemon = lab.daemon(&[]);
    table.each(|number, name, attachment| {
        let Some((seconds, gateway)) = &expected[number] else {
            let text = "error calling DHCP.Allocate: DHCP option Subnet Mask not found in DHCPACK";
            let error = lab.ctx.fail("ADD", attachment, conf).pair();
            assert_eq!(error, (999, text.to_owned()), "{name}");
            return;
        };
        let result = lab.ctx.add(attachment, conf);
        let file = lab.file(attachment);
        assert!(says(&file, *seconds, gateway), "{name}: {file}");
        assert!(result["ips"][0]["address"].as_str().unwrap().ends_with("/24"), "{name}: {result}");
    });
    let with_lease = expected.iter().flatten().count();
    assert!(eventually(TIMEOUT, || table.server.leased().len() == with_lease), "{}", lab.log());
    assert_eq!(lab.files().len(), with_lease);
    // A container that has a lease keeps it, also with the answers that are too little for ADD.
    table.set(Phase::Right);
    table.each(|number, _, attachment| {
        if expected[number].is_none() {
            lab.ctx.add(attachment, conf);
        }
    });
    table.set(Phase::Forged);
    daemon.end("KILL");
    table.each(|_, _, attachment| lab.rewrite(attachment, &["renew_at"]));
    let mut daemon = lab.daemon(&[]);
    table.wait_for("lease renewed, 10.9.0.", 1);
    table.each(|number, name, attachment| {
        let (seconds, gateway) = expected[number].clone().unwrap_or((1800, Value::Null));
        let file = lab.file(attachment);
        assert!(says(&file, seconds, &gateway), "{name}: {file}");
    });
    table.del();
    assert_eq!(daemon.end("TERM"), Some(0));
    assert!(!lab.log().contains("panicked"), "{}", lab.log());
}
