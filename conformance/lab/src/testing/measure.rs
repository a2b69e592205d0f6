//! Measurements that load on the machine can spoil.

use std::fmt::Debug;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use crate::{Place, TIMEOUT, repeated};

/// The pause before a repetition: other work on the machine seldom takes only a moment.
const PAUSE: Duration = Duration::from_secs(2);

/// Measures until the value is good, at most `most` times, and returns the last value. Other work on the
/// machine makes single measurements worse; a defect makes all of them bad. The closing lines of `./test.sh`
/// count the repetitions.
pub fn measure<T: Debug>(
    what: &str,
    most: usize,
    is_good: impl Fn(&T) -> bool,
    measure: impl FnMut() -> T,
) -> T {
    let pause = |value: &T| {
        repeated(format_args!("{what}: {value:?}"));
        thread::sleep(PAUSE);
    };
    until_good(most, is_good, measure, pause)
}

/// The time of one TCP connection: the lowest of three medians of 101 connections.
pub fn connect_time(from: &impl Place, to: SocketAddr) -> Duration {
    let connect = || {
        let began = Instant::now();
        let stream = TcpStream::connect_timeout(&to, TIMEOUT).unwrap();
        let time = began.elapsed();
        drop(stream);
        time
    };
    let median = || {
        let mut times: Vec<Duration> = (0..101).map(|_| connect()).collect();
        times.sort();
        times[50]
    };
    from.run(|| (0..3).map(|_| median()).min().unwrap()).unwrap()
}

fn until_good<T>(
    most: usize,
    is_good: impl Fn(&T) -> bool,
    mut measure: impl FnMut() -> T,
    mut before_repetition: impl FnMut(&T),
) -> T {
    let mut value = measure();
    for _ in 1..most {
        if is_good(&value) {
            break;
        }
        before_repetition(&value);
        value = measure();
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn measures_until_the_value_is_good_and_says_each_repetition() {
        for (most, last, said) in [(5, 3, vec![1, 2]), (2, 2, vec![1]), (1, 1, vec![])] {
            let (mut values, mut repeated) = (1.., Vec::new());
            let value = until_good(
                most,
                |value| *value == 3,
                || values.next().unwrap(),
                |value| repeated.push(*value),
            );
            assert_eq!((value, repeated), (last, said));
        }
    }
}
