//! Tests of the iptables programs, in separate network namespaces. They need root and both variants of
//! iptables.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use std::cell::Cell;
use std::fs::File;

use common::{isolated, sh};
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::{NAT, Programs, is_conflict, legacy};
use nix::sched::{CloneFlags, unshare};

#[test]
fn a_conflict_with_the_current_rules_is_told_from_a_syntax_error() {
    isolated(|_| {
        sh("iptables-legacy -t nat -N USED && iptables-legacy -t nat -A OUTPUT -j USED
            iptables-nft -t nat -N USED && iptables-nft -t nat -A OUTPUT -j USED");
        for programs in
            [Programs::of_node(IpFamily::V4).unwrap(), Programs::legacy(IpFamily::V4, NAT).unwrap()]
        {
            let error = |line: &str| programs.restore(&[line.to_owned()]).unwrap_err();
            for line in [
                "-D OUTPUT -p tcp -j USED",
                "-F ABSENT",
                "-X ABSENT",
                "-X USED",
                "-N USED",
                "-A USED -j ABSENT",
            ] {
                assert!(is_conflict(&error(line)), "{programs:?} {line}: {}", error(line));
            }
            for line in ["-A USED --nonsense", "-A USED -s 10.0.0.300 -j RETURN", "nonsense"] {
                assert!(!is_conflict(&error(line)), "{programs:?} {line}: {}", error(line));
            }
        }
    });
}

#[test]
fn a_removal_is_repeated_after_a_conflict_and_not_after_a_time_out_of_the_lock() {
    isolated(|_| {
        // A private /run: other programs do not wait for this lock.
        unshare(CloneFlags::CLONE_NEWNS).unwrap();
        sh("mount --make-rprivate / && mount -t tmpfs tmpfs /run && iptables-legacy -t nat -N DEAD");
        let attempts = Cell::new(0);
        let remove = |chain: &str| {
            attempts.set(0);
            legacy::remove(|_| {
                attempts.set(attempts.get() + 1);
                vec![chain.to_owned()]
            })
        };
        // No program can delete a built-in chain.
        let error = remove("POSTROUTING").unwrap_err().to_string();
        let expected = "gave up after 10 concurrent changes of the legacy nat table: iptables-legacy-restore";
        assert!(error.starts_with(expected), "{error}");
        assert_eq!(attempts.get(), 10);

        let lock = File::open("/run/xtables.lock").unwrap();
        lock.lock().unwrap();
        let error = remove("DEAD").unwrap_err().to_string();
        assert!(error.contains("holding the xtables lock"), "{error}");
        assert_eq!(attempts.get(), 1);
        drop(lock);
        remove("DEAD").unwrap();
        assert_eq!(attempts.get(), 1);
    });
}
