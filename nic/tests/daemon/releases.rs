//! What differs between releases of the kubelet: `:authority`, the plugin watcher, the race of clients, refusals, silence.

use ferrule_fake_kubelet::{Authority, Knobs, RawClient};

use crate::lab::{Lab, NIC};

#[test]
fn a_path_as_authority() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs { authority: Authority::Plain, ..Knobs::old() });
    let _daemon = lab.daemon("");
    lab.lists(&kubelet, "eth1 eth2");
    for authority in [Authority::Plain, Authority::Huffman] {
        let mut client = RawClient::connect(&kubelet.endpoint(NIC), authority).unwrap();
        for call in 0..3 {
            client.call("/v1beta1.DevicePlugin/GetDevicePluginOptions", &[]).unwrap();
            assert_eq!(client.message().unwrap(), [0; 0], "call {call}, {authority:?}");
        }
    }
}

#[test]
fn the_plugin_watcher() {
    let lab = Lab::new();
    let mut kubelet = lab.kubelet(Knobs::new());
    let registry = lab.path("kubelet/plugins_registry");
    let _daemon = lab.daemon("--registration watcher");
    lab.says("waits for ");
    std::fs::create_dir(&registry).unwrap();
    let socket = registry.join("ferrule.dev_nic.sock");
    for _ in 0..3 {
        // As the kubelet does, again if the plugin is just binding the socket anew.
        lab.until("found", || kubelet.discover(&socket).is_ok_and(|name| name == NIC));
        lab.lists(&kubelet, "eth1 eth2");
        // The next kubelet finds the same socket, or its successor if the plugin has bound it anew.
        kubelet.restart();
    }
    assert!(lab.log().matches("registered by the plugin watcher").count() >= 3);
    kubelet.kill();
    kubelet.knobs.refusal = Some("no such resource".to_owned());
    kubelet.start();
    lab.until("refused", || {
        kubelet.discover(&socket).is_err()
            && lab.log().contains("the plugin watcher refuses it: no such resource")
    });
}

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
fn a_refusal_waits_for_another_kubelet() {
    for text in [
        r#"requested API version "v1beta1" is not supported by kubelet. Supported version is ["v2"]"#,
        r#"the ResourceName "ferrule.dev/nic" is invalid"#,
    ] {
        let lab = Lab::new();
        let mut kubelet = lab.kubelet(Knobs { refusal: Some(text.to_owned()), ..Knobs::new() });
        let mut daemon = lab.daemon("");
        lab.says("waits for another kubelet");
        assert_eq!(lab.log().matches(text).count(), 1);
        kubelet.kill();
        kubelet.knobs.refusal = None;
        kubelet.start();
        lab.allocatable(&kubelet, 2);
        assert!(daemon.is_running());
        assert_eq!(lab.log().matches(text).count(), 1, "asked again in vain");
    }
}

#[test]
fn a_kubelet_that_does_not_listen() {
    let lab = Lab::new();
    let kubelet = lab.kubelet(Knobs { deaf: true, ..Knobs::new() });
    let _daemon = lab.daemon("");
    lab.says("the kubelet does not call ListAndWatch, registers again");
    lab.until("a second registration", || kubelet.registrations(NIC) == 2);
}
