//! What differs between releases of the kubelet: the race of clients, refusals, silence.

use ferrule_fake_kubelet::Knobs;

use crate::lab::{Lab, NIC};

#[test]
fn a_lost_registration_is_made_again() {
    // The kubelet drops the newest registration when an older stream ends.
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs { client_race: true, ..Knobs::new() });
    let mut first = lab.daemon("");
    lab.allocatable(&kubelet, 2);
    // It would bind its socket anew.
    first.signal("STOP");
    let _second = lab.daemon("");
    lab.until("a list of the second one", || kubelet.lists(NIC) == 2);
    first.end("KILL");
    lab.until("registered again", || kubelet.allocatable(NIC) == 2 && kubelet.registrations(NIC) >= 3);
}

#[test]
fn a_refusal_is_reported_once() {
    for text in [
        r#"requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]"#,
        r#"the ResourceName "ferrule.dev/nic" is invalid"#,
    ] {
        let lab = Lab::new();
        let mut kubelet = lab.kubelet(Knobs { refusal: Some(text.to_owned()), ..Knobs::new() });
        let mut daemon = lab.daemon("");
        lab.until("asked again", || kubelet.registrations(NIC) >= 3);
        assert_eq!(lab.log().matches(text).count(), 1, "{}", lab.log());
        kubelet.kill();
        kubelet.knobs.refusal = None;
        kubelet.start();
        lab.allocatable(&kubelet, 2);
        assert!(daemon.is_running());
    }
}

#[test]
fn a_kubelet_that_does_not_listen() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs { deaf: true, ..Knobs::new() });
    let _daemon = lab.daemon("");
    lab.says("the kubelet does not call ListAndWatch (none before 1.26 can), registers again");
    lab.until("a second registration", || kubelet.registrations(NIC) == 2);
}
