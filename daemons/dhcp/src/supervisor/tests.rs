//! A lease whose task panics, on a node with one container.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use cni_lab::testing::is_up;
use cni_lab::{Node, Place as _, Pod, TIMEOUT};
use ferrule_dhcp::wire::{Answer, Family, Key, Operation, PROTOCOL, Request, lease_file};
use tokio::task::LocalSet;

use super::*;
use crate::action::Timing;
use crate::binding::{Binding, Id};
use crate::lease::Lease;
use crate::lease::Millis;
use crate::link::{Interface, Ipv6};
use crate::message::tests::client;
use crate::registry::Daemon;
use crate::store::Store;

thread_local! {
    /// How often the work on a lease still panics.
    static PANICS: Cell<u32> = const { Cell::new(0) };
}

/// Panics if the test wants it. The work on a lease calls it before each step.
pub(crate) fn provoke() {
    let left = PANICS.get();
    if left > 0 {
        PANICS.set(left - 1);
        panic!("provoked, {left} left");
    }
}

fn key() -> Key {
    Key { network: "net".to_owned(), container_id: "c1".to_owned(), ifname: "eth0".to_owned() }
}

/// A node with a container, and a daemon that has taken up the container's lease, which lasts this long.
fn with_lease(lasts: Millis, test: impl AsyncFnOnce(&Rc<Daemon>, &Path) + Send) -> (Node, Pod) {
    let node = Node::new().unwrap();
    let pod = node.pod("one").unwrap();
    node.sh("ip link add v1 up type veth peer name eth0 netns one").unwrap();
    let dir = tempfile::tempdir().unwrap();
    let (socket, path) = (dir.path().join("dhcp.sock"), pod.path().to_owned());
    let work = || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        LocalSet::new().block_on(&runtime, async {
            let store = Store::open(&socket, "boot".to_owned()).unwrap();
            let interface = Interface::prepare(path, "eth0", Ipv6::Leave).await.unwrap();
            let expires_at = clock::now() + lasts;
            let lease = Lease {
                address: [10, 0, 0, 5].into(),
                prefix: 24,
                server: [10, 0, 0, 1].into(),
                server_mac: [2; 6],
                renew_at: expires_at,
                rebind_at: expires_at,
                expires_at,
                guarantor: None,
                settings: Default::default(),
            };
            let client = crate::message::Client { mac: interface.mac, ..client(&[]) };
            let binding = Binding::V4 { client, lease };
            store.write(&StoredLease { key: key(), interface, binding, confirmed: true }).unwrap();
            let state = store.find(&Id { key: key(), family: Family::Ipv4 }).unwrap().unwrap();
            let timing = Timing { answer: 1000, pause: 1000, limit: 1000 };
            let daemon = Daemon::new(timing, store, String::new(), false);
            daemon.resume(state);
            test(&daemon, &lease_file(&socket, &key(), Family::Ipv4)).await;
            PANICS.set(0);
        });
    };
    node.run(work).unwrap();
    (node, pod)
}

async fn ask(daemon: &Rc<Daemon>, operation: Operation) -> Answer {
    let netns = "/run/netns/one".to_owned();
    let request = Request { ferrule_dhcp: PROTOCOL, operation, key: key(), netns, ..Request::default() };
    daemon.answer(request).await
}

async fn wait_until(mut condition: impl FnMut() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    timeout(TIMEOUT, wait).await.unwrap();
}

#[test]
fn a_panic_loses_no_lease() {
    with_lease(1_000_000, async |daemon, file| {
        PANICS.set(2);
        wait_until(|| PANICS.get() == 0).await;
        assert!(file.exists());
        let shown = ask(daemon, Operation::Show).await;
        assert!(shown.error.is_none() && shown.lease.is_some(), "{shown:?}");
        // DEL gives it back, although its first attempt panics.
        PANICS.set(1);
        let released = ask(daemon, Operation::Release).await;
        assert!(released.error.is_none() && PANICS.get() == 0, "{released:?}");
        assert!(!file.exists());
        assert!(ask(daemon, Operation::Show).await.error.is_some());
    });
}

#[test]
fn del_ends_a_lease_that_always_panics() {
    with_lease(1_000_000, async |daemon, file| {
        PANICS.set(u32::MAX);
        wait_until(|| PANICS.get() < u32::MAX - 1).await;
        assert!(file.exists());
        let released = ask(daemon, Operation::Release).await;
        assert!(released.error.is_none() && !file.exists(), "{released:?}");
    });
}

/// The container must not use the address any longer, also if the work on its lease panics.
#[test]
fn a_lease_that_always_panics_expires() {
    let (_node, pod) = with_lease(400, async |daemon, file| {
        PANICS.set(u32::MAX);
        wait_until(|| !file.exists()).await;
        assert!(ask(daemon, Operation::Show).await.error.is_some());
    });
    assert!(!is_up(&pod, "eth0"));
}

#[test]
fn an_add_that_panics_fails() {
    with_lease(1_000_000, async |daemon, file| {
        ask(daemon, Operation::Release).await;
        PANICS.set(1);
        let error = ask(daemon, Operation::Acquire).await.error.unwrap();
        assert_eq!((error.code, error.msg.as_str(), file.exists()), (999, INTERNAL, false));
    });
}
