//! Every decoder of bytes from outside, as a function of any bytes. It must neither panic nor run for ever.
//!
//! `tests/corpus.rs` replays the corpus in each run of the tests. `tests/fuzz.sh` lets libFuzzer look for new inputs.

use cni_common::spec::json::Json;
use cni_common::spec::{CniArgs, NetConf, SpecVersion};
use ferrule_kernel::decoders;
use tokio::io::AsyncReadExt as _;

/// A decoder.
pub type Target = fn(&[u8]);

/// The decoders with the names of their folders in `corpus/`.
pub const TARGETS: [(&str, Target); 20] = [
    ("bandwidth-alias", bandwidth_alias),
    ("call-log", call_log),
    ("cni-args", cni_args),
    ("configuration", configuration),
    ("conntrack", decoders::conntrack),
    ("dbus", decoders::dbus),
    ("dhcp-frame", ferrule_dhcpd::decoders::frame),
    ("dhcp-message", ferrule_dhcpd::decoders::message),
    ("host-device-record", host_device_record),
    ("host-local-reservation", host_local_reservation),
    ("hpack", decoders::hpack),
    ("http2", decoders::http2),
    ("iptables-save", decoders::iptables_save),
    ("kubelet-checkpoint", kubelet_checkpoint),
    ("netlink", decoders::netlink),
    ("nftables", decoders::nftables),
    ("nic-authority", nic_authority),
    ("nic-configuration", nic_configuration),
    ("pod-resources", pod_resources),
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

/// The log of calls, which `ferrule log` reads.
fn call_log(bytes: &[u8]) {
    drop(ferrule_inspect::calls::read::parse(bytes));
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

/// The record of a device that host-device has moved.
fn host_device_record(bytes: &[u8]) {
    if let Some(record) = ferrule_host_device::record::Record::parse(bytes) {
        let _ = record.routes().count();
    }
}

/// A file of host-local's store.
fn host_local_reservation(bytes: &[u8]) {
    let _ = ferrule_host_local::owner::Holder::parse(bytes).key();
}

/// The checkpoint of the kubelet's device manager.
fn kubelet_checkpoint(bytes: &[u8]) {
    let _ = ferrule_kit::pod_resources::checkpoint::ids(bytes, "1b4e28ba", "ferrule.dev/nic");
}

/// What a kubelet sends to ferrule-nic, through the filter of `:authority`.
fn nic_authority(bytes: &[u8]) {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() else { return };
    let mut passed = Vec::new();
    let _ = runtime.block_on(ferrule_nic::authority::Filter::new(bytes).read_to_end(&mut passed));
    // It changes bytes, adds none, and keeps back only a frame that is not complete.
    assert!(passed.len() <= bytes.len());
}

/// The configuration of ferrule-nic.
fn nic_configuration(bytes: &[u8]) {
    let _ = ferrule_nic::config::Config::parse(&String::from_utf8_lossy(bytes));
}

/// Answers of the kubelet.
fn pod_resources(bytes: &[u8]) {
    use ferrule_kit::pod_resources::message;
    let _ = (message::list(bytes), message::get(bytes), message::allocatable(bytes));
}

/// `/etc/resolv.conf` of a network.
fn resolv_conf(bytes: &[u8]) {
    drop(ferrule_host_local::resolv::parse(&String::from_utf8_lossy(bytes)));
}
