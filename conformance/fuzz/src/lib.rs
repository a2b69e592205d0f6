//! Every decoder of bytes from outside, as a function of any bytes. It must neither panic nor run for ever.
//!
//! `tests/corpus.rs` replays the corpus in each run of the tests. `tests/fuzz.sh` lets libFuzzer look for new inputs.

use std::collections::BTreeSet;

use cni_common::spec::json::Json;
use cni_common::spec::{CniArgs, NetConf, SpecVersion};
use ferrule_blocks::ledger::Ledger;
use ferrule_blocks::{plan, wire};
use ferrule_firewall::firewalld::dbus::Numbers;
use ferrule_kernel::conntrack::Flow;
use ferrule_kernel::ip::IpFamily;
use ferrule_kernel::iptables::Listing;
use ferrule_kernel::netlink::message::{self, attrs, messages};
use ferrule_kernel::netlink::{self, addr, features, filter, link, nsid, qdisc, route, rule, stored_route};
use ferrule_kernel::nftables::{Chain, Element, Rule};
use ferrule_kernel::ping;
use ferrule_kubelet::claims;
use ferrule_kubelet::grpc::answer::{Answer, Frame};
use ferrule_policy_kit::isolated::Isolated;

/// The longest message that [`http2`] accepts, in bytes.
const LONGEST: usize = 4096;

/// A decoder.
pub type Target = fn(&[u8]);

/// The decoders with the names of their folders in `corpus/`.
pub const TARGETS: [(&str, Target); 30] = [
    ("bandwidth-alias", bandwidth_alias),
    ("blocks-ledger", blocks_ledger),
    ("blocks-objects", ferrule_node::decoders::block_objects),
    ("blocks-request", blocks_request),
    ("call-log", call_log),
    ("cni-args", cni_args),
    ("claims", of_claims),
    ("configuration", configuration),
    ("conntrack", conntrack),
    ("dbus", dbus),
    ("dhcp-frame", ferrule_dhcpd::decoders::frame),
    ("dhcp-message", ferrule_dhcpd::decoders::message),
    ("dhcpv6-message", ferrule_dhcpd::decoders::message6),
    ("flannel-subnets", flannel_subnets),
    ("host-device-record", host_device_record),
    ("host-local-reservation", host_local_reservation),
    ("hpack", hpack),
    ("http2", http2),
    ("iptables-save", iptables_save),
    ("kubelet-checkpoint", kubelet_checkpoint),
    ("kubernetes-objects", ferrule_node::decoders::objects),
    ("netlink", netlink),
    ("nftables", nftables),
    ("nic-configuration", nic_configuration),
    ("pod-resources", pod_resources),
    ("policy-comment", policy_comment),
    ("policy-isolated", policy_isolated),
    ("policy-question", ferrule_node::decoders::policy_question),
    ("probe", probe),
    ("resolv-conf", resolv_conf),
];

/// The decoder of this name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find_map(|(other, target)| (other == name).then_some(target))
}

/// The alias of an IFB.
fn bandwidth_alias(bytes: &[u8]) {
    if let Some(alias) = ferrule_bandwidth::owner::Alias::parse(&String::from_utf8_lossy(bytes)) {
        let _ = (alias.attachment(), alias.key());
    }
}

/// The file of a network's blocks. It is written as it is read.
fn blocks_ledger(bytes: &[u8]) {
    if let Ok(ledger) = Ledger::parse(bytes) {
        assert_eq!(Ledger::parse(&ledger.to_text()), Ok(ledger));
    }
}

/// A request of the plugin `shared` to `ferrule-node`, and the first block of each set that it names.
fn blocks_request(bytes: &[u8]) {
    let request = serde_json::from_slice::<wire::Request>(bytes);
    let _ = serde_json::from_slice::<wire::Answer>(bytes);
    if let Ok(wire::Request { network: Some(network), .. }) = request
        && network.check().is_ok()
    {
        for set in 0..network.sets.len() {
            let _ =
                plan::next(&network.usual_ranges(set), plan::hint("n1", &network.network), &BTreeSet::new());
        }
    }
}

/// The log of calls, which `ferrule log` reads.
fn call_log(bytes: &[u8]) {
    drop(ferrule_inspect::calls::read::parse(bytes));
}

/// The files of DRA claims: the kubelet's, the driver's record, and what ADD has made of it.
fn of_claims(bytes: &[u8]) {
    let _ = claims::KubeletState::parse(bytes, claims::DRIVER).map(|state| state.of_pod("0d3c").count());
    let _ = claims::Attached::parse(bytes);
    if let Ok(record) = claims::Record::parse(bytes) {
        let _ = ferrule_claims::plan::plan(&[record], "net", &BTreeSet::new());
    }
}

/// CNI_ARGS.
fn cni_args(bytes: &[u8]) {
    let _ = CniArgs::parse(&String::from_utf8_lossy(bytes), &["IP", "MAC"]);
}

/// Standard input of a plugin, with a `prevResult`.
fn configuration(bytes: &[u8]) {
    let _ = Json::parse(bytes);
    if let Ok(config) = NetConf::parse(bytes.to_vec()) {
        let _ = config.decode::<serde_json::Value>();
        let _ = (config.ipam_type(), config.valid_attachments());
        if let Ok(version) = config.version(SpecVersion::ALL) {
            let _ = config.prev_result(version).map(|result| result.map(|result| result.to_json(version)));
        }
        let _ = ferrule_bandwidth::config::Conf::read(&config);
        let _ = ferrule_portmap::config::Conf::read(&config);
    }
}

/// A datagram of connection tracking.
fn conntrack(bytes: &[u8]) {
    for message in messages(bytes) {
        let _ = Flow::parse(message.body);
    }
}

/// Header fields and body of an answer of D-Bus, in both byte orders.
fn dbus(bytes: &[u8]) {
    for is_big_endian in [false, true] {
        let numbers = Numbers { is_big_endian };
        let _ = (numbers.reply_serial(bytes), numbers.text(bytes));
    }
}

/// The file of flannel's daemon, and a state file of the plugin.
fn flannel_subnets(bytes: &[u8]) {
    let _ = ferrule_flannel::subnet_env::SubnetEnv::parse(&String::from_utf8_lossy(bytes));
    let _ = ferrule_flannel::state::parse(bytes);
}

/// The record of a device that host-device has moved.
fn host_device_record(bytes: &[u8]) {
    if let Some(record) = ferrule_host_device::state::State::parse(bytes) {
        let _ = record.routes().count();
    }
}

/// A file of host-local's store.
fn host_local_reservation(bytes: &[u8]) {
    let _ = ferrule_host_local::owner::Owner::parse(bytes).key();
}

/// A header block of HTTP/2.
fn hpack(bytes: &[u8]) {
    let _ = ferrule_kubelet::grpc::hpack::decode(bytes, |_, _| {});
}

/// The frames of a server of gRPC.
fn http2(mut bytes: &[u8]) {
    let mut answer = Answer::new(LONGEST);
    while let Some((header, rest)) = bytes.split_first_chunk() {
        let Ok(frame) = Frame::parse(*header) else { return };
        let Some((payload, rest)) = rest.split_at_checked(frame.len) else { return };
        if answer.take(frame, payload).is_err() {
            return;
        }
        bytes = rest;
    }
    let _ = answer.into_message();
}

/// The output of `iptables-save`.
fn iptables_save(bytes: &[u8]) {
    let listing = Listing::parse(&String::from_utf8_lossy(bytes));
    for chain in &listing.chains {
        let _ = (listing.rules_of(chain).count(), listing.jumps_to(chain).count());
    }
}

/// The checkpoint of the kubelet's device manager.
fn kubelet_checkpoint(bytes: &[u8]) {
    let _ = ferrule_kubelet::checkpoint::ids(bytes, "1b4e28ba", "ferrule.dev/nic");
}

/// A datagram of rtnetlink or generic netlink. Each reader sees the body of each message.
fn netlink(bytes: &[u8]) {
    for received in messages(bytes) {
        let answer = || -> netlink::Answer { Ok(vec![received.body.to_vec()]) };
        let _ = message::failure(received.flags, received.body);
        let _ = link::read(answer());
        let _ = addr::read_all(answer());
        let _ = route::read(answer());
        let _ = stored_route::read(answer());
        let _ = rule::parse(received.body);
        let _ = filter::read(answer());
        let _ = qdisc::read(answer());
        let _ = features::parse(received.body);
        let _ = nsid::read(answer());
        for (_, value) in attrs(received.body) {
            let _ = attrs(value).count();
        }
    }
}

/// A datagram of nf_tables: chains, rules, elements.
fn nftables(bytes: &[u8]) {
    for message in messages(bytes) {
        let _ = (Chain::parse(message.body), Element::parse_list(message.body));
        let rule = Rule::parse(message.body);
        let _ = (rule.decode(), rule.effect(), rule.jump_target(), rule.source(), rule.compat_comment());
        let _ = (rule.accepts(), rule.drops_everything());
    }
}

/// The configuration of ferrule-nic.
fn nic_configuration(bytes: &[u8]) {
    let _ = ferrule_nic::config::Config::parse(&String::from_utf8_lossy(bytes));
}

/// Answers of the kubelet.
fn pod_resources(bytes: &[u8]) {
    let _ = ferrule_kubelet::pod_resources::ids(bytes, "shop", "web", "ferrule.dev/nic");
}

/// The comment of an undecided pod, from an element that another program may have made.
fn policy_comment(bytes: &[u8]) {
    let comment = String::from_utf8_lossy(bytes);
    if let Some(pod) = ferrule_policy_kit::comment::decode(&comment) {
        let _ = ferrule_policy_kit::comment::encode(&pod);
    }
}

/// The file of isolated namespaces. It is written as it is read.
fn policy_isolated(bytes: &[u8]) {
    if let Some(isolated) = Isolated::decode(&String::from_utf8_lossy(bytes)) {
        assert_eq!(Isolated::decode(&isolated.encode()), Some(isolated));
    }
}

/// What hosts on a link answer: to ARP and neighbour solicitations, and to echo requests.
fn probe(bytes: &[u8]) {
    let _ = ferrule_kernel::probe::owner(bytes);
    for family in IpFamily::ALL {
        let _ = ping::answered(family, bytes);
    }
    ferrule_node::decoders::echo(bytes);
}

/// `/etc/resolv.conf` of a network.
fn resolv_conf(bytes: &[u8]) {
    drop(ferrule_host_local::resolv::parse(&String::from_utf8_lossy(bytes)));
}
