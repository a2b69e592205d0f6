//! A node in trouble: each system call of each verb of each plugin fails once. The plugin then succeeds, or fails with one error
//! object. It neither crashes nor hangs, and the DEL that follows leaves nothing.
//!
//! A run of the tests plays a sample. The variable [`SAMPLE`] makes it larger, up to everything.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};

use cni_lab::testing::{Expect as _, Random, succeed};
use cni_lab::{FailingCall, Place as _, Pod, Snapshot, TIMEOUT, bin_dir, eventually};
use cni_runner::{Attachment, Exec, Extra, Output, ValidAttachment, plugin_input};
use serde_json::{Value, json};

use super::Subject;
use super::scene::{BYSTANDER, Scene, VICTIM, attachment};

/// How many failing calls of each verb of each plugin are played.
const SAMPLE: &str = "FERRULE_FAILING_CALLS";
const USUAL_SAMPLE: usize = 4;
/// How many failing calls share one look at the node.
const TOGETHER: usize = 16;
const VERBS: [&str; 5] = ["ADD", "CHECK", "GC", "STATUS", "DEL"];

/// A container, whose plugins are called one by one.
struct Play {
    scene: Scene,
    pod: Pod,
    attachment: Attachment,
    /// The container after an ADD and a DEL. Some sysctls stay.
    before: Snapshot,
}

impl Play {
    fn new(subject: &Subject) -> Play {
        let scene = Scene::new(subject);
        let pod = scene.node.pod(VICTIM.0).unwrap();
        let attachment = attachment(&pod, VICTIM.1);
        let mut play = Play { scene, pod, attachment, before: Snapshot::default() };
        let result = play.add(play.all());
        play.del(play.all(), result.as_ref());
        play.before = Snapshot::take(&play.pod).unwrap();
        play
    }

    fn all(&self) -> Range<usize> {
        0..self.scene.network.plugins.len()
    }

    fn name(&self, plugin: usize) -> &str {
        self.scene.network.plugins[plugin]["type"].as_str().unwrap()
    }

    /// One call of a plugin of the chain, not yet made.
    fn exec(&self, verb: &str, plugin: usize, previous: Option<&Value>) -> Exec {
        let valid = [BYSTANDER.0, VICTIM.0].map(|pod| ValidAttachment::new(pod, "eth0"));
        let (extra, attachment) = match verb {
            "GC" => (Extra::Gc(Some(&valid)), &Attachment::default()),
            "STATUS" => (Extra::Status, &Attachment::default()),
            _ => (Extra::Attachment(&self.attachment, previous), &self.attachment),
        };
        let (dir, network) = (bin_dir().unwrap(), &self.scene.network);
        let exec = Exec::new(dir.join(self.name(plugin)), verb).attachment(attachment);
        exec.path(dir.display().to_string()).stdin(plugin_input(network, &network.plugins[plugin], extra))
    }

    fn add(&self, plugins: Range<usize>) -> Option<Value> {
        plugins.fold(None, |previous, plugin| {
            Some(succeed(&self.scene.node, &self.exec("ADD", plugin, previous.as_ref())))
        })
    }

    fn del(&self, plugins: Range<usize>, result: Option<&Value>) {
        for plugin in plugins.rev() {
            self.scene.node.call(&self.exec("DEL", plugin, result)).unwrap().ok();
        }
    }

    /// Makes the state that the verb of a plugin finds. Returns the result for it.
    fn before(&self, verb: &str, plugin: usize) -> Option<Value> {
        if verb == "ADD" {
            return self.add(0..plugin);
        }
        let result = self.add(self.all());
        if verb == "DEL" {
            self.del(plugin + 1..self.all().end, result.as_ref());
        }
        result
    }

    /// Panics unless the ended attachments have left nothing.
    fn assert_nothing_left(&self) {
        let diff = || self.before.diff(&Snapshot::take(&self.pod).unwrap());
        eventually(TIMEOUT, || diff().is_empty());
        assert_eq!(diff(), "", "the container");
        self.scene.assert_as_before("the node");
    }

    /// The system calls of a verb of a plugin.
    fn calls(&self, verb: &str, plugin: usize) -> Vec<FailingCall> {
        let result = self.before(verb, plugin);
        let calls = FailingCall::all(&self.scene.node, &self.exec(verb, plugin, result.as_ref())).unwrap();
        self.del(self.all(), result.as_ref());
        calls
    }

    /// Makes a call that fails once. The plugin succeeds or says what has failed.
    fn fail(&self, call: &FailingCall, verb: &str, plugin: usize, result: Option<&Value>) -> Output {
        let output = call.make(&self.scene.node, &self.exec(verb, plugin, result)).unwrap();
        let is_mute = call.name.starts_with("write") && output.stdout.is_empty();
        match output.status.code() {
            Some(0) if verb == "ADD" => drop(output.result()),
            Some(0) => output.ok(),
            Some(1) if is_mute => {}
            None if call.is_memory() => {}
            _ => {
                let error = output.error();
                // Rust's library panics if it cannot read the output of a child process. The kernel reads pipes without fail.
                let is_pipe = ["read", "ioctl", "poll"].contains(&call.name.as_str())
                    && ["std/src/process.rs", "std/src/sys/process/"].iter().any(|file| error.contains(file));
                assert!(is_pipe || !error.contains("internal error"), "{error}");
            }
        }
        output
    }

    /// Makes calls that fail once. ADD and DEL need an attachment for each of them; the other verbs must not harm theirs.
    fn fail_all(&self, calls: &[FailingCall], verb: &str, plugin: usize) {
        let has_own = ["ADD", "DEL"].contains(&verb);
        for calls in calls.chunks(if has_own { 1 } else { calls.len() }) {
            let mut result = self.before(verb, plugin);
            for call in calls {
                let output = self.fail(call, verb, plugin, result.as_ref());
                if verb == "ADD" {
                    // A runtime has no result of a failed ADD.
                    result = output.success().then(|| output.result());
                }
            }
            for plugin in self.all().filter(|_| !has_own) {
                self.scene.node.call(&self.exec("CHECK", plugin, result.as_ref())).unwrap().ok();
            }
            self.del(self.all(), result.as_ref());
        }
        self.assert_nothing_left();
    }
}

/// The failures after these calls. Makes them one by one if something is wrong after all of them.
fn findings(
    play: &mut Play,
    subject: &Subject,
    calls: &[FailingCall],
    (verb, plugin): (&str, usize),
) -> Vec<String> {
    let Err(panic) = catch_unwind(AssertUnwindSafe(|| play.fail_all(calls, verb, plugin))) else {
        return Vec::new();
    };
    let text = panic.downcast_ref::<String>().map_or("a panic without a text", String::as_str);
    let what = format!("{} {verb}", play.name(plugin));
    // A leftover would spoil the next play.
    *play = Play::new(subject);
    if let [call] = calls {
        return vec![format!("{what}, {call}: {text}")];
    }
    let each = calls.chunks(1).flat_map(|call| findings(play, subject, call, (verb, plugin)));
    let each: Vec<String> = each.collect();
    if each.is_empty() { vec![format!("{what}, {calls:?}, only together: {text}")] } else { each }
}

/// Some of the calls, with equal distances, from a random one on.
fn sample(calls: Vec<FailingCall>, random: &mut Random) -> Vec<FailingCall> {
    let size = std::env::var(SAMPLE).map_or(USUAL_SAMPLE, |size| size.parse().unwrap());
    let step = calls.len().div_ceil(size).max(1);
    calls.into_iter().skip(random.below(step)).step_by(step).collect()
}

fn each_call_fails_once(subject: &Subject) {
    let mut random = Random::seeded();
    let mut play = Play::new(subject);
    let (mut found, mut count) = (Vec::new(), 0);
    for plugin in play.all() {
        for verb in VERBS {
            let all = play.calls(verb, plugin);
            let count_all = all.len();
            let calls = sample(all, &mut random);
            for calls in calls.chunks(TOGETHER) {
                found.extend(findings(&mut play, subject, calls, (verb, plugin)));
            }
            println!(
                "{} {verb}: {} of {count_all} calls failed, {} findings",
                play.name(plugin),
                calls.len(),
                found.len()
            );
            count += calls.len();
        }
    }
    assert!(found.is_empty(), "{} findings in {count} calls:\n{}", found.len(), found.join("\n"));
}

#[test]
fn calls_of_bridge_and_its_chain_fail() {
    each_call_fails_once(&super::bridge());
}

#[test]
fn calls_of_ptp_and_its_chain_fail() {
    each_call_fails_once(&super::ptp());
}

#[test]
fn calls_of_macvlan_and_its_chain_fail() {
    each_call_fails_once(&super::macvlan());
}

#[test]
fn calls_of_tap_and_its_chain_fail() {
    each_call_fails_once(&super::tap());
}

#[test]
fn calls_of_host_device_and_its_chain_fail() {
    each_call_fails_once(&super::host_device());
}

#[test]
fn calls_of_loopback_fail() {
    each_call_fails_once(&Subject::new("loopback", json!({}), json!([])));
}

/// What start other programs, whose calls do not fail.
#[test]
fn calls_of_iptables_backends_fail() {
    let keys = json!({"ipMasq": true, "ipMasqBackend": "iptables"});
    let chained = json!([{"type": "portmap", "backend": "iptables", "capabilities": {"portMappings": true}},
        {"type": "firewall", "backend": "iptables"}]);
    each_call_fails_once(&Subject::new("ptp", keys, chained));
}

#[test]
fn calls_with_static_addresses_fail() {
    let addresses = json!([{"address": "10.1.2.9/24"}, {"address": "fd00:1::9/64"}]);
    let ipam = json!({"type": "static", "addresses": addresses});
    each_call_fails_once(&Subject::new("tap", json!({"ipam": ipam}), json!([])));
}

/// The ledger has an open block. No daemon is needed.
#[test]
fn calls_with_shared_addresses_fail() {
    let prepare = r#"mkdir -p /run/ledgers; printf '{"ferruleBlocks":1,"network":"hostile","domain":"lan","dataDir":"/var/lib/cni/networks",
        "sets":[[{"subnet":"10.1.2.0/24","rangeStart":"10.1.2.1","rangeEnd":"10.1.2.254","blockSize":16,"gateway":"10.1.2.1"}]],"boot":"%s","blocks":[{"first":"10.1.2.0","size":16,"state":"open","uid":"1"}]}' "$(cat /proc/sys/kernel/random/boot_id)" \
        >/run/ledgers/hostile.json"#;
    let ipam = json!({"type": "shared", "domain": "lan", "subnet": "10.1.2.0/24", "blockSize": 16, "ledgers": "/run/ledgers",
        "socket": "/run/blocks.sock"});
    each_call_fails_once(&Subject { prepare, ..Subject::new("tap", json!({"ipam": ipam}), json!([])) });
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn calls_of_vlan_fail() {
    each_call_fails_once(&Subject { chained: json!([]), ..super::vlan() });
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn calls_of_vrf_fail() {
    cni_lab::kernel_module("vrf");
    let chained = json!([{"type": "vrf", "vrfname": "red"}]);
    each_call_fails_once(&Subject { chained, ..super::macvlan() });
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn calls_of_ipvlan_and_its_chain_fail() {
    each_call_fails_once(&super::ipvlan());
}

#[test]
#[ignore = "slow, in a stock kernel: see CONTRIBUTING.md"]
fn calls_of_dummy_and_its_chain_fail() {
    each_call_fails_once(&super::dummy());
}
