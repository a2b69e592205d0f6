//! T1, T2 and the expiry of a lease, alone and beside one of the other family.

use cni_lab::testing::{addresses, is_up, with_prev};
use cni_lab::{TIMEOUT, eventually};
use dhcproto::v6::{MessageType, Status};

use super::{both, file6, only_ipv6};
use crate::lab::Lab;
use crate::server6::Reaction;
use crate::{server, server6};

#[test]
fn renewal_then_rebinding_then_the_end() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    server.times([1, 3, 8]);
    let _daemon = lab.daemon(&["-timeout", "2s"]);
    let pod = lab.pod("one");
    let attachment = pod.attachment("eth0");
    let result = lab.ctx.add(&attachment, &only_ipv6());
    lab.configure(&pod, &result);
    server.wait_for("Renew", 3);
    lab.ctx.check(&attachment, &with_prev(&only_ipv6(), &result));
    server.rule(|kind| if kind == MessageType::Renew { Reaction::Lose } else { Reaction::Answer });
    server.log();
    server.wait_for("Rebind", 1);
    lab.says("renewal time expired, rebinding");
    assert!(is_up(&pod, "eth0"));
    server.rule(|_| Reaction::Lose);
    lab.says("one/net/eth0 IPv6: lease expired, bringing interface DOWN");
    assert!(eventually(TIMEOUT, || !is_up(&pod, "eth0")));
    assert!(eventually(TIMEOUT, || lab.files().is_empty()));
    // Nothing hangs afterwards.
    let error = lab.ctx.fail("CHECK", &attachment, &with_prev(&only_ipv6(), &result));
    error.expect(999, "no lease for one/net/eth0 IPv6");
    server.rule(|_| Reaction::Answer);
    lab.ctx.add(&attachment, &only_ipv6());
    lab.ctx.del(&attachment, &only_ipv6());
}

/// A server that has lost its memory: it knows no binding, and gives the same address again.
#[test]
fn a_server_without_memory() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    server.times([1, 1800, 3600]);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let result = lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    lab.configure(&pod, &result);
    server.forget();
    server.log();
    lab.says("answers NoBinding: by the test; requesting the address anew");
    server.wait_for("Request", 1);
    server.wait_for("Renew", 3);
    assert_eq!(server.leased(), [super::FIRST]);
    assert!(is_up(&pod, "eth0") && !lab.log().contains("expired"), "{}", lab.log());
    lab.ctx.del(&pod.attachment("eth0"), &only_ipv6());
}

/// The interface stays up for the other family, whichever it is, and only the expired address goes.
#[test]
fn one_of_two_leases_expires() {
    for expires in ["ipv4", "ipv6"] {
        let lab = Lab::new();
        let (v4, v6) = (server::Server::start(&lab, 3600), server6::Server::start(&lab, 3600));
        match expires {
            "ipv4" => v4.times([4, 1, 2]),
            _ => v6.times([1, 2, 4]),
        }
        let _daemon = lab.daemon(&[]);
        let pod = lab.pod("one");
        let attachment = pod.attachment("eth0");
        let result = lab.ctx.add(&attachment, &both());
        lab.configure(&pod, &result);
        v4.rule(|kind, _| match kind {
            dhcproto::v4::MessageType::Release => server::Reaction::Answer,
            _ => server::Reaction::Lose,
        });
        v6.rule(|kind| if kind == MessageType::Release { Reaction::Answer } else { Reaction::Lose });
        let (gone, left) = match expires {
            "ipv4" => ("10.9.0.10/24", "fd00:9::10/128"),
            _ => ("fd00:9::10/128", "10.9.0.10/24"),
        };
        lab.says(&format!("lease expired, removing {gone}; the interface has another lease"));
        let has = |address: &str| addresses(&pod, "eth0").iter().any(|found| found == address);
        assert!(eventually(TIMEOUT, || !has(gone)), "{:?}", addresses(&pod, "eth0"));
        assert!(has(left) && is_up(&pod, "eth0"));
        assert!(eventually(TIMEOUT, || lab.files().len() == 1));
        lab.ctx
            .fail("CHECK", &attachment, &with_prev(&both(), &result))
            .expect(999, "no lease for one/net/eth0");
        lab.ctx.del(&attachment, &both());
        assert!(lab.files().is_empty());
    }
}

/// Of two leases that expire at once the second one takes the interface down.
#[test]
fn both_leases_expire() {
    let lab = Lab::new();
    let (v4, v6) = (server::Server::start(&lab, 3600), server6::Server::start(&lab, 3600));
    v4.times([4, 1, 2]);
    v6.times([1, 2, 4]);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    lab.ctx.add(&pod.attachment("eth0"), &both());
    v4.rule(|_, _| server::Reaction::Lose);
    v6.rule(|_| Reaction::Refuse(Status::UnspecFail));
    lab.says("lease expired, bringing interface DOWN");
    assert!(eventually(TIMEOUT, || !is_up(&pod, "eth0")));
    assert!(eventually(TIMEOUT, || lab.files().is_empty()));
}

/// The server says that the address does not fit the link, and then gives it again.
#[test]
fn not_on_link_once() {
    let lab = Lab::new();
    let server = server6::Server::start(&lab, 3600);
    server.times([1, 1800, 3600]);
    let _daemon = lab.daemon(&[]);
    let pod = lab.pod("one");
    let result = lab.ctx.add(&pod.attachment("eth0"), &only_ipv6());
    lab.configure(&pod, &result);
    let mut renewals = 0;
    server.rule(move |kind| {
        renewals += usize::from(kind == MessageType::Renew);
        match (kind, renewals) {
            (MessageType::Renew, 1) => Reaction::Refuse(Status::NotOnLink),
            _ => Reaction::Answer,
        }
    });
    lab.says("answers NotOnLink: by the test; asking for the same address once more");
    server.wait_for("Renew", 3);
    assert_eq!(file6(&lab, &pod.attachment("eth0"))["lease"]["address"], serde_json::json!("fd00:9::10"));
    assert!(is_up(&pod, "eth0"));
}
