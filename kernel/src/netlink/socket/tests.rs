use std::time::Instant;

use cni_lab::testing::isolated;

use super::super::link;
use super::*;

#[test]
fn a_dump_that_stays_interrupted_is_no_whole_dump() {
    let after = |interruptions: u32, must_be_whole| {
        let mut tries = 1;
        let again = || {
            tries += 1;
            (Ok(vec![vec![1]]), tries <= interruptions)
        };
        (repeated(again, must_be_whole).map(|bodies| bodies.len()).map_err(|error| error.errno), tries)
    };
    assert_eq!((after(1, true), after(4, true)), ((Ok(1), 2), (Ok(1), 5)));
    assert_eq!((after(5, true), after(5, false)), ((Err(Errno::EINTR), 5), (Ok(1), 5)));
}

/// The kernel drops a batch with two BATCH_BEGIN without any answer.
#[test]
fn a_missing_answer_is_an_error() {
    let (error, waited) = isolated(|| {
        let begin = || Message::new(0x10, 0, &[0, 0, 0, 10]);
        let started = Instant::now();
        let error = Socket::netfilter().unwrap().batch(begin(), vec![begin()], begin()).unwrap_err().error;
        (error, started.elapsed())
    });
    assert!(error.is_answer_lost() && waited >= NO_ANSWER_WAIT, "{error} after {waited:?}");
    let text = "the kernel's answer is lost: connection timed out (no answer within 1s)";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_dump_that_is_not_received_keeps_others_out_until_it_is_drained() {
    isolated(|| {
        let mut socket = Socket::route().unwrap();
        let list = link::list(None);
        socket.send(&list.clone().finish(100, 0).unwrap()).unwrap();
        assert_eq!(socket.request(list.clone()).unwrap_err().errno, Errno::EBUSY);
        socket.send(&list.clone().finish(100, 0).unwrap()).unwrap();
        socket.drain();
        assert_eq!(socket.request(list).unwrap().len(), 1);
    });
}

/// A container has as many objects as it likes.
#[test]
fn a_dump_ends_with_the_budget_of_the_container() {
    use std::process::Command;

    use crate::budget::{Budget, within};
    use crate::ip::IpFamily;
    use crate::netlink::route::MAIN_TABLE;

    isolated(|| {
        let script = "ip link set lo up; for i in $(seq 2000); do
            echo \"route add 10.$((i / 250)).$((i % 250)).0/24 dev lo\"; done | ip -batch -";
        assert!(Command::new("sh").args(["-c", script]).status().unwrap().success());
        let open = || Socket::route().unwrap().of_container();
        let whole = Budget { time: Duration::from_secs(60), bytes: 1 << 20 };
        let mut visited = 0;
        let mut left = whole;
        within(&mut left, || open().visit_routes(IpFamily::V4, MAIN_TABLE, None, &mut |_| visited += 1))
            .unwrap();
        assert_eq!((visited, left.bytes), (2000, whole.bytes), "visited routes are not kept");
        assert!(left.time < whole.time);
        assert_eq!(within(&mut left, || open().routes(IpFamily::V4, MAIN_TABLE)).unwrap().len(), 2000);
        let used = whole.bytes - left.bytes;
        assert!(used > 2000 * 44, "{used}");
        for mut little in
            [Budget { bytes: used / 2, ..whole }, Budget { time: Duration::from_nanos(1), ..whole }]
        {
            let mut socket = open();
            let mut list = || within(&mut little, || socket.routes(IpFamily::V4, MAIN_TABLE)).unwrap_err();
            let text = "no buffer space available (the container has too much to list)";
            assert_eq!((list().to_string(), list().to_string()), (text.to_owned(), text.to_owned()));
            let of_host = within(&mut little, || Socket::route().unwrap().routes(IpFamily::V4, MAIN_TABLE));
            assert_eq!(of_host.unwrap().len(), 2000, "the host has no budget");
        }
        assert_eq!(open().routes(IpFamily::V4, MAIN_TABLE).unwrap().len(), 2000, "without a budget");
    });
}
