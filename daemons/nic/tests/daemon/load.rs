//! What the daemon costs with 1,000 devices in 10 resources. Times: `cargo bench -p ferrule-nic`.

use std::thread::sleep;
use std::time::Duration;

use ferrule_fake_kubelet::Knobs;

use crate::lab::Lab;

#[test]
fn a_thousand_devices() {
    let lab = Lab::new();
    lab.crowd();
    let kubelet = lab.kubelet(Knobs::new());
    let mut daemon = lab.daemon("");
    lab.crowded(&kubelet);
    let memory = daemon.status("VmHWM");
    // Half of it is the code of this build, which is not optimised.
    assert!(memory < 40_000, "{memory} kB");
    // Nothing wakes it, not even a clock. Load on the machine makes no process wait for an event.
    lab.until("at rest", || {
        let before = daemon.status("voluntary_ctxt_switches");
        sleep(Duration::from_secs(2));
        daemon.status("voluntary_ctxt_switches") <= before + 1
    });
}
