//! Packets that pass the filter of the socket, faster than the daemon reads them.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use cni_lab::testing::{is_up, with_prev};
use cni_lab::{Place as _, TIMEOUT, eventually};

use super::table::{Phase, Table, address};

/// Calls the function while answers with random content come to the first interface.
fn under_a_flood<T>(table: &Table, work: impl FnOnce() -> T) -> T {
    let socket = table.lab.ctx.node.run(|| UdpSocket::bind("10.9.0.1:0")).unwrap().unwrap();
    let (stop, sent) = (AtomicBool::new(false), AtomicBool::new(false));
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = 1_u64;
            while !stop.load(Ordering::Relaxed) {
                let mut message = [0; 600].map(|_: u8| {
                    random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    (random >> 56) as u8
                });
                // An answer, up to the message type: to this client, in another transaction.
                message[..3].copy_from_slice(&[2, 1, 6]);
                message[28..34].copy_from_slice(&[2, 0, 0, 0, 0, 0]);
                message[236..243].copy_from_slice(&[99, 130, 83, 99, 53, 1, 2]);
                sent.fetch_or(socket.send_to(&message, address(0)).is_ok(), Ordering::Relaxed);
            }
        });
        assert!(eventually(TIMEOUT, || sent.load(Ordering::Relaxed)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

#[test]
fn a_flood_at_add_and_at_t1() {
    let row = |name| super::table::row(name, |answer| answer.fixed[7] ^= 1);
    let table = Table::new(vec![row("flooded"), row("calm")]);
    let (lab, conf) = (&table.lab, &table.conf);
    let [flooded, calm] = [0, 1].map(|number| table.attachment(number));
    let _daemon = lab.daemon(&["-resendtimeout", "30s"]);
    table.set(Phase::Right);
    let result = under_a_flood(&table, || {
        thread::scope(|scope| {
            scope.spawn(|| {
                let output = lab.ctx.call("ADD", &flooded, conf);
                let said = output.stdout_text();
                assert!(output.success() || said.contains("DHCP.Allocate: no more tries"), "{said}");
            });
            lab.ctx.add(&calm, conf)
        })
    });
    lab.ctx.del(&flooded, conf);
    table.set(Phase::ShortLease);
    // Only from now on: the other lease must not be renewed in this phase.
    table.server.option(58, &1_u32.to_be_bytes());
    lab.ctx.add(&flooded, conf);
    under_a_flood(&table, || {
        lab.says("one/net/e0: lease expired, bringing interface DOWN");
        lab.ctx.check(&calm, &with_prev(conf, &result));
    });
    assert!(eventually(TIMEOUT, || !is_up(&table.pod, "e0")));
    assert!(is_up(&table.pod, "e1"));
    table.set(Phase::Right);
    lab.ctx.add(&flooded, conf);
    table.del();
    // Nothing is said of each packet.
    assert!(lab.log().lines().count() < 200, "{}", lab.log());
}
