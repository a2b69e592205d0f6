//! A tap device as the kernel reports it, in a separate network namespace. The test needs root and `/dev/net/tun`.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use common::isolated;
use ferrule_kernel::netlink::{LinkData, LinkId, Socket};
use ferrule_kernel::tun::Tap;

#[test]
fn a_device_has_its_owner_group_and_queues() {
    isolated(|_| {
        let mut socket = Socket::route().unwrap();
        for (owner, group, multi_queue) in [(None, None, false), (Some(1000), Some(u32::MAX - 1), true)] {
            Tap { name: "tap0".to_owned(), owner, group, multi_queue }.make().unwrap();
            let link = socket.link(LinkId::Name("tap0")).unwrap().unwrap();
            assert_eq!(link.data, LinkData::Tap { owner, group, multi_queue });
            socket.delete_link(LinkId::Name("tap0")).unwrap();
        }
        assert!(Tap { name: "sixteen-letters-".to_owned(), ..Tap::default() }.make().is_err());
    });
}
