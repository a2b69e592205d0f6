//! Computes the parameters of a token bucket filter (tbf) from a rate and a burst.
//!
//! The bucket holds the burst. As in the reference, the queue holds 25 ms of the rate plus the burst. The
//! queue drops what does not fit, so its length is the delay of a busy container. Three problems of this in
//! the field are corrected:
//!
//! * Kubernetes has no setting for the burst, so runtimes send the largest number they can. With the
//!   reference, hundreds of megabytes pass unshaped, and as many are queued; or the sum wraps, and nothing
//!   passes. Here [`UNLIMITED`] bursts become [`BURST_MS`] of the rate, and any burst adds at most
//!   [`QUEUE_MS`] of the rate to the queue.
//! * A bucket smaller than a frame never passes one, and a very small bucket is full before the kernel's next
//!   timer. The bucket holds at least one frame and [`MIN_BURST_MS`] of the rate. A later plugin or an operator may
//!   raise the MTU, so it holds a frame of [`JUMBO_MTU`] on any link.
//! * TCP sends packets of up to 64 KiB to the device (GSO). The kernel segments a packet that is larger than
//!   the bucket, and passes others whole; a queue that is shorter than such a packet always drops it. So the
//!   queue holds at least two GSO packets, or [`MIN_FRAMES`] frames and two of [`JUMBO_MTU`] if the kernel segments.
//!
//! [`reference()`] computes the reference's parameters instead.
//!
//! # References
//! net/sched/sch_tbf.c; meta/bandwidth/ifb_creator.go of the reference.

use ferrule_kernel::netlink::qdisc::{LONGEST_BUCKET, TICK, Tbf};

use crate::config::{Limit, Numbers, Queue};

/// The bursts in bits that runtimes send if they have none: 2^31-1 (older kubelets), 2^32-1 (containerd), and
/// the reference's maximum (CRI-O).
pub const UNLIMITED: [u64; 3] = [2_147_483_647, 4_294_967_295, 34_359_738_359];

/// The burst that replaces an [`UNLIMITED`] one, in milliseconds of the rate.
pub const BURST_MS: u64 = 25;
/// The smallest bucket, in milliseconds of the rate. With a smaller one a busy machine does not deliver the
/// rate.
pub const MIN_BURST_MS: u64 = 5;
/// The queue without the burst, in milliseconds of the rate; the reference's value.
pub const LATENCY_MS: u64 = 25;
/// The maximum that a burst adds to the queue, in milliseconds of the rate. With [`LATENCY_MS`] this is the
/// longest delay.
pub const QUEUE_MS: u64 = 100;
/// The shortest queue in frames if the kernel segments: TCP's initial window of ten.
pub const MIN_FRAMES: u64 = 10;

/// The MTU in bytes that a link may get later: the largest that switches and NICs of a data centre support. With 65535 each bucket would
/// hold a GSO packet, which then passes whole: at 1 Mbit/s a first burst of 0.5 s and a queue of 1 s.
pub const JUMBO_MTU: u32 = 9216;
/// The smallest and the largest MTU of a veth in bytes.
const MTUS: std::ops::RangeInclusive<u32> = 68..=65_535;

/// What a frame has beyond the MTU, in bytes: the Ethernet header, two VLAN tags, and a margin for rounding
/// to ticks.
const FRAME_EXTRA: u32 = 32;
/// The largest GSO packet in bytes (`GSO_LEGACY_MAX_SIZE`), unless a link allows more.
const GSO_MAX: u32 = 65_536;
/// The limit in nanoseconds of the bucket time from which the kernel derives its largest packet.
const LONGEST_NS: u64 = 1 << 32;

/// The largest packets on a link, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sizes {
    /// The longest frame.
    pub frame: u32,
    /// The largest GSO packet.
    pub gso: u32,
}

impl Sizes {
    /// Computes the sizes from an MTU and a link's `gso_max_size`, both in bytes.
    pub fn new(mtu: u32, gso_max: u32) -> Self {
        let frame = mtu.saturating_add(FRAME_EXTRA);
        Sizes { frame, gso: gso_max.max(GSO_MAX).max(frame) }
    }
}

/// The parameters for a limit on a link with these sizes.
pub fn tbf(limit: Limit, numbers: Numbers, sizes: Sizes) -> Tbf {
    match numbers {
        Numbers::Delivering => delivering(limit, sizes, sizes.frame.max(JUMBO_MTU + FRAME_EXTRA)),
        Numbers::Reference => reference(limit),
    }
}

/// Parameters that deliver the rate and pass frames of `largest` bytes. For a sound limit they equal the reference's.
fn delivering(limit: Limit, sizes: Sizes, largest: u32) -> Tbf {
    let rate = limit.rate / 8;
    let [frame, largest] = [sizes.frame, largest].map(u64::from);
    let requested = if UNLIMITED.contains(&limit.burst) { worth(rate, BURST_MS) } else { limit.burst / 8 };
    let burst = requested.max(worth(rate, MIN_BURST_MS)).max(largest).min(u64::from(u32::MAX));

    // The kernel derives its largest packet from the bucket's time, but uses at most 4.3 s of it. If a
    // frame takes longer than that, the bucket must be given in bytes.
    let within_longest = u128::from(rate) * u128::from(LONGEST_NS) / 1_000_000_000;
    let needs_bytes = within_longest < u128::from(largest);
    let largest_packet = if needs_bytes { u128::from(burst) } else { u128::from(burst).min(within_longest) };
    let is_segmented = largest_packet < u128::from(sizes.gso);
    let (least, room) = if is_segmented {
        (largest, (MIN_FRAMES * frame).max(2 * largest))
    } else {
        (sizes.gso.into(), 2 * u64::from(sizes.gso))
    };
    let queue = match configured(limit, rate, burst) {
        Some(queue) => queue.max(least),
        None => worth(rate, LATENCY_MS).saturating_add(burst.min(worth(rate, QUEUE_MS))).max(room),
    };

    Tbf {
        rate,
        limit: saturate(queue.into()),
        buffer: ticks(rate, burst),
        burst: needs_bytes.then(|| saturate(burst.into())),
    }
}

/// The configured queue in bytes.
fn configured(limit: Limit, rate: u64, burst: u64) -> Option<u64> {
    Some(match limit.queue? {
        Queue::Bytes(bytes) => bytes.into(),
        Queue::Milliseconds(latency) => worth(rate, latency.into()).saturating_add(burst),
    })
}

/// The reference's parameters in its amd64 builds: floating point, and each conversion keeps the low 32 bits.
pub fn reference(limit: Limit) -> Tbf {
    reference_with(limit, |number| number as i64 as u32)
}

/// The reference's parameters in its arm64 builds: conversions saturate.
pub fn reference_saturating(limit: Limit) -> Tbf {
    reference_with(limit, |number| number as u32)
}

fn reference_with(limit: Limit, to_u32: fn(f64) -> u32) -> Tbf {
    let rate = limit.rate / 8;
    let burst = (limit.burst / 8) as u32;
    let microseconds = to_u32(f64::from(burst) * 1e6 / rate as f64);
    let buffer = to_u32(f64::from(microseconds) * 15.625);
    let queue = configured(limit, rate, burst.into()).map(|queue| saturate(queue.into()));
    let queue = queue.unwrap_or_else(|| to_u32(rate as f64 * 25_000.0 / 1e6).wrapping_add(burst));
    Tbf { rate, limit: queue, buffer, burst: None }
}

/// The bytes that pass in this time at `rate` bytes per second.
fn worth(rate: u64, milliseconds: u64) -> u64 {
    u64::try_from(u128::from(rate) * u128::from(milliseconds) / 1000).unwrap_or(u64::MAX)
}

/// The time in ticks that `burst` bytes take, rounded to microseconds like the reference.
fn ticks(rate: u64, burst: u64) -> u32 {
    let microseconds = u128::from(burst) * 1_000_000 / u128::from(rate.max(1));
    saturate(microseconds * 1000 / u128::from(TICK)).max(1)
}

fn saturate(number: u128) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Compares the kernel's parameters with the requested ones. The kernel reports a bucket given in bytes as a
/// rounded time.
pub fn compare(found: &Tbf, requested: &Tbf) -> Result<(), &'static str> {
    let buffer_is_right = match requested.burst {
        None => found.buffer == requested.buffer,
        Some(burst) => {
            let ticks =
                u128::from(burst) * u128::from(1_000_000_000 / TICK) / u128::from(requested.rate.max(1));
            // The kernel's arithmetic is off by less than one in a thousand, and keeps the low 32 bits.
            (ticks as u32).abs_diff(found.buffer) <= (ticks as u32) / 1000 + 1
        }
    };
    match () {
        () if found.rate != requested.rate => Err("Rate doesn't match"),
        () if found.limit != requested.limit => Err("Limit doesn't match"),
        () if !buffer_is_right => Err("Buffer doesn't match"),
        () => Ok(()),
    }
}

/// Whether ADD sets these parameters on a link that had another MTU at that time, or an ADD of a version that did not
/// expect [`JUMBO_MTU`]. Tries each MTU, so ask [`compare`] first.
pub fn is_of_other_mtu(found: &Tbf, limit: Limit, numbers: Numbers, gso_max: u32) -> bool {
    let sets = |expected: Tbf| compare(found, &expected).is_ok();
    let sizes = |mtu| Sizes::new(mtu, gso_max);
    numbers == Numbers::Delivering
        && found.rate == limit.rate / 8
        && MTUS.map(sizes).any(|at| sets(tbf(limit, numbers, at)) || sets(delivering(limit, at, at.frame)))
}

const _: () = assert!(LONGEST_BUCKET as u64 == (LONGEST_NS - 1) / TICK);

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { frame: 1532, gso: 65_536 };

    fn limit(rate: u64, burst: u64) -> Limit {
        Limit { rate, burst, queue: None }
    }

    /// Rate and burst in bits, limit in bytes, buffer in ticks; measured with the reference on amd64.
    const VECTORS: [(u64, u64, u32, u32); 14] = [
        (8, 8, 1, 15_625_000),
        (16, 8, 1, 7_812_500),
        (8_000, 80, 35, 156_250),
        (1_000_000, 12_000, 4_625, 187_500),
        (123_456_789, 987_654, 509_258, 124_984),
        (10_000_000, 1_000_000, 156_250, 1_562_500),
        (10_000_000, 2_147_483_647, 268_466_705, 3_355_443_187),
        (10_000_000, 4_294_967_295, 536_902_161, 2_415_919_079),
        (1_000_000, 4_294_967_295, 536_874_036, 2_684_354_435),
        (1_000, 4_294_967_295, 536_870_914, 2_684_229_560),
        (100_000_000, 4_294_967_295, 537_183_411, 671_088_625),
        (1_000_000, 34_359_738_359, 3_123, 2_684_354_310),
        (1_000_000_000, 34_359_738_359, 3_124_998, 536_870_906),
        (40_000_000_000, 4_294_967_295, 661_870_911, 1_677_718),
    ];

    #[test]
    fn configured_queues() {
        let queue = |queue, burst, numbers| {
            tbf(Limit { queue: Some(queue), ..limit(10_000_000, burst) }, numbers, SIZES).limit
        };
        let ours = Numbers::Delivering;
        assert_eq!(queue(Queue::Bytes(40_000), 200_000, ours), 40_000);
        // 12,500 bytes in 10 ms, and the bucket.
        assert_eq!(queue(Queue::Milliseconds(10), 200_000, ours), 12_500 + 25_000);
        assert_eq!(queue(Queue::Milliseconds(10), 200_000, Numbers::Reference), 12_500 + 25_000);
        // A frame must fit, or one of TCP's packets if the kernel passes those whole.
        assert_eq!(queue(Queue::Bytes(1), 200_000, ours), 9248);
        assert_eq!(queue(Queue::Bytes(1), 1_000_000, ours), 65_536);
    }

    #[test]
    fn parameters_of_the_reference() {
        for (rate, burst, queue, buffer) in VECTORS {
            let expected = Tbf { rate: rate / 8, limit: queue, buffer, burst: None };
            assert_eq!(tbf(limit(rate, burst), Numbers::Reference, SIZES), expected, "{rate} {burst}");
        }
    }

    #[test]
    fn sound_limits_get_the_references_parameters() {
        for (rate, burst) in [
            (10_000_000, 1_000_000),
            (123_456_789, 987_654),
            (100_000_000, 10_000_000),
            (1_000_000_000, 40_000_000),
            (40_000_000_000, 4_000_000_000),
        ] {
            let own = tbf(limit(rate, burst), Numbers::Delivering, SIZES);
            assert_eq!(own, reference(limit(rate, burst)), "{rate} {burst}");
        }
    }

    #[test]
    fn reference_builds_agree_without_overflow() {
        assert_eq!(
            reference(limit(10_000_000, 1_000_000)),
            reference_saturating(limit(10_000_000, 1_000_000))
        );
        assert_eq!(reference_saturating(limit(10_000_000, 4_294_967_295)).buffer, u32::MAX);
    }

    #[test]
    fn unlimited_bursts_become_25_milliseconds() {
        for burst in UNLIMITED {
            let shaped = tbf(limit(100_000_000, burst), Numbers::Delivering, SIZES);
            let expected = Tbf { rate: 12_500_000, limit: 625_000, buffer: 390_625, burst: None };
            assert_eq!(shaped, expected, "{burst}");
            assert_eq!(shaped, reference(limit(100_000_000, 2_500_000)));
        }
        // One bit less is an explicit burst.
        let chosen = tbf(limit(100_000_000, 4_294_967_294), Numbers::Delivering, SIZES);
        assert_eq!(chosen.buffer, reference(limit(100_000_000, 4_294_967_294)).buffer);
    }

    #[test]
    fn explicit_burst_limits_the_queue_to_125_milliseconds() {
        let shaped = tbf(limit(10_000_000, 80_000_000), Numbers::Delivering, SIZES);
        assert_eq!(shaped.limit, 1_250_000 / 8);
        assert_eq!(shaped.buffer, 125_000_000);
    }

    #[test]
    fn frames_fit_bucket_and_queue_for_all_limits() {
        for rate in
            [8, 1000, 3000, 8_000, 64_000, 1_000_000, 5_300_000, 21_000_000, 1_000_000_000, 1 << 45, u64::MAX]
        {
            for burst in [8, 12_000, 524_288, 1_000_000, 2_147_483_647, 4_294_967_294, 34_359_738_359] {
                for sizes in [SIZES, Sizes::new(9000, 0), Sizes::new(65_535, 524_280)] {
                    let shaped = tbf(limit(rate, burst), Numbers::Delivering, sizes);
                    // net/sched/sch_tbf.c, tbf_change
                    let ns = (u128::from(shaped.buffer) * 64).min(u128::from(u32::MAX));
                    let largest =
                        shaped.burst.map_or(u128::from(shaped.rate) * ns / 1_000_000_000, u128::from);
                    let input = format!("{rate} {burst} {sizes:?} {shaped:?}");
                    assert!(
                        largest >= u128::from(sizes.frame) - 12,
                        "a frame does not fit the bucket: {input}"
                    );
                    if largest >= u128::from(sizes.gso) {
                        assert!(
                            shaped.limit >= 2 * sizes.gso,
                            "two GSO packets do not fit the queue: {input}"
                        );
                    }
                    assert!(shaped.limit >= 10 * sizes.frame, "ten frames do not fit the queue: {input}");
                }
            }
        }
    }

    #[test]
    fn a_frame_of_a_later_mtu_fits() {
        for rate in [8_000, 1_000_000, 21_000_000] {
            let shaped = tbf(limit(rate, UNLIMITED[1]), Numbers::Delivering, SIZES);
            let bucket =
                shaped.burst.map_or(shaped.rate * u64::from(shaped.buffer) * 64 / 1_000_000_000, u64::from);
            assert!(bucket >= 9216 + 14 && shaped.limit >= 2 * 9248, "{rate}: {shaped:?}");
        }
    }

    #[test]
    fn parameters_of_another_mtu() {
        let is_accepted = |found: &Tbf, limit| is_of_other_mtu(found, limit, Numbers::Delivering, 65_536);
        for rate in [64_000, 1_000_000, 40_000_000] {
            let limit = limit(rate, UNLIMITED[1]);
            for mtu in [68, 1280, 1500, 9000, 65_535] {
                let sizes = Sizes::new(mtu, 65_536);
                // The first version's parameters had room for the frame alone.
                for found in [tbf(limit, Numbers::Delivering, sizes), delivering(limit, sizes, sizes.frame)] {
                    assert!(is_accepted(&found, limit), "{rate} {mtu}");
                    assert!(!is_accepted(&Tbf { rate: found.rate + 1, ..found }, limit), "{rate} {mtu}");
                    assert!(!is_accepted(&Tbf { limit: found.limit + 1, ..found }, limit), "{rate} {mtu}");
                }
            }
        }
    }

    #[test]
    fn replaced_burst_needs_no_room_for_gso_packets() {
        for megabits in 1..=100 {
            let shaped = tbf(limit(megabits * 1_000_000, UNLIMITED[1]), Numbers::Delivering, SIZES);
            let bound = (megabits * 1_000_000 / 8 / 20).max(2 * 9248);
            assert!(u64::from(shaped.limit) <= bound, "{megabits} Mbit/s: {shaped:?}");
        }
    }

    #[test]
    fn rates_at_which_a_frame_takes_seconds() {
        let shaped = tbf(limit(1000, 4_294_967_295), Numbers::Delivering, SIZES);
        assert_eq!((shaped.rate, shaped.burst, shaped.limit), (125, Some(9248), 18_496));
        assert_eq!(compare(&Tbf { burst: None, buffer: 1_156_000_100, ..shaped }, &shaped), Ok(()));
        assert_eq!(
            compare(&Tbf { burst: None, buffer: 1_158_000_100, ..shaped }, &shaped),
            Err("Buffer doesn't match")
        );
    }

    #[test]
    fn differences_have_the_references_texts() {
        let requested = reference(limit(10_000_000, 1_000_000));
        assert_eq!(compare(&requested, &requested), Ok(()));
        for (found, text) in [
            (Tbf { rate: 1, ..requested }, "Rate doesn't match"),
            (Tbf { limit: 1, ..requested }, "Limit doesn't match"),
            (Tbf { buffer: 1, ..requested }, "Buffer doesn't match"),
        ] {
            assert_eq!(compare(&found, &requested), Err(text));
        }
    }
}
