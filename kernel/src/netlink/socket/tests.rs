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
