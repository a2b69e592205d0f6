//! Whose elements are: kills, late calls, lost calls, altered and restored tables. The tests need root, `nft` and `strace`.
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod common;

use cni_lab::testing::{Trace, World, overlay, with_prev};
use cni_lab::{Place as _, Pod, Snapshot};
use cni_runner::Attachment;
use common::{REPAIR, announced, args, both, network, world};
use ferrule_kernel::netlink::Socket;
use ferrule_kernel::nftables::{Batch, Element};
use ferrule_policy::list;
use ferrule_policy_kit::table::{TABLE, establish};
use serde_json::{Value, json};

/// A pod of `ptp`, and the configuration of `policy` behind it.
fn scene(world: &World) -> (Pod, Attachment, Value) {
    let pod = world.pod("one");
    let attachment = pod.attachment("eth0").with_args(args("shop", "1"));
    let result = world.runtime().add(&network(&[]), &attachment).unwrap();
    let valid = json!([{"containerID": "other", "ifname": "eth0"}]);
    let config =
        json!({"cniVersion": "1.1.0", "name": "pods", "type": "policy", "cni.dev/valid-attachments": valid});
    (pod, attachment, with_prev(&config, &result))
}

fn other_sandbox(attachment: &Attachment) -> Attachment {
    Attachment::new("other", attachment.netns.clone(), "eth0").with_args(args("shop", "1"))
}

#[test]
fn after_each_kill_a_removal_leaves_nothing() {
    let world = world();
    let (_pod, attachment, config) = scene(&world);
    let without_result = overlay(&config, &json!({"prevResult": null}));
    let removals = [("DEL", &config), ("DEL", &without_result), ("GC", &config)];
    for verb in ["ADD", "DEL", "GC"] {
        let renew = || world.nft("add table inet ferrule_pods; delete table inet ferrule_pods");
        if verb == "ADD" {
            renew()
        } else {
            drop(world.ctx.add(&attachment, &config))
        }
        for (number, point) in world.kill_points(verb, &attachment, &config).iter().enumerate() {
            if verb != "ADD" {
                world.ctx.del(&attachment, &config);
                world.ctx.add(&attachment, &config);
            } else if number % 2 == 0 {
                // The first ADD of a node.
                renew();
            }
            world.kill(point, verb, &attachment, &config);
            let (removal, config) = removals[number % 3];
            let caller = if removal == "GC" { Attachment::default() } else { attachment.clone() };
            world.succeed(removal, &caller, config);
            assert_eq!(announced(&world), [""; 0], "{removal} after {verb} killed {point}");
        }
        world.ctx.del(&attachment, &config);
    }
    world.ctx.add(&attachment, &config);
    world.ctx.check(&attachment, &config);
}

/// The same pod UID has a new sandbox with the same address before the DEL of the old one is over.
#[test]
fn a_late_removal_leaves_the_elements_of_the_next_sandbox() {
    let world = world();
    let (_pod, attachment, config) = scene(&world);
    let next = other_sandbox(&attachment);
    for verb in ["DEL", "GC"] {
        world.ctx.add(&attachment, &config);
        for point in world.kill_points(verb, &attachment, &config) {
            world.ctx.add(&attachment, &config);
            world.pause(&point, verb, &attachment, &config, || drop(world.ctx.add(&next, &config)));
            assert_eq!(announced(&world).len(), 4, "{verb} stopped {point}");
            world.ctx.check(&next, &config);
            world.ctx.del(&next, &config);
        }
    }
    // Its link belongs to the first one alone.
    world.ctx.add(&attachment, &config);
    world.ctx.add(&next, &config);
    assert!(world.fail("CHECK", &attachment, &config).contains("belongs to container other"));
    world.ctx.del(&attachment, &config);
    assert_eq!(announced(&world).len(), 4);
    world.succeed("GC", &Attachment::default(), &config);
    assert_eq!(announced(&world).len(), 4, "it is valid");
    let none = overlay(&config, &json!({"cni.dev/valid-attachments": []}));
    let elsewhere = overlay(&none, &json!({"name": "elsewhere"}));
    world.succeed("GC", &Attachment::default(), &elsewhere);
    assert_eq!(announced(&world).len(), 4, "of another network");
    world.succeed("GC", &Attachment::default(), &none);
    assert_eq!(announced(&world), [""; 0]);
}

#[test]
fn an_altered_table_is_found_and_mended() {
    let world = world();
    let (_pod, attachment, config) = scene(&world);
    world.ctx.check(&attachment, &config);
    world.ctx.add(&attachment, &config);
    let table = |what: &str| format!("nft {what}");
    for (damage, error) in [
        ("flush chain inet ferrule_pods forward", "chain \"forward\""),
        ("insert rule inet ferrule_pods input accept", "chain \"input\""),
        ("delete element inet ferrule_pods egress6 '{ fd00:1::2 }'", "fd00:1::2 in egress6"),
        ("flush set inet ferrule_pods links", "in links"),
    ] {
        let found = world.ctx.mend(REPAIR, &attachment, &config, &world.node, &table(damage));
        assert!(found.contains(error), "{damage}: {found}");
        assert_eq!(announced(&world), both("1 shop/web"), "{damage}");
    }
    // ADD of the next pod makes the rules again.
    world.nft("flush chain inet ferrule_pods forward");
    world.ctx.add(&other_sandbox(&attachment), &config);
    world.ctx.check(&other_sandbox(&attachment), &config);
    world.ctx.del(&other_sandbox(&attachment), &config);
    // Released, and lost as a whole: repair does not isolate.
    world.ctx.del(&attachment, &config);
    world.nft("flush ruleset");
    world.ctx.check(&attachment, &config);
    // Restored from text: the UID decides, and a namesake's DEL leaves it.
    world.ctx.add(&attachment, &config);
    world
        .node
        .sh("nft list table inet ferrule_pods >/run/saved; nft flush ruleset; nft -f /run/saved")
        .unwrap();
    world.ctx.check(&attachment, &config);
    let namesake = Attachment::new("third", attachment.netns.clone(), "eth0").with_args(args("shop", "2"));
    world.ctx.del(&namesake, &config);
    assert_eq!(announced(&world), both("1 shop/web"));
    world.ctx.del(&attachment, &config);
    assert_eq!(announced(&world), [""; 0]);
}

#[test]
fn calls_cost_few_messages_and_status_changes_nothing() {
    let world = world();
    let (_pod, attachment, config) = scene(&world);
    world.ctx.add(&attachment, &config);
    world.ctx.del(&attachment, &config);
    let trace = |verb: &str, attachment: &Attachment| {
        let trace =
            Trace::of(&world.node, &world.exec(verb, attachment, &config), "sendto,sendmsg,execve,socket");
        (trace.count(&["sendto", "sendmsg"]), trace.programs())
    };
    // A look at the chains, and one batch; the link, and for each address a look for its neighbour entry and the deletion.
    assert_eq!(trace("ADD", &attachment), (2 + 1 + 4, 0));
    let open = Attachment { args: args("open", "1"), ..attachment.clone() };
    assert_eq!(trace("ADD", &open), (0, 0), "of a namespace without policies");
    world.ctx.del(&attachment, &config);
    let before = Snapshot::take(&world.node).unwrap();
    world.succeed("STATUS", &Attachment::default(), &config);
    cni_lab::testing::assert_unchanged(&world.node, &before, "STATUS");
}

/// Who is dead is asked once for all, however many elements they have.
#[test]
fn one_question_is_about_all_owners() {
    const OWNERS: u8 = 100;
    let world = world();
    let (asked, removed, left) = world
        .node
        .run(|| {
            let mut socket = Socket::netfilter().unwrap();
            let mut batch = Batch::new();
            establish(&mut batch);
            for owner in 0..OWNERS {
                let element = |key: Vec<u8>| Element {
                    comment: Some(format!("{owner} shop/web")),
                    metadata: Some(format!("pods/eth0/{owner}").into_bytes()),
                    ..Element::new(key)
                };
                for set in ["ingress4", "egress4"] {
                    batch.add_elements(TABLE, set, &[element(vec![10, 1, 0, owner])]);
                }
            }
            batch.commit(&mut socket).unwrap();
            let all = list::announced(&mut socket).unwrap();
            let mut asked = 0;
            let removed = list::remove(&mut socket, &all, &mut || {
                asked += 1;
                (0..OWNERS).map(|owner| owner % 2 == 0).collect()
            });
            (asked, removed.unwrap(), list::announced(&mut socket).unwrap())
        })
        .unwrap();
    assert_eq!((asked, left.len()), (1, 50));
    assert!(removed.iter().enumerate().all(|(at, is_removed)| *is_removed == (at % 2 == 0)));
    assert!(left.iter().all(|one| one.found.len() == 2));
}
